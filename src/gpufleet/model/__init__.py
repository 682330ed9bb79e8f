"""Data model: frozen records without I/O, and the catalogue of metrics.

Nothing here reads a clock, a file or a socket. Start with `reading.py` (a value or an absence),
then `view.py` (the device of the value) and `catalogue/` (the meaning of the value).
"""
