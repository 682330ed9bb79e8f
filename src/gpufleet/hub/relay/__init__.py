"""Relay: forwards logged batches to the next hub."""
