"""The host reader: the machine itself, from files of its kernel."""

from gpufleet.readers.host.reader import HostReader

__all__ = ["HostReader"]
