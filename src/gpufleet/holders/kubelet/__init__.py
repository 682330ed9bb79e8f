"""Holders as the node's kubelet declares them: pods and their devices."""

from gpufleet.holders.kubelet.source import KubeletHolders

__all__ = ["KubeletHolders"]
