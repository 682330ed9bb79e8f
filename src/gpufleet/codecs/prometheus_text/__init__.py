"""The Prometheus text format and OpenMetrics text, read from sources that are not trusted. Start with `parser.py`."""
