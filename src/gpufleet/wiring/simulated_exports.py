"""Simulated fleets over Prometheus remote write and OTLP, instead of gpufleet's own batches.

Each batch is assembled as an agent does, rendered by the exporter and posted as a cluster's Prometheus or OpenTelemetry
Collector would post it. Guests are left out: an exporter on their host does not see them.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.decoding.builder import SnapshotBuilder
from gpufleet.delivery.export import AgentStats, ExportSource
from gpufleet.delivery.export_queue import ExportOutcome, ExportRequest, ExportTransport
from gpufleet.delivery.post import HubAnswer
from gpufleet.delivery.transports import HttpSender, OtlpTransport, RemoteWriteTransport
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderStatus
from gpufleet.model.wire.batch import MachineReport
from gpufleet.wiring.connections import tls_context, token_reader

VERSION = "2.0"
"""Version of remote write."""

TIMEOUT_SECONDS = 30.0
INTERVAL_SECONDS = 60.0
"""Interval between repetitions of values without a timestamp of their own."""

_STATUS_CODES = {ExportOutcome.ACCEPTED: 200, ExportOutcome.REJECTED: 400, ExportOutcome.RETRY: 503}


class _NodeRenderer:
    """Newest samples of one node by subject, reader and lane, and the renderer of the node."""

    def __init__(self, source: ExportSource) -> None:
        self.source = source
        self._samples: dict[tuple[str, str, Lane], Sample] = {}
        self._statuses: dict[tuple[str, Lane], ReaderStatus] = {}

    def take(self, report: MachineReport, at: int) -> Snapshot:
        self._samples |= {(item.view.key if item.view else "", item.reader, item.lane): item for item in report.samples}
        self._statuses |= {(item.reader, item.lane): item for item in report.readers}
        machine = SnapshotBuilder(report.machine, at, report.events)
        machine.take(self._samples.values(), statuses=self._statuses.values())
        return machine.snapshot()


class ReencodingClient:
    """Posts the batches of one cluster in another format, in the order of their creation."""

    def __init__(self, transport: ExportTransport, make_source: Callable[[Callable[[], int]], ExportSource]) -> None:
        """Take the transport and a function from a clock to a node's renderer. The clock returns the batch's time."""
        self._transport = transport
        self._make_source = make_source
        self._nodes: dict[str, _NodeRenderer] = {}
        self._retries: dict[bytes, ExportRequest] = {}
        self._sent_at = 0

    async def __aenter__(self) -> Self:
        """Open the transport."""
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the transport."""
        await self._transport.__aexit__(kind, error, trace)

    async def post(self, body: bytes) -> HubAnswer:
        """Post the content of one batch. A retried batch is posted as the same request."""
        request = self._retries.get(body) or self._render(body)
        if request is None:
            return HubAnswer(200, "")
        reply = await self._transport.post(request)
        self._retries = {body: request} if reply.outcome is ExportOutcome.RETRY else {}
        if reply.outcome is ExportOutcome.ACCEPTED and reply.rejected:
            return HubAnswer(400, f"{reply.rejected} of {request.points} points were rejected: {reply.detail}")
        return HubAnswer(_STATUS_CODES[reply.outcome], reply.detail, reply.retry_after)

    async def post_bundle(self, bodies: list[bytes]) -> list[HubAnswer]:
        """Post the batches one by one."""
        return [await self.post(body) for body in bodies]

    def _render(self, body: bytes) -> ExportRequest | None:
        batch = to_rows(decode(body))
        self._sent_at = batch.sent_at
        if not batch.reports:
            return None  # of a cluster collector
        node = self._nodes.get(batch.sender)
        if node is None:
            node = self._nodes[batch.sender] = _NodeRenderer(self._make_source(lambda: self._sent_at))
        for _ in node.source.offer(node.take(batch.reports[0], self._sent_at), AgentStats(batch.sent_at, {})):
            pass
        draft = node.source.take()
        return None if draft is None else ExportRequest(draft.encode(), draft.points)


def remote_write_client(hub: str, cluster: str, token_file: str | None, ca: str | None) -> ReencodingClient:
    """Return the client of a cluster whose Prometheus scrapes dcgm-exporter and writes to the hub.

    Raises:
        ConfigError: if the token or CA file cannot be read.
    """
    from gpufleet.exporters.remote_write import RemoteWriteSeries

    def source(now_ns: Callable[[], int]) -> ExportSource:
        return RemoteWriteSeries(
            (DCGM_EXPORTER.name,), {"job": "dcgm"}, version=VERSION, interval_seconds=INTERVAL_SECONDS, now_ns=now_ns
        )

    sender = _sender(f"{hub.rstrip('/')}/api/v1/write?cluster={cluster}", token_file, ca)
    return ReencodingClient(RemoteWriteTransport(sender, VERSION), source)


def otlp_client(hub: str, cluster: str, token_file: str | None, ca: str | None) -> ReencodingClient:
    """Return the client of a cluster with an OpenTelemetry Collector. Raises as `remote_write_client`."""
    from gpufleet.exporters.otlp import OtlpMetrics

    sender = _sender(f"{hub.rstrip('/')}/v1/metrics?cluster={cluster}", token_file, ca)
    return ReencodingClient(OtlpTransport(sender, logs=False), lambda now_ns: OtlpMetrics(cluster, {}, now_ns))


def _sender(url: str, token_file: str | None, ca: str | None) -> HttpSender:
    token = token_reader(token_file)
    return HttpSender(
        url,
        timeout_seconds=TIMEOUT_SECONDS,
        headers=lambda: {} if token is None else {"Authorization": f"Bearer {token()}"},
        tls=tls_context(ca),
    )
