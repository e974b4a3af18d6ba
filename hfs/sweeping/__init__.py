"""`hfs sweep`: what killed processes and ended jobs have left on a node is found, and taken away.

    mounts.py     dead mounts
    daemons.py    mounts that are held for jobs that have ended, and daemons that such jobs have started
    sockets.py    sockets that nobody listens at, directories of sockets that are empty
    caches.py     caches that nobody has used for longer than `expire`

Each finds one kind and says what becomes of it (`Swept`). None touches a mount that answers and is in use, and what
cannot be told for certain stays. A user sweeps what is the user's own, root all.
"""
