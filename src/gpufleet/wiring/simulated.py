"""The fleet by roads that are not ours: its batches told as a cluster's Prometheus or OpenTelemetry Collector would.

What an agent's batch says is put together as an agent does it, rendered by the exporter, and written. Guests are not
told: an exporter on their host does not see them.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.decoding.assembling import Assembling
from gpufleet.delivery.export import AgentStats, Source
from gpufleet.delivery.outlet import Fate, Parcel, Wire
from gpufleet.delivery.post import Answer
from gpufleet.delivery.receivers import HttpSender, OtlpWire, RemoteWriteWire
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderStatus
from gpufleet.model.wire.batch import MachineReport
from gpufleet.wiring.sending import token_of, trust_of

VERSION = "2.0"
"""Of remote write."""

TIMEOUT_SECONDS = 30.0
INTERVAL_SECONDS = 60.0
"""Between repetitions of what has no instant of its own."""

_FATES = {Fate.TAKEN: 200, Fate.REFUSED: 400, Fate.LATER: 503}


class _Node:
    """What was told of one node: of each subject, reader and lane the newest; and what renders it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._samples: dict[tuple[str, str, Lane], Sample] = {}
        self._statuses: dict[tuple[str, Lane], ReaderStatus] = {}

    def take(self, report: MachineReport, at: int) -> Snapshot:
        self._samples |= {(one.view.key if one.view else "", one.reader, one.lane): one for one in report.samples}
        self._statuses |= {(one.reader, one.lane): one for one in report.readers}
        machine = Assembling(report.machine, at, report.events)
        machine.take(self._samples.values(), statuses=self._statuses.values())
        return machine.snapshot()


class Retold:
    """A way to a hub for the batches of one cluster, each told anew in another format; in the order of their making."""

    def __init__(self, wire: Wire, source_of: Callable[[Callable[[], int]], Source]) -> None:
        """Take the way, and what makes a node's renderer; that is given the clock, which is the batch's."""
        self._wire = wire
        self._source_of = source_of
        self._nodes: dict[str, _Node] = {}
        self._kept: dict[bytes, Parcel] = {}
        self._at = 0

    async def __aenter__(self) -> Self:
        """Make ready to connect."""
        await self._wire.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the connection."""
        await self._wire.__aexit__(kind, error, trace)

    async def post(self, body: bytes) -> Answer:
        """Post what one batch says. One that is posted again is the same request again."""
        parcel = self._kept.get(body) or self._render(body)
        if parcel is None:
            return Answer(200, "")
        reply = await self._wire.post(parcel)
        self._kept = {body: parcel} if reply.fate is Fate.LATER else {}
        if reply.fate is Fate.TAKEN and reply.rejected:
            return Answer(400, f"{reply.rejected} of {parcel.points} points were not taken: {reply.words}")
        return Answer(_FATES[reply.fate], reply.words, reply.retry_after)

    async def post_bundle(self, bodies: list[bytes]) -> list[Answer]:
        """Post one by one."""
        return [await self.post(body) for body in bodies]

    def _render(self, body: bytes) -> Parcel | None:
        batch = to_rows(decode(body))
        self._at = batch.sent_at
        node = self._nodes.get(batch.sender)
        if node is None:
            node = self._nodes[batch.sender] = _Node(self._source_of(lambda: self._at))
        for _ in node.source.offer(node.take(batch.reports[0], self._at), AgentStats(batch.sent_at, {})):
            pass
        draft = node.source.take()
        return None if draft is None else Parcel(draft.encode(), draft.points)


def remote_write_way(hub: str, cluster: str, token_file: str | None, ca: str | None) -> Retold:
    """Return the way of a cluster whose Prometheus scrapes dcgm-exporter and writes to the hub.

    Raises:
        ConfigError: if the token or the authorities cannot be read.
    """
    from gpufleet.exporters.remote_write import RemoteWriteSeries

    def source(now_ns: Callable[[], int]) -> Source:
        return RemoteWriteSeries(
            (DCGM_EXPORTER.name,), {"job": "dcgm"}, version=VERSION, interval_seconds=INTERVAL_SECONDS, now_ns=now_ns
        )

    sender = _sender(f"{hub.rstrip('/')}/api/v1/write?cluster={cluster}", token_file, ca)
    return Retold(RemoteWriteWire(sender, VERSION), source)


def otlp_way(hub: str, cluster: str, token_file: str | None, ca: str | None) -> Retold:
    """Return the way of a cluster whose OpenTelemetry Collector exports to the hub; raises as `remote_write_way`."""
    from gpufleet.exporters.otlp import OtlpMetrics

    sender = _sender(f"{hub.rstrip('/')}/v1/metrics?cluster={cluster}", token_file, ca)
    return Retold(OtlpWire(sender, logs=False), lambda now_ns: OtlpMetrics(cluster, {}, now_ns))


def _sender(url: str, token_file: str | None, ca: str | None) -> HttpSender:
    token = token_of(token_file)
    return HttpSender(
        url,
        timeout_seconds=TIMEOUT_SECONDS,
        headers=lambda: {} if token is None else {"Authorization": f"Bearer {token()}"},
        tls=trust_of(ca),
    )
