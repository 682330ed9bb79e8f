"""Records of the HTTP API."""
