"""What is asked of a guest's shell, over any channel that reaches one: fixed questions, in fixed words."""

from gpufleet.channels.guest_shell.exec import ShellExec
from gpufleet.channels.guest_shell.files import ShellFiles

__all__ = ["ShellExec", "ShellFiles"]
