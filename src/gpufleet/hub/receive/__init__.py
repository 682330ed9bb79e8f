"""Receive stage: authenticate, deduplicate, log and acknowledge batches."""
