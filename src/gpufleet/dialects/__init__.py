"""Dialects: mappings between metrics of other projects and the catalogue, one file each. Start with `dialect.py`."""
