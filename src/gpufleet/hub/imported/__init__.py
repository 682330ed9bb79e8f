"""What others' collectors write to the hub, as batches of the hub's own."""
