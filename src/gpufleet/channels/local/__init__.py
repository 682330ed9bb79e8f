"""The local channel: this machine's own files."""

from gpufleet.channels.local.files import LocalFiles

__all__ = ["LocalFiles"]
