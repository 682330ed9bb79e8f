"""Holders as the processes on the devices show them: pods, jobs, virtual machines and containers."""

from gpufleet.holders.processes.source import ProcessHolders

__all__ = ["ProcessHolders"]
