"""Reads the kernel's log for what the NVIDIA driver says in it."""

from gpufleet.readers.kmsg.reader import KmsgReader

__all__ = ["KmsgReader"]
