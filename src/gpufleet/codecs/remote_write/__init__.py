"""Prometheus remote write, 1.0 and 2.0: protobuf under snappy, both ways.

Specifications: prometheus.io/docs/specs/prw/remote_write_spec and remote_write_spec_2_0.
"""
