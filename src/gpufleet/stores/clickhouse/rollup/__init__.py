"""Minute and hour rollups, each hour computed from all of its samples."""
