"""Reading staged bytes: from memory at once, from the disk in threads, verified at first use, lent to the kernel.

What is found damaged on the way is handed on to be given up. It never writes an object.
"""
