"""Why a job waits for its data: a situation in figures, the causes that it shows, and what each of them costs."""
