"""Strategies for OTLP requests, and the examples of the specification."""

from hypothesis import strategies as st

from gpufleet.codecs.otlp.records import (
    Attributes,
    Kind,
    LogRecord,
    OtlpMetric,
    OtlpPoint,
    ResourceLogs,
    ResourceMetrics,
)

AT = 1_790_000_000_123_456_789

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1, max_size=12)
SCALARS = st.one_of(TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
ATTRIBUTES: st.SearchStrategy[Attributes] = st.dictionaries(TEXTS, SCALARS, max_size=4)
INSTANTS = st.integers(1, 2**63 - 1)
POINTS = st.builds(
    OtlpPoint,
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)),
    INSTANTS,
    st.integers(0, 2**63 - 1),
    ATTRIBUTES,
)
NAMES = st.from_regex(r"[a-z][a-z.]{0,12}", fullmatch=True)
METRICS = st.builds(OtlpMetric, NAMES, st.sampled_from(Kind), st.lists(POINTS, min_size=1, max_size=4), TEXTS, TEXTS)
RESOURCES = st.builds(ResourceMetrics, ATTRIBUTES, st.lists(METRICS, max_size=3), TEXTS, TEXTS)
RECORDS = st.builds(LogRecord, INSTANTS, INSTANTS, st.integers(0, 24), TEXTS, TEXTS, ATTRIBUTES)
LOGS = st.builds(ResourceLogs, ATTRIBUTES, st.lists(RECORDS, max_size=4), TEXTS, TEXTS)

METRICS_JSON = b"""{"resourceMetrics": [{
  "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
  "scopeMetrics": [{
    "scope": {"name": "my.library", "version": "1.0.0",
              "attributes": [{"key": "my.scope.attribute", "value": {"stringValue": "some"}}]},
    "metrics": [
      {"name": "my.counter", "unit": "1", "description": "I am a Counter", "sum": {
        "aggregationTemporality": 2, "isMonotonic": true, "dataPoints": [
          {"asDouble": 5, "startTimeUnixNano": "1544712660300000000", "timeUnixNano": "1544712660300000000",
           "attributes": [{"key": "my.counter.attr", "value": {"stringValue": "some value"}}]}]}},
      {"name": "my.gauge", "unit": "1", "gauge": {"dataPoints": [
          {"asInt": "10", "timeUnixNano": 1544712660300000000, "aFieldOfTheFuture": [1]}]}},
      {"name": "my.histogram", "unit": "1", "histogram": {
        "aggregationTemporality": 1, "dataPoints": [
          {"startTimeUnixNano": "1544712660300000000", "timeUnixNano": "1544712660300000000", "count": "2", "sum": 2,
           "bucketCounts": ["1", "1"], "explicitBounds": [1], "min": 0, "max": 2}]}}]}]}]}"""
"""Modelled on the example of the specification (opentelemetry-proto, examples/metrics.json)."""

LOGS_JSON = b"""{"resourceLogs": [{
  "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
  "scopeLogs": [{"scope": {"name": "my.library", "version": "1.0.0"}, "logRecords": [
    {"timeUnixNano": "1544712660300000000", "observedTimeUnixNano": "1544712660300000000", "severityNumber": 10,
     "severityText": "Information", "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174",
     "body": {"stringValue": "Example log record"}, "attributes": [
       {"key": "string", "value": {"stringValue": "some string"}},
       {"key": "boolean", "value": {"boolValue": true}},
       {"key": "int", "value": {"intValue": "10"}},
       {"key": "double", "value": {"doubleValue": 637.704}},
       {"key": "array", "value": {"arrayValue": {"values": [{"stringValue": "many"}, {"intValue": "2"}]}}},
       {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}}},
       {"key": "bytes", "value": {"bytesValue": "AAE="}}, {"key": "nothing", "value": {}}]}]}]}]}"""
"""Modelled on examples/logs.json."""
