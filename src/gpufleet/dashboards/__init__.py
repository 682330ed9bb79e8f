"""Dashboards for Grafana, rendered from the catalogue and the dialects: no query names what nothing tells."""
