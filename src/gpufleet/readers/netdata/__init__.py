"""The Netdata reader: a bare-metal host through the operator's Netdata, as a fallback. Start with `reader.py`."""
