"""Readers: one folder a kind of thing that is read."""
