"""Reader of another machine through gpufleet's own command."""

from gpufleet.readers.snapshot.reader import SnapshotReader

__all__ = ["SnapshotReader"]
