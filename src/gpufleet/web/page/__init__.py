"""The hub's web page: static files that use the public API only."""
