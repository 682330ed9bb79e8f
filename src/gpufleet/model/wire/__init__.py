"""Records of the batch format."""
