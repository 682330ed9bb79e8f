"""The page that an agent serves.

What the agent counts about itself, as Prometheus families.
"""

from collections.abc import Collection, Generator

from gpufleet.delivery.export import AgentStats, QueueStats, SendStats
from gpufleet.delivery.outlet import OutletStats
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.exporters.all_smi import add_all_smi
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.dcgm_exporter import add_dcgm
from gpufleet.exporters.exposition import Page, Section, Syntax, labelled, write_page
from gpufleet.exporters.kubevirt import add_kubevirt
from gpufleet.exporters.nvidia_gpu_exporter import add_nvidia_gpu_exporter
from gpufleet.exporters.prometheus import NativePage
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS


def add_stats(page: Page, node: str, stats: AgentStats) -> None:
    """Add the families to a page; `node` is the label of each of their series, as `labelled` writes it."""
    _gauge(page, "gpufleet_agent_start_timestamp_seconds", "When the agent started, since 1970")
    page.add("gpufleet_agent_start_timestamp_seconds", node, stats.started_at / NANOS)
    _counter(page, "gpufleet_reader_passes_total", "Passes ended since the agent started")
    _counter(page, "gpufleet_reader_failures_total", "Passes that failed since the agent started")
    for (reader, lane), counts in stats.lanes.items():
        labels = f"{node},{labelled({'reader': reader, 'lane': lane})}"
        page.add("gpufleet_reader_passes_total", labels, counts.passes)
        page.add("gpufleet_reader_failures_total", labels, counts.failures)
    if stats.send is not None:
        _send(page, node, stats.send)
    if stats.queue is not None:
        _queue(page, node, stats.queue)
    for family, kind, words in _EXPORT_FAMILIES if stats.exports else ():
        page.declare(family, kind, words, _unit(family))
    for target, export in stats.exports.items():
        _export(page, f"{node},{labelled({'target': target})}", export)


def _send(page: Page, node: str, send: SendStats) -> None:
    for family, words, value in (
        ("gpufleet_batches_total", "Batches made since the agent started", send.batches),
        ("gpufleet_batches_lost_total", "Batches that neither disk nor memory could keep", send.lost),
        ("gpufleet_batches_acknowledged_total", "Batches that the hub has taken", send.acknowledged),
        ("gpufleet_batches_refused_total", "Batches that the hub will never take, set aside", send.refused),
        ("gpufleet_push_failures_total", "Posts to the hub that failed and are made again", send.failures),
        ("gpufleet_epoch_renewals_total", "New epochs taken as another machine had the same one", send.renewals),
    ):
        _counter(page, family, words)
        page.add(family, node, value)
    if send.last_success is not None:
        _gauge(page, "gpufleet_push_last_success_timestamp_seconds", "When the hub last took a batch, since 1970")
        page.add("gpufleet_push_last_success_timestamp_seconds", node, send.last_success / NANOS)


def _queue(page: Page, node: str, queue: QueueStats) -> None:
    _gauge(page, "gpufleet_spool_records", "Batches waiting in the spool")
    page.add("gpufleet_spool_records", node, queue.records)
    _gauge(page, "gpufleet_spool_bytes", "Bytes waiting in the spool")
    page.add("gpufleet_spool_bytes", node, queue.bytes)
    _gauge(page, "gpufleet_spool_memory_records", "Those of them that only memory holds: the disk refused them")
    page.add("gpufleet_spool_memory_records", node, queue.in_memory)
    _counter(page, "gpufleet_spool_dropped_total", "Batches dropped for room or age since the spool was made")
    page.add("gpufleet_spool_dropped_total", node, queue.dropped)


_EXPORT_FAMILIES = (
    ("gpufleet_export_points_total", "counter", "Points made for another system since the agent started"),
    ("gpufleet_export_points_taken_total", "counter", "Those of them that it has taken"),
    ("gpufleet_export_points_rejected_total", "counter", "Those of them that it will not take"),
    ("gpufleet_export_points_dropped_total", "counter", "Those of them that gave way to newer ones as they waited"),
    ("gpufleet_export_failures_total", "counter", "Posts that failed and are made again"),
    ("gpufleet_export_queue_requests", "gauge", "Requests that wait"),
    ("gpufleet_export_queue_bytes", "gauge", "Bytes of their bodies"),
    ("gpufleet_export_last_success_timestamp_seconds", "gauge", "When it last took anything, since 1970"),
)


def _export(page: Page, labels: str, export: OutletStats) -> None:
    values = (
        *(export.points, export.taken, export.rejected, export.dropped, export.failures, export.requests, export.bytes),
        None if export.last_success is None else export.last_success / NANOS,
    )
    for (family, _, _), value in zip(_EXPORT_FAMILIES, values, strict=True):
        if value is not None:
            page.add(family, labels, value)


def _gauge(page: Page, family: str, words: str) -> None:
    page.declare(family, "gauge", words, _unit(family))


def _unit(family: str) -> str:
    return next((unit for unit in ("seconds", "bytes") if family.endswith(f"_{unit}")), "")


def _counter(page: Page, family: str, words: str) -> None:
    page.declare(family, "counter", words)


WRITERS = {
    ALL_SMI.name: add_all_smi,
    NVIDIA_GPU_EXPORTER.name: add_nvidia_gpu_exporter,
    KUBEVIRT.name: add_kubevirt,
}
"""Dialects whose families need nothing but a snapshot."""


class AgentPages:
    """The snapshot under each dialect's names, and the agent's own figures; again and again.

    Attributes:
        remembers: whether every snapshot has to be taken in, asked for or not: some families count over a window.
    """

    def __init__(self, dialects: Collection[str] = (NATIVE.name,)) -> None:
        """Take the names of the dialects."""
        self._dialects = tuple(dialects)
        self._native = NativePage() if NATIVE.name in dialects else None
        self._clocks = ClockCounts() if DCGM_EXPORTER.name in dialects else None
        self.remembers = self._clocks is not None
        self._sections: list[Section] = []

    def take(self, snapshot: Snapshot) -> None:
        """Take note of a snapshot, which is not older than the one before."""
        if self._clocks is not None:
            self._clocks.take(snapshot)

    def update(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Write the newest snapshot, in small steps; until they are done, pages are as they were before."""
        sections: list[Section] = []
        if self._native is not None:
            yield from self._native.update(snapshot)
            sections += self._native.sections()
        page = Page()
        yield from add_others(page, snapshot, self._dialects, self._clocks)
        yield
        add_stats(page, labelled({"node": snapshot.node.name}), stats)
        self._sections = [*sections, *page.sections()]

    def page(self, *, openmetrics: bool) -> bytes:
        """Return the page."""
        return write_page(self._sections, Syntax.OPENMETRICS if openmetrics else Syntax.TEXT)


def add_others(
    page: Page, snapshot: Snapshot, dialects: Collection[str], clocks: ClockCounts | None
) -> Generator[None, None, None]:
    """Add a snapshot under other projects' names, in small steps."""
    if DCGM_EXPORTER.name in dialects:
        yield
        add_dcgm(page, snapshot, clocks)
    for name, add in WRITERS.items():
        if name in dialects:
            yield
            add(page, snapshot)
