"""The SLURM holder source: jobs that have GPUs of this machine."""

from gpufleet.holders.slurm.source import SlurmHolders

__all__ = ["SlurmHolders"]
