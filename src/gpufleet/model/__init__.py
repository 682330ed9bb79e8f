"""The words gpufleet speaks: frozen records without I/O, and the catalogue of metrics.

Nothing here reads a clock, a file or a socket. Start with `reading.py` (a value or an absence),
then `view.py` (whose value it is) and `catalogue/` (what the value means).
"""
