"""The hub: takes batches, keeps them, and answers from them."""
