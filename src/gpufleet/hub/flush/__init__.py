"""Flush stage: screen, normalise and write logged batches to the store."""
