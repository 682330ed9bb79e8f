"""Grafana dashboards, rendered from the catalogue and the dialects, so that queries use only existing metrics."""
