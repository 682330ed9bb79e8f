"""Records of the batch format (docs/reference/batch.md)."""
