"""Starting a mount and ending it: checks of the places before, the processes behind it, logs."""
