"""Reader of the NVIDIA driver's messages in the kernel log."""

from gpufleet.readers.kmsg.reader import KmsgReader

__all__ = ["KmsgReader"]
