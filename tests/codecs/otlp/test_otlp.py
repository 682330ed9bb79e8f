"""OTLP encoding and decoding in both content types, compared with the protobuf classes of opentelemetry-proto."""

import gzip
import math
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from gpufleet.codecs.otlp.decode import decode_answer, decode_logs, decode_metrics
from gpufleet.codecs.otlp.encode import encode_answer, encode_logs, encode_metrics, encode_status
from gpufleet.codecs.otlp.encodings import unpack
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.otlp.records import (
    Answer,
    Kind,
    LogRecord,
    OtlpMetric,
    OtlpPoint,
    OtlpProblem,
    ResourceLogs,
    ResourceMetrics,
)
from tests.codecs.otlp.requests import AT, LOGS, LOGS_JSON, METRICS_JSON, RESOURCES

BOTH = pytest.mark.parametrize("content_type", [PROTOBUF, JSON])


def test_protobuf_classes_read_our_metrics() -> None:
    body = encode_metrics(
        [
            ResourceMetrics(
                {"host.name": "gpu-17"},
                [
                    OtlpMetric(
                        "hw.power", Kind.GAUGE, [OtlpPoint(312.5, AT, 0, {"hw.id": "GPU-1", "n": 3, "b": True})], "W"
                    ),
                    OtlpMetric("hw.energy", Kind.COUNTER, [OtlpPoint(2**60 + 1, AT, AT - 5)], "J", "Energy"),
                    OtlpMetric("hw.gpu.memory.usage", Kind.SUM, [OtlpPoint(0, AT), OtlpPoint(None, AT)], "By"),
                ],
                "gpufleet",
                "1.0",
            )
        ]
    )
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    (scope,) = resource.scope_metrics
    power, energy, memory = scope.metrics
    assert [(a.key, a.value.string_value) for a in resource.resource.attributes] == [("host.name", "gpu-17")]
    assert (scope.scope.name, scope.scope.version) == ("gpufleet", "1.0")
    assert (power.name, power.unit, power.WhichOneof("data")) == ("hw.power", "W", "gauge")
    (point,) = power.gauge.data_points
    assert (point.as_double, point.time_unix_nano, point.start_time_unix_nano) == (312.5, AT, 0)
    assert {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in point.attributes} == {
        "hw.id": "GPU-1",
        "n": 3,
        "b": True,
    }
    assert (energy.sum.is_monotonic, energy.description) == (True, "Energy")
    assert energy.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert (energy.sum.data_points[0].as_int, energy.sum.data_points[0].start_time_unix_nano) == (2**60 + 1, AT - 5)
    assert not memory.sum.is_monotonic
    zero, none = memory.sum.data_points
    assert (zero.WhichOneof("value"), zero.as_int, zero.flags) == ("as_int", 0, 0)  # a measured zero is a value
    assert (none.WhichOneof("value"), none.flags) == (None, 1)


def test_protobuf_classes_read_our_logs() -> None:
    record = LogRecord(AT, AT + 1, 17, "gpufleet.xid", "fell off the bus", {"xid": 79})
    body = encode_logs([ResourceLogs({"host.name": "gpu-17"}, [record], "gpufleet", "1.0")])
    (record_read,) = ExportLogsServiceRequest.FromString(body).resource_logs[0].scope_logs[0].log_records
    assert (record_read.time_unix_nano, record_read.observed_time_unix_nano, record_read.severity_number) == (
        AT,
        AT + 1,
        17,
    )
    assert (record_read.event_name, record_read.body.string_value) == ("gpufleet.xid", "fell off the bus")
    assert (record_read.attributes[0].key, record_read.attributes[0].value.int_value) == ("xid", 79)


@given(st.lists(RESOURCES, max_size=2), st.sampled_from([PROTOBUF, JSON]))
def test_metrics_round_trip(resources: list[ResourceMetrics], content_type: str) -> None:
    found = decode_metrics(encode_metrics(resources, content_type), content_type)
    assert found.resources == resources
    assert not found.problems


