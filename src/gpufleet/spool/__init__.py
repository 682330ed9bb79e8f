"""The disk queue that agent, relay and hub share. `docs/reference/spool.md` documents the files."""

from gpufleet.spool.folder import SpoolDiskError, SpoolGoneError
from gpufleet.spool.recovery import Recovery
from gpufleet.spool.renewal import renew
from gpufleet.spool.segment import SpoolRecord
from gpufleet.spool.segment_list import SpoolDepth
from gpufleet.spool.spool import Spool

__all__ = ["Recovery", "Spool", "SpoolDepth", "SpoolDiskError", "SpoolGoneError", "SpoolRecord", "renew"]
