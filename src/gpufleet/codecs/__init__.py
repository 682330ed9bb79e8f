"""Bytes to records and back, pure: no sockets, clocks or files."""
