"""Publication: batches for the hub, and the prepared pages."""
