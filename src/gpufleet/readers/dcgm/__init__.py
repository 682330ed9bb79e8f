"""DCGM reader: GPUs through a DCGM host engine, over any stream. Start with `reader.py`."""
