"""Transports: outcome of OTLP and remote write responses, some over real HTTP."""

import gzip
import math

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import CONTENT_TYPE_1, CONTENT_TYPE_2, WritePoint, encode_2
from gpufleet.delivery.export_queue import ExportOutcome, ExportRequest
from gpufleet.delivery.transports import (
    HttpAnswer,
    HttpSender,
    OtlpTransport,
    RemoteWriteTransport,
    convert_to_version_1,
    otlp_reply,
    remote_write_1_reply,
    remote_write_2_reply,
)
from gpufleet.model.errors import ConfigError
from tests.fakes.receiver import Answer, Got, Receiver

AT = 1_790_000_000_123_000_000
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"


@pytest.mark.parametrize("status", [0, 301, 302, 429, 502, 503, 504])
def test_otlp_response_is_retried(status: int) -> None:
    reply = otlp_reply(HttpAnswer(status, retry_after=9.0), logs=False)
    assert (reply.outcome, reply.retry_after) == (ExportOutcome.RETRY, 9.0)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 500, 501])
def test_otlp_request_is_rejected(status: int) -> None:
    reply = otlp_reply(HttpAnswer(status, "text/html", b"<html>no"), logs=False)
    assert (reply.outcome, reply.rejected, reply.detail) == (
        ExportOutcome.REJECTED,
        None,
        f"answers {status}: <html>no",
    )


def test_otlp_request_is_accepted_wholly_or_in_part() -> None:
    partial = ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points = 3
    partial.partial_success.error_message = "too old"
    for answer in (HttpAnswer(200), HttpAnswer(200, PROTOBUF), HttpAnswer(202, JSON, b"{}"), HttpAnswer(204)):
        for logs in (False, True):
            reply = otlp_reply(answer, logs=logs)
            assert (reply.outcome, reply.rejected or 0, reply.detail) == (ExportOutcome.ACCEPTED, 0, "")
    reply = otlp_reply(HttpAnswer(200, PROTOBUF, partial.SerializeToString()), logs=False)
    assert (reply.outcome, reply.rejected, reply.detail) == (ExportOutcome.ACCEPTED, 3, "too old")
    odd = otlp_reply(HttpAnswer(200, PROTOBUF, b"\xff\xff"), logs=False)
    assert odd.outcome is ExportOutcome.ACCEPTED
    assert odd.detail


def test_page_of_a_captive_portal_is_retried() -> None:
    page = HttpAnswer(200, "text/html", b"<html>log in")
    assert (
        otlp_reply(page, logs=False).outcome
        is remote_write_1_reply(page).outcome
        is remote_write_2_reply(page, 5).outcome
        is ExportOutcome.RETRY
    )


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, ExportOutcome.ACCEPTED),
        (204, ExportOutcome.ACCEPTED),
        (400, ExportOutcome.REJECTED),
        (401, ExportOutcome.REJECTED),
        (404, ExportOutcome.REJECTED),
    ]
    + [(status, ExportOutcome.RETRY) for status in (0, 302, 429, 500, 502, 503)],
)
def test_remote_write_status_decides_the_outcome(status: int, outcome: ExportOutcome) -> None:
    assert remote_write_1_reply(HttpAnswer(status)).outcome is outcome


def test_remote_write_2_counts_written_samples() -> None:
    def outcome(status: int, written: str) -> tuple[ExportOutcome, int | None]:
        reply = remote_write_2_reply(HttpAnswer(status, headers={WRITTEN.lower(): written}), 5)
        return reply.outcome, reply.rejected

    assert outcome(204, "5") == (ExportOutcome.ACCEPTED, None)
    assert outcome(204, "3") == (ExportOutcome.ACCEPTED, 2)
    assert outcome(204, "x") == (ExportOutcome.ACCEPTED, 5)
    assert outcome(400, "4") == (ExportOutcome.REJECTED, 1)
    assert outcome(503, "0")[0] is ExportOutcome.RETRY


