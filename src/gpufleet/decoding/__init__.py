"""Captured bytes to snapshots: what `gpufleet decode` shows. One registry, one file a format."""

from gpufleet.decoding.formats import FORMATS, decode

__all__ = ["FORMATS", "decode"]
