"""The exporter reader: a machine through an exporter that already runs there. Start with `reader.py`."""
