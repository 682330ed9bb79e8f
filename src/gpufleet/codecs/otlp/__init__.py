"""OTLP, the OpenTelemetry protocol: metrics and logs, protobuf and JSON, both ways.

Specification: opentelemetry.io/docs/specs/otlp (1.x). The messages are those of the package `opentelemetry-proto`,
which comes with the `agent` and `hub` extras; everything else here is plain records.
"""
