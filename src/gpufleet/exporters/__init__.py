"""Exporters: a completed snapshot as what others read."""
