"""The agent's metrics page: snapshot families of each dialect, and the agent's own counters."""

from collections.abc import Collection, Generator

from gpufleet.delivery.export import AgentStats, QueueStats, SendStats
from gpufleet.delivery.export_queue import ExportQueueStats
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.l9gpu import NAME as L9GPU
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.exporters.all_smi import add_all_smi
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.dcgm_exporter import add_dcgm
from gpufleet.exporters.exposition import MetricsPage, PageFormat, Section, format_labels, write_page
from gpufleet.exporters.kubevirt import add_kubevirt
from gpufleet.exporters.l9gpu import add_l9gpu
from gpufleet.exporters.nvidia_gpu_exporter import add_nvidia_gpu_exporter
from gpufleet.exporters.prometheus import NativePage
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS


def add_stats(page: MetricsPage, node: str, stats: AgentStats) -> None:
    """Add the agent's own families to a page.

    `node` is the label of each series, as written by `format_labels`.
    """
    _declare_gauge(page, "gpufleet_agent_start_timestamp_seconds", "When the agent started, since 1970")
    page.add("gpufleet_agent_start_timestamp_seconds", node, stats.started_at / NANOS)
    _declare_counter(page, "gpufleet_reader_passes_total", "Passes completed since the agent started")
    _declare_counter(page, "gpufleet_reader_failures_total", "Passes that failed since the agent started")
    for (reader, lane), counts in stats.lanes.items():
        labels = f"{node},{format_labels({'reader': reader, 'lane': lane})}"
        page.add("gpufleet_reader_passes_total", labels, counts.passes)
        page.add("gpufleet_reader_failures_total", labels, counts.failures)
    if stats.send is not None:
        add_send_stats(page, node, stats.send)
    if stats.queue is not None:
        add_queue_stats(page, node, stats.queue)
    for family, kind, help_ in _EXPORT_FAMILIES if stats.exports else ():
        page.declare(family, kind, help_, _unit(family))
    for target, export in stats.exports.items():
        _add_export_stats(page, f"{node},{format_labels({'target': target})}", export)


def add_send_stats(page: MetricsPage, node: str, send: SendStats) -> None:
    """Add the counters of sending to the hub; `node` as in `add_stats`."""
    for family, help_, value in (
        ("gpufleet_batches_total", "Batches created since the agent started", send.batches),
        ("gpufleet_batches_lost_total", "Batches lost because neither disk nor memory had room", send.lost),
        ("gpufleet_batches_acknowledged_total", "Batches acknowledged by the hub", send.acknowledged),
        ("gpufleet_batches_refused_total", "Batches permanently rejected by the hub and set aside", send.refused),
        ("gpufleet_push_failures_total", "Failed posts to the hub, which are retried", send.failures),
        ("gpufleet_epoch_renewals_total", "Epochs renewed because another machine used the same epoch", send.renewals),
    ):
        _declare_counter(page, family, help_)
        page.add(family, node, value)
    if send.last_success is not None:
        _declare_gauge(
            page, "gpufleet_push_last_success_timestamp_seconds", "When the hub last acknowledged a batch, since 1970"
        )
        page.add("gpufleet_push_last_success_timestamp_seconds", node, send.last_success / NANOS)


def add_queue_stats(page: MetricsPage, node: str, queue: QueueStats) -> None:
    """Add the backlog, without numbers of a spool that cannot be opened; `node` as in `add_stats`."""
    dropped = "Batches dropped for lack of room or for age since the spool was created"
    in_memory = "Queued batches held in memory only, because the disk refused them"
    for declare, family, help_, value in (
        (_declare_gauge, "gpufleet_spool_records", "Batches queued in the spool", queue.records),
        (_declare_gauge, "gpufleet_spool_bytes", "Bytes queued in the spool", queue.bytes),
        (_declare_gauge, "gpufleet_spool_memory_records", in_memory, queue.in_memory),
        (_declare_counter, "gpufleet_spool_dropped_total", dropped, queue.dropped),
    ):
        declare(page, family, help_)
        if value is not None:
            page.add(family, node, value)


