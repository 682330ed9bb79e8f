"""A guest's shell through the QEMU guest agent, over the Unix socket of its virtio-serial port."""

from gpufleet.channels.qemu_agent.shell import QemuAgentShell

__all__ = ["QemuAgentShell"]
