"""Receiver of OTLP and remote write over real HTTP, with scripted answers.

OTLP is decoded by opentelemetry-proto, remote write by Google's protobuf, so that the codecs of gpufleet are not
used.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, Self

from aiohttp import web
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.remote_write import parse


class Got(NamedTuple):
    """Received request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """Answer to a request."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Point(NamedTuple):
    """Data point: the name of its metric, its attributes, and its message."""

    name: str
    attributes: dict[str, Any]
    message: Any


@functools.lru_cache(maxsize=256)
def decode_metrics(body: bytes) -> Any:
    """Decode a metrics request once, however often a test that waits looks at it."""
    return ExportMetricsServiceRequest.FromString(body)


@functools.lru_cache(maxsize=256)
def points_of(body: bytes) -> tuple[Point, ...]:
    """Return every data point of a metrics request."""
    return tuple(
        Point(metric.name, attributes_of(point.attributes), point)
        for resource in decode_metrics(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    )


class Receiver:
    """Server that answers every POST with `answer(request)` and records the requests."""

    def __init__(self, answer: Callable[[Got], Answer]) -> None:
        self.answer = answer
        self.got: list[Got] = []
        self.taken: list[Got] = []
        self.url = ""
        self.arrived = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, answer: Callable[[Got], Answer] = lambda _: Answer(), *, ssl: Any = None, port: int = 0
    ) -> AsyncIterator[Self]:
        """Serve on loopback while the context is open."""
        receiver = cls(answer)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{path:.*}", receiver._take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl)
        await site.start()
        receiver.url = f"{'https' if ssl else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield receiver
        finally:
            await runner.cleanup()

    def metrics(self) -> list[Any]:
        """Return the accepted metrics requests, as messages of opentelemetry-proto."""
        return [decode_metrics(got.body) for got in self.taken if got.path == "/v1/metrics"]

    def logs(self) -> list[Any]:
        """Return the accepted logs requests."""
        return [ExportLogsServiceRequest.FromString(got.body) for got in self.taken if got.path == "/v1/logs"]

    def series(self) -> list[tuple[dict[str, str], float, int]]:
        """Return every accepted sample of remote write 1.0: labels, value, milliseconds."""
        return [
            ({label.name: label.value for label in series.labels}, sample.value, sample.timestamp)
            for got in self.taken
            for series in parse(1, got.body).timeseries
            for sample in series.samples
        ]

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        # aiohttp decompresses gzip, not snappy
        got = Got(request.path, {name.lower(): value for name, value in request.headers.items()}, body)
        self.got.append(got)
        answer = self.answer(got)
        if answer.status < 300:
            self.taken.append(got)
        self.arrived.set()
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)


def attributes_of(attributes: Any) -> dict[str, Any]:
    """Return a repeated KeyValue as a mapping."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
