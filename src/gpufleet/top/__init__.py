"""`gpufleet top`: devices, processes and holders of a machine, a fleet or a recording, in a terminal.

The frame model is pure: `observation.py` has what was read, `rows.py` and `summaries.py` make rows of it, `screen.py`
makes lines of text. `app.py` shows the lines with textual.
"""