@given(st.lists(LOGS, max_size=2), st.sampled_from([PROTOBUF, JSON]))
def test_logs_round_trip(resources: list[ResourceLogs], content_type: str) -> None:
    found = decode_logs(encode_logs(resources, content_type), content_type)
    assert found.resources == resources
    assert not found.problems


def test_metrics_example_of_the_specification() -> None:
    found = decode_metrics(METRICS_JSON, JSON)
    (resource,) = found.resources
    at = 1544712660300000000
    assert resource.attributes == {"service.name": "my.service"}
    assert (resource.scope, resource.version) == ("my.library", "1.0.0")
    assert resource.metrics == [
        OtlpMetric(
            "my.counter",
            Kind.COUNTER,
            [OtlpPoint(5.0, at, at, {"my.counter.attr": "some value"})],
            "1",
            "I am a Counter",
        ),
        OtlpMetric("my.gauge", Kind.GAUGE, [OtlpPoint(10, at)], "1"),
    ]
    assert found.problems == {("my.histogram", OtlpProblem.HISTOGRAM): 1}


def test_logs_example_of_the_specification() -> None:
    (resource,) = decode_logs(LOGS_JSON, JSON).resources
    (record,) = resource.records
    assert (record.body, record.severity, record.at) == ("Example log record", 10, 1544712660300000000)
    assert record.attributes == {
        "string": "some string",
        "boolean": True,
        "int": 10,
        "double": 637.704,
        "array": '["many",2]',
        "map": '{"k":"v"}',
        "bytes": '"AAE="',
    }


@BOTH
def test_numbers_keep_every_digit(content_type: str) -> None:
    values = [2**53 + 1, -(2**63), 2**63 - 1, 0.1, -0.0, math.inf, 5e-324, 2**70]
    points = [OtlpPoint(value, AT) for value in values]
    body = encode_metrics([ResourceMetrics({}, [OtlpMetric("m", Kind.GAUGE, points)])], content_type)
    found = [point.value for point in decode_metrics(body, content_type).resources[0].metrics[0].points]
    assert found == [*values[:-1], float(2**70)]
    assert [type(value) for value in found] == [int, int, int, float, float, float, float, float]


@BOTH
def test_lone_surrogate_is_replaced(content_type: str) -> None:
    points = [OtlpPoint(1, AT, 0, {"mount": "/mnt/\udcff"})]
    body = encode_metrics([ResourceMetrics({}, [OtlpMetric("m", Kind.GAUGE, points)])], content_type)
    (metric,) = decode_metrics(body, content_type).resources[0].metrics
    assert metric.points[0].attributes == {"mount": "/mnt/?"}


@BOTH
@pytest.mark.parametrize("logs", [False, True])
def test_answers_round_trip(content_type: str, *, logs: bool) -> None:
    for answer in (Answer(), Answer(3, "too old"), Answer(0, "a warning")):
        body = encode_answer(answer, content_type, logs=logs)
        assert decode_answer(body, content_type, logs=logs) == answer
    assert encode_answer(Answer(), PROTOBUF) == b""


def test_status_is_encoded_as_google_rpc_status() -> None:
    assert encode_status(8, "later") == b"\x08\x08\x12\x05later"
    assert encode_status(8, "later", JSON) == b'{"code":8,"message":"later"}'


def zstd_of_no_size(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0what"
"""Skippable frame of zstd (RFC 8878, 3.1.2)."""


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("", bytes),
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(b"") + gzip.compress(body[9:])),
        ("zstd", zstandard.compress),
        ("zstd", zstd_of_no_size),
        ("zstd", lambda body: SKIPPABLE + zstandard.compress(body[:9]) + zstd_of_no_size(body[9:]) + SKIPPABLE),
    ],
)
def test_content_encodings_are_unpacked(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    body = encode_metrics([ResourceMetrics({"a": "b" * number}, []) for number in range(200)])
    assert unpack(pack(body), encoding) == body
