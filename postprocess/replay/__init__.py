"""The dependency graph of a process's steps, replayed unchanged and with a class removed."""
