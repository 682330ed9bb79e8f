"""The performance probe: cheap facts and measurements of a machine, from kernel files and fixed commands.

It works over every channel with the ports `Files` and `Exec`. The agent reports it with the machine's record, and a
capture of benchmark evidence contains it.
"""
