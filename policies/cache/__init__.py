"""What is admitted to the cache disk, what is evicted, what is kept encoded. Pure."""
