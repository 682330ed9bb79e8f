"""Codecs between bytes and records. Pure: no sockets, clocks or files."""
