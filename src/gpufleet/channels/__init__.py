"""Channels: how a reader's question is carried to where the answer is."""
