"""The libvirt channel: domains of a host over libvirt's socket."""

from gpufleet.channels.libvirt.domains import LibvirtDomains

__all__ = ["LibvirtDomains"]
