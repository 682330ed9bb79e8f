"""Recordings: files of snapshot documents with their times, for `gpufleet record`, `replay` and `decode`."""
