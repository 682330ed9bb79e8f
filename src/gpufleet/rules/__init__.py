"""Prometheus recording rules and alerts, rendered from the catalogue and the dialects. Pure."""
