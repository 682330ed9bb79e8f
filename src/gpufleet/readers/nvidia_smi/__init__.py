"""The nvidia-smi reader: NVIDIA GPUs by the command `nvidia-smi`, over any channel that can run commands."""

from gpufleet.readers.nvidia_smi.reader import NvidiaSmiReader

__all__ = ["NvidiaSmiReader"]
