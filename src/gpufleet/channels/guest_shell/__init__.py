"""Fixed commands and file reads of a guest's shell, over any channel that runs the guest script."""

from gpufleet.channels.guest_shell.files import ShellFiles
from gpufleet.channels.guest_shell.shell import ShellExec

__all__ = ["ShellExec", "ShellFiles"]
