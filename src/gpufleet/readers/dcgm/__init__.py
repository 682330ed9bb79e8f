"""Reads GPUs through a DCGM host engine, over any stream to it. Start with `reader.py`."""
