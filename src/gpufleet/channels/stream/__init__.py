"""Streams over sockets: `tcp`, `unix`, `vsock` (AF_VSOCK) and `hybrid_vsock` (a hypervisor's Unix socket)."""
