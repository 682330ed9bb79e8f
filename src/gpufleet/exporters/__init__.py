"""Exporters: a completed snapshot in the formats of other systems."""
