"""Decoding of the Prometheus text format and OpenMetrics from untrusted sources. Start with `parser.py`."""
