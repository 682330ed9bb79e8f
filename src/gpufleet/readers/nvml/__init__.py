"""Reads NVIDIA GPUs through the driver's management library (NVML). Start with `reader.py`."""
