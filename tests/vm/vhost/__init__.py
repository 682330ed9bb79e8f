"""vhost-user-vsock device in user space, with the hybrid Unix socket of Firecracker and vhost-device-vsock.

    python -m tests.vm.vhost VHOST_SOCKET HYBRID_SOCKET GUEST_CID

A QEMU guest gets a vsock device without vsock in this host's kernel. `device.py` is QEMU's side (vhost-user protocol,
QEMU 7.2), `memory.py` the guest's memory and rings, `connections.py` the packets (virtio specification, 5.10).
"""
