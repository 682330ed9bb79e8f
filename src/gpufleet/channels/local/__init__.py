"""The local channel: files and commands of this machine."""

from gpufleet.channels.local.exec import LocalExec
from gpufleet.channels.local.files import LocalFiles

__all__ = ["LocalExec", "LocalFiles"]
