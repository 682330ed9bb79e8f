"""OTLP, the OpenTelemetry protocol: metrics and logs, protobuf and JSON, both ways.

Specification: opentelemetry.io/docs/specs/otlp (1.x). Messages come from the package `opentelemetry-proto`
of the `agent` and `hub` extras; everything else here is plain records.
"""
