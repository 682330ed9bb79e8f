"""Holders as libvirt declares them: virtual machines and their devices."""

from gpufleet.holders.libvirt.source import LibvirtHolders

__all__ = ["LibvirtHolders"]
