"""The hub: receives batches, stores them and answers queries."""
