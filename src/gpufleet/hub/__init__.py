"""The hub: takes batches in, commits them to the store, answers questions."""
