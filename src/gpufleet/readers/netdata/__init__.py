"""Reads a host through the operator's own Netdata: the fallback for bare metal. Start with `reader.py`."""
