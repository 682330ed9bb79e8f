"""Forwarding of stored samples to a time-series database of the site by Prometheus remote write."""
