"""The benchmarks behind scripts/bench: each NAME is a module here with GROUPS, the rows it can measure."""
