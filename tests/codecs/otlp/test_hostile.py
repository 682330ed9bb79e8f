"""Hostile OTLP requests: the decoder returns a bounded request or raises `WireError`."""

import gzip
import json
import tracemalloc
from collections import Counter
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from gpufleet.codecs.otlp.decode import decode_answer, decode_logs, decode_metrics
from gpufleet.codecs.otlp.encode import encode_logs, encode_metrics
from gpufleet.codecs.otlp.encodings import OtlpLimits, unpack
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.otlp.records import (
    Kind,
    LogRecord,
    LogsRequest,
    MetricsRequest,
    OtlpMetric,
    OtlpPoint,
    OtlpProblem,
    ResourceLogs,
    ResourceMetrics,
)
from gpufleet.codecs.protobuf import write_bytes
from gpufleet.model.errors import WireError, WireLimitError
from tests.codecs.otlp.requests import AT, LOGS, RESOURCES


def one(**point: Any) -> tuple[ExportMetricsServiceRequest, Any]:
    """Return a request with a valid point of the gauge `good` and the given point of the gauge `odd`."""
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="good").gauge.data_points.add(time_unix_nano=AT, as_int=7)
    odd = metrics.add(name="odd")
    odd.gauge.data_points.add(**{"time_unix_nano": AT, "as_int": 1, **point})
    return request, odd


def found(request: ExportMetricsServiceRequest, limits: OtlpLimits | None = None) -> tuple[list[Any], Any]:
    read = decode_metrics(request.SerializeToString(), PROTOBUF, limits)
    values = [point.value for resource in read.resources for metric in resource.metrics for point in metric.points]
    problems: Counter[OtlpProblem] = Counter()
    for (name, problem), count in read.problems.items():
        assert name.strip() in ("good", "odd", "")
        problems[problem] += count
    return values, problems


@pytest.mark.parametrize(
    ("point", "problem"),
    [
        ({"time_unix_nano": 0}, OtlpProblem.TIMESTAMP),
        ({"time_unix_nano": 2**63}, OtlpProblem.TIMESTAMP),
        ({"start_time_unix_nano": 2**64 - 1}, OtlpProblem.TIMESTAMP),
        ({"as_int": None}, OtlpProblem.NO_VALUE),
    ],
)
def test_invalid_point_drops_only_itself(point: dict[str, Any], problem: OtlpProblem) -> None:
    assert found(one(**point)[0]) == ([7], {problem: 1})


def test_invalid_attributes_drop_their_point() -> None:
    for keys, value in (
        (["a", "a"], "x"),
        (["k" * 257], "x"),
        (["a"], "x" * 4097),
        ([str(n) for n in range(257)], "x"),
    ):
        request, odd = one()
        for key in keys:
            odd.gauge.data_points[0].attributes.add(key=key).value.string_value = value
        assert found(request) == ([7], {OtlpProblem.ATTRIBUTES: 1})


def test_bad_resource_attributes_drop_only_its_points() -> None:
    request, _ = one()
    twin = request.resource_metrics.add()
    twin.CopyFrom(request.resource_metrics[0])
    for _ in range(2):
        twin.resource.attributes.add(key="host.name").value.string_value = "x"
    assert found(request) == ([7, 1], {OtlpProblem.ATTRIBUTES: 2})


def test_overlong_resource_attribute_drops_only_itself() -> None:
    request, _ = one()
    resource = request.resource_metrics[0].resource
    resource.attributes.add(key="process.command_line").value.string_value = "java -cp " + "x" * 9000
    resource.attributes.add(key="host.name").value.string_value = "node-1"
    (read,) = decode_metrics(request.SerializeToString()).resources
    assert dict(read.attributes)["host.name"] == "node-1"
    assert "process.command_line" not in read.attributes
    assert read.metrics


@pytest.mark.parametrize("kind", ["histogram", "exponential_histogram", "summary"])
def test_histograms_and_summaries_are_dropped(kind: str) -> None:
    request, odd = one()
    getattr(odd, kind).data_points.add(time_unix_nano=AT)
    assert found(request) == ([7], {OtlpProblem.HISTOGRAM: 1})


def test_delta_nameless_and_empty_metrics_are_dropped() -> None:
    request, odd = one()
    odd.sum.data_points.add(time_unix_nano=AT, as_int=1)
    odd.sum.data_points.add(time_unix_nano=AT, as_int=1)
    assert found(request) == ([7], {OtlpProblem.DELTA: 2})  # an unspecified temporality is treated the same
    request, odd = one()
    odd.name = " "
    assert found(request) == ([7], {OtlpProblem.NO_NAME: 1})
    request, odd = one()
    odd.ClearField("data")
    assert found(request) == ([7], {OtlpProblem.NO_DATA: 1})


def test_control_characters_are_removed() -> None:
    request, odd = one()
    odd.name = "o\x1b[2Jdd"
    odd.gauge.data_points[0].attributes.add(key="a\n").value.string_value = "x\x00y"
    read = decode_metrics(request.SerializeToString())
    metric = read.resources[0].metrics[1]
    assert (metric.name, metric.points[0].attributes) == ("o[2Jdd", {"a": "xy"})


