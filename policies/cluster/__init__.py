"""Many nodes: who keeps what, who reads what from whom, what it costs. Pure."""
