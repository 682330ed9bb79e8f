"""The relay: forwards logged batches to the next hub."""