def parcel() -> ExportRequest:
    points = [
        WritePoint({"__name__": "m", "i": "0"}, 1.5, AT, "gauge"),
        WritePoint({"__name__": "m", "i": "1"}, None, AT),
        WritePoint({"__name__": "m", "i": "2"}, math.nan, AT),
    ]
    return ExportRequest(encode_2(points), len(points))


def test_version_2_body_is_converted_to_version_1() -> None:
    found = WriteDecoder().decode_1(convert_to_version_1(parcel().body))
    assert [(series.name, series.labels["i"]) for series in found.series] == [("m", "0"), ("m", "1"), ("m", "2")]
    assert (found.values[0], found.stale, found.times) == (1.5, [1], [AT] * 3)


def sender(url: str, **headers: str) -> HttpSender:
    return HttpSender(url, timeout_seconds=5, headers=lambda: headers)


@pytest.mark.parametrize("accepts_any", [False, True])
async def test_version_1_receiver_gets_version_1_from_then_on(*, accepts_any: bool) -> None:
    """The specification requires status 415. Old receivers parse the body as an empty message and answer 204."""

    def answer(got: Got) -> Answer:
        if got.headers["content-type"] == CONTENT_TYPE_2 and not accepts_any:
            return Answer(415)
        return Answer(204)

    async with Receiver.running(answer) as receiver:
        wire = RemoteWriteTransport(sender(receiver.url), "2.0")
        async with wire:
            assert (await wire.post(parcel())).outcome is ExportOutcome.ACCEPTED
            assert (await wire.post(parcel())).outcome is ExportOutcome.ACCEPTED
        assert [got.headers["content-type"] for got in receiver.got] == [CONTENT_TYPE_2, CONTENT_TYPE_1, CONTENT_TYPE_1]
        versions = [got.headers["x-prometheus-remote-write-version"] for got in receiver.got]
        assert versions == ["2.0.0", "0.1.0", "0.1.0"]
        receiver.taken = receiver.got[-1:]
        assert [labels["i"] for labels, _, _ in receiver.series()] == ["0", "1", "2"]


async def test_version_2_receiver_keeps_version_2() -> None:
    async with Receiver.running(lambda _: Answer(204, b"", {WRITTEN: "3"})) as receiver:
        wire = RemoteWriteTransport(sender(receiver.url), "2.0")
        async with wire:
            for _ in range(2):
                assert (await wire.post(parcel())).rejected is None
        assert {got.headers["content-type"] for got in receiver.got} == {CONTENT_TYPE_2}


async def test_otlp_request_has_its_headers_and_reads_the_response() -> None:
    async with Receiver.running(lambda _: Answer(503, b"later\x1b[2J", {"Retry-After": "11"})) as receiver:
        wire = OtlpTransport(sender(f"{receiver.url}/v1/metrics", Authorization="Bearer x"), logs=False)
        async with wire:
            reply = await wire.post(ExportRequest(gzip.compress(b"x"), 0))
        assert (reply.outcome, reply.retry_after, reply.detail) == (ExportOutcome.RETRY, 11.0, "answers 503: later[2J")
        (got,) = receiver.got
        assert (got.path, got.headers["authorization"], got.body) == ("/v1/metrics", "Bearer x", b"x")


async def test_unreachable_receiver_and_missing_credentials_have_status_0() -> None:
    async with sender("http://127.0.0.1:1") as unreachable:
        assert (await unreachable.post(b"", {})).status == 0

    def missing() -> dict[str, str]:
        raise ConfigError("/etc/token", "", "is gone")

    async with Receiver.running() as receiver:
        one = HttpSender(receiver.url, timeout_seconds=5, headers=missing)
        async with one:
            answer = await one.post(b"", {})
        assert (answer.status, answer.detail) == (0, "/etc/token: is gone")
        assert not receiver.got


async def test_redirects_are_not_followed() -> None:
    async with Receiver.running() as elsewhere, Receiver.running() as receiver:
        receiver.answer = lambda _: Answer(307, b"", {"Location": elsewhere.url})
        async with sender(receiver.url, Authorization="Bearer x") as one:
            assert (await one.post(b"", {})).status == 307
        assert not elsewhere.got
