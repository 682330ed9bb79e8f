"""The local channel: this machine's own files and commands."""

from gpufleet.channels.local.exec import LocalExec
from gpufleet.channels.local.files import LocalFiles

__all__ = ["LocalExec", "LocalFiles"]
