"""The keeper of a mount: the parent that holds the kernel's connection and starts daemons on it, one after the other.

It mounts, reads the kernel's INIT request once, and hands both to a daemon. When that ends without being asked to, the
next one gets the same connection, and the kernel sends it again what its predecessor had taken: readers wait some
tenths of a second and see no error. A mountpoint whose daemon has crashed is never an empty directory. Daemons that
end again and again are not started for ever: the keeper then answers every request with an I/O error itself, and says
why.

Standard library only, imports no other room, and is started without site-packages (`python -I -S`): it lives as long
as the mount in some 10 MB, and whatever may break a daemon has not been loaded here.
"""
