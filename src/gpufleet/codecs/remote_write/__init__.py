"""Prometheus remote write, 1.0 and 2.0: snappy-compressed protobuf, encoding and decoding.

Specifications: prometheus.io/docs/specs/prw/remote_write_spec and remote_write_spec_2_0.
"""
