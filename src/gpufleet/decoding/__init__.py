"""Decoding of captured bytes to snapshots, for `gpufleet decode`. One registry, one file per format."""

from gpufleet.decoding.formats import FORMATS, decode

__all__ = ["FORMATS", "decode"]