_EXPORT_FAMILIES = (
    ("gpufleet_export_points_total", "counter", "Points created for the target since the agent started"),
    ("gpufleet_export_points_accepted_total", "counter", "Points accepted by the target"),
    ("gpufleet_export_points_rejected_total", "counter", "Points rejected by the target"),
    ("gpufleet_export_points_dropped_total", "counter", "Queued points dropped in favour of newer ones"),
    ("gpufleet_export_failures_total", "counter", "Failed posts, which are retried"),
    ("gpufleet_export_queue_requests", "gauge", "Queued requests"),
    ("gpufleet_export_queue_bytes", "gauge", "Bytes of queued request bodies"),
    ("gpufleet_export_last_success_timestamp_seconds", "gauge", "When the target last accepted anything, since 1970"),
)


def _add_export_stats(page: MetricsPage, labels: str, export: ExportQueueStats) -> None:
    values = (
        *(
            export.points,
            export.accepted,
            export.rejected,
            export.dropped,
            export.failures,
            export.requests,
            export.bytes,
        ),
        None if export.last_success is None else export.last_success / NANOS,
    )
    for (family, _, _), value in zip(_EXPORT_FAMILIES, values, strict=True):
        if value is not None:
            page.add(family, labels, value)


def _declare_gauge(page: MetricsPage, family: str, help_: str) -> None:
    page.declare(family, "gauge", help_, _unit(family))


def _unit(family: str) -> str:
    return next((unit for unit in ("seconds", "bytes") if family.endswith(f"_{unit}")), "")


def _declare_counter(page: MetricsPage, family: str, help_: str) -> None:
    page.declare(family, "counter", help_)


DIALECT_WRITERS = {
    ALL_SMI.name: add_all_smi,
    NVIDIA_GPU_EXPORTER.name: add_nvidia_gpu_exporter,
    KUBEVIRT.name: add_kubevirt,
    L9GPU: add_l9gpu,
}
"""Dialects whose families are computed from a snapshot alone."""


class AgentPages:
    """The agent's metrics page, updated after each snapshot.

    Attributes:
        needs_every_snapshot: whether `take` must receive every snapshot, even if no page is
            requested: some families count over a window.
    """

    def __init__(
        self,
        dialects: Collection[str] = (NATIVE.name,),
        *,
        holder_labels: bool = False,
        dcgm_pod_labels: bool = False,
    ) -> None:
        """Create an empty page.

        Args:
            dialects: names to write under.
            holder_labels: as in `NativePage`.
            dcgm_pod_labels: as `pod_labels` of `add_dcgm`.
        """
        self._dialects, self._dcgm_pod_labels = tuple(dialects), dcgm_pod_labels
        self._native = NativePage(holder_labels=holder_labels) if NATIVE.name in dialects else None
        self._clocks = ClockCounts() if DCGM_EXPORTER.name in dialects else None
        self.needs_every_snapshot = self._clocks is not None
        self._sections: list[Section] = []

    def take(self, snapshot: Snapshot) -> None:
        """Record a snapshot for the families that count over a window. Snapshots arrive in order of time."""
        if self._clocks is not None:
            self._clocks.take(snapshot)

    def update(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Render the newest snapshot in small steps. Until the last step, `page` returns the previous content."""
        sections: list[Section] = []
        if self._native is not None:
            yield from self._native.update(snapshot)
            sections += self._native.sections()
        page = MetricsPage()
        yield from add_dialects(page, snapshot, self._dialects, self._clocks, dcgm_pod_labels=self._dcgm_pod_labels)
        yield
        add_stats(page, format_labels({"node": snapshot.node.name}), stats)
        self._sections = [*sections, *page.sections()]

    def page(self, *, openmetrics: bool) -> bytes:
        """Return the page."""
        return write_page(self._sections, PageFormat.OPENMETRICS if openmetrics else PageFormat.TEXT)


def add_dialects(
    page: MetricsPage,
    snapshot: Snapshot,
    dialects: Collection[str],
    clocks: ClockCounts | None,
    *,
    dcgm_pod_labels: bool = False,
) -> Generator[None, None, None]:
    """Add a snapshot under the names of other projects, in small steps."""
    if DCGM_EXPORTER.name in dialects:
        yield
        add_dcgm(page, snapshot, clocks, pod_labels=dcgm_pod_labels)
    for name, add in DIALECT_WRITERS.items():
        if name in dialects:
            yield
            add(page, snapshot)
