"""What a job would have got out of another cache: epochs of reads through the daemon's own rules, in simulated time.

Pure: orders, sizes and rates in; hits, bytes and seconds of each epoch out. What can be the product's own rules are
(`policies.cache`, `policies.prefetch.siblings`, `policies.schedule`, `policies.cluster.placement`); what carries them
out in the daemon (threads, the index, the disk) is here in short, with the constants that both use.
"""