def test_requests_are_bounded() -> None:
    request, odd = one()
    for number in range(5):
        odd.gauge.data_points.add(time_unix_nano=AT, as_int=number)
    with pytest.raises(WireLimitError) as caught:
        found(request, OtlpLimits(points=6))
    assert caught.value.field == "points"
    assert len(found(request, OtlpLimits(points=7))[0]) == 7
    with pytest.raises(WireLimitError, match="10") as caught:
        found(request, OtlpLimits(message_bytes=10))
    assert caught.value.field == "body"
    empty = write_bytes(0x0A, write_bytes(0x12, b"\x12\x00" * 100))  # metrics of two bytes each
    with pytest.raises(WireLimitError, match="99") as caught:
        decode_metrics(empty, limits=OtlpLimits(points=99))
    assert caught.value.field == "points"
    with pytest.raises(WireLimitError, match="20") as caught:
        decode_metrics(b'{"resourceMetrics": []}', JSON, OtlpLimits(json_bytes=20))
    assert caught.value.field == "body"
    logs = encode_logs([ResourceLogs({}, [])])
    with pytest.raises(WireLimitError):
        decode_logs(logs + logs * 100, limits=OtlpLimits(message_bytes=100))
    with pytest.raises(WireLimitError):
        decode_answer(b"\0" * 5000, PROTOBUF)


def test_decompression_bomb_is_rejected() -> None:
    zeros = b"\0" * (64 << 20)
    unsized = zstandard.ZstdCompressor(write_content_size=False)
    bombs = {
        "gzip": gzip.compress(zeros),
        "x-gzip": gzip.compress(zeros[: 1 << 19]) * 99,
        "zstd": unsized.compress(zeros),
    }
    for encoding, bomb in bombs.items():
        assert len(bomb) < 100_000
        tracemalloc.start()
        try:
            with pytest.raises(WireLimitError, match="1048576") as caught:
                unpack(bomb, encoding, OtlpLimits(message_bytes=1 << 20))
            assert caught.value.field == "body"
            assert tracemalloc.get_traced_memory()[1] < 24 << 20
        finally:
            tracemalloc.stop()
    with pytest.raises(WireLimitError, match="10") as caught:
        unpack(b"\0" * 11, "", OtlpLimits(body_bytes=10))
    assert caught.value.field == "body"
    for body in (b"", b"no gzip", gzip.compress(b"x")[:-4], gzip.compress(b"x") + b"more"):
        with pytest.raises(WireError, match="gzip") as refused:
            unpack(body, "gzip")
        assert refused.value.field == "body"
    for body in (b"", b"no zstd", zstandard.compress(b"x")[:-1], zstandard.compress(b"x") + b"more"):
        with pytest.raises(WireError, match="zstd") as refused:
            unpack(body, "zstd")
        assert refused.value.field == "body"
    with pytest.raises(WireError) as refused:
        unpack(b"", "br")
    assert refused.value.field == "content-encoding"


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/grpc", "application/json; charset=utf-8"])
def test_unknown_content_type_is_rejected(content_type: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_metrics(b"", content_type)
    assert caught.value.field == "content-type"


def test_deeply_nested_values_are_rejected() -> None:
    value: Any = {"stringValue": "x"}
    for _ in range(60):
        value = {"arrayValue": {"values": [value]}}
    record = {"timeUnixNano": "1", "body": value}
    with pytest.raises(WireError):
        decode_logs(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode(), JSON)
    for bomb in (b"[" * 200_000, b'{"a":' * 200_000, b'{"resourceMetrics": ' + b"9" * 100_000 + b"}"):
        with pytest.raises(WireError):
            decode_metrics(bomb, JSON)


def assert_bounded(read: MetricsRequest | LogsRequest) -> None:
    """Check that the accepted content is within the limits, and that every problem is counted."""
    limits = OtlpLimits()
    assert all(count > 0 for count in read.problems.values())
    for resource in read.resources:
        items: list[OtlpPoint | LogRecord] = []
        if isinstance(resource, ResourceMetrics):
            assert all(metric.name and metric.name.isprintable() for metric in resource.metrics)
            items += [point for metric in resource.metrics for point in metric.points]
        else:
            items += resource.records
            assert all(record.body.isprintable() for record in resource.records)
        for one in items:
            assert 0 <= one.at < 2**63
            assert len(one.attributes) <= limits.attributes
            assert all(isinstance(value, str | bool | int | float) for value in one.attributes.values())


@given(st.binary(max_size=300), st.sampled_from([PROTOBUF, JSON]), st.sampled_from([decode_metrics, decode_logs]))
def test_any_bytes_are_bounded_or_rejected(message: bytes, content_type: str, decode: Any) -> None:
    try:
        read = decode(message, content_type)
    except WireError:
        return
    assert_bounded(read)


JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["resourceMetrics", "resource", "scopeMetrics", "metrics", "name", "gauge", "sum", "dataPoints",
                 "asInt", "asDouble", "timeUnixNano", "attributes", "key", "value", "stringValue", "resourceLogs",
                 "scopeLogs", "logRecords", "body", "arrayValue", "values", "kvlistValue", "bytesValue", "flags"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=30,
)  # fmt: skip


@given(JSONS, st.sampled_from([decode_metrics, decode_logs]))
def test_any_json_is_bounded_or_rejected(document: Any, decode: Any) -> None:
    try:
        read = decode(json.dumps(document).encode(), JSON)
    except WireError:
        return
    assert_bounded(read)


@given(st.data(), RESOURCES, LOGS, st.sampled_from([PROTOBUF, JSON]))
def test_damaged_request_is_bounded_or_rejected(
    data: st.DataObject, metrics: ResourceMetrics, logs: ResourceLogs, kind: str
) -> None:
    full = ResourceMetrics(metrics.attributes, [*metrics.metrics, OtlpMetric("m", Kind.GAUGE, [OtlpPoint(1, AT)])])
    is_logs = data.draw(st.booleans())
    message = bytearray(encode_logs([logs], kind) if is_logs else encode_metrics([full], kind))
    for _ in range(data.draw(st.integers(1, 4))):
        if message:
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    try:
        read = decode_logs(cut, kind) if is_logs else decode_metrics(cut, kind)
    except WireError:
        return
    assert_bounded(read)
