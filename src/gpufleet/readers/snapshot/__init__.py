"""Reads a machine by gpufleet's own command there."""

from gpufleet.readers.snapshot.reader import SnapshotReader

__all__ = ["SnapshotReader"]
