"""What is asked of a guest's shell, over any channel that reaches one: fixed questions, in fixed words."""

from gpufleet.channels.guest_shell.files import ShellFiles
from gpufleet.channels.guest_shell.shell import ShellExec

__all__ = ["ShellExec", "ShellFiles"]
