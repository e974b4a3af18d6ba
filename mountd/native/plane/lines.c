/* Jobs in a line: added at its end, taken out wherever they stand. With their lock; a part of the pipeline, see fetch.h. */
#include "fetch.h"

void line_add(struct line *line, struct job *job) {
    if (!line->last) line->last = &line->first;
    job->next = NULL;
    job->place = line->last;
    *line->last = job;
    line->last = &job->next;
}

void line_take(struct line *line, struct job *job) {
    *job->place = job->next;
    if (job->next)
        job->next->place = job->place;
    else
        line->last = job->place;
    job->place = NULL;
}
