"""What the agent counts about itself, as Prometheus families on the same page as the snapshot."""

from collections.abc import Collection

from gpufleet.agent.stats import AgentStats, QueueStats, SendStats
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.exporters.all_smi import add_all_smi
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.dcgm_exporter import add_dcgm
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.exporters.kubevirt import add_kubevirt
from gpufleet.exporters.nvidia_gpu_exporter import add_nvidia_gpu_exporter
from gpufleet.exporters.prometheus import render_page
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS

WRITERS = {
    ALL_SMI.name: add_all_smi,
    NVIDIA_GPU_EXPORTER.name: add_nvidia_gpu_exporter,
    KUBEVIRT.name: add_kubevirt,
}
"""Dialects whose families need nothing but a snapshot."""


class AgentPage:
    """Renders the page of one agent, again and again: some families count over a window."""

    def __init__(self, dialects: Collection[str] = (NATIVE.name,)) -> None:
        """Take the names of the dialects."""
        self._dialects = tuple(dialects)
        self._clocks = ClockCounts() if DCGM_EXPORTER.name in dialects else None

    def render(self, snapshot: Snapshot, stats: AgentStats) -> bytes:
        """Return the page of a snapshot, which is not older than the one before."""
        if self._clocks is not None:
            self._clocks.take(snapshot)
        return render_agent_page(snapshot, stats, self._dialects, self._clocks)


def render_agent_page(
    snapshot: Snapshot,
    stats: AgentStats,
    dialects: Collection[str] = (NATIVE.name,),
    clocks: ClockCounts | None = None,
) -> bytes:
    """Return the page that an agent serves: the snapshot under each dialect's names, and the agent's own figures."""
    page = render_page(snapshot) if NATIVE.name in dialects else Page()
    if DCGM_EXPORTER.name in dialects:
        add_dcgm(page, snapshot, clocks)
    for name, add in WRITERS.items():
        if name in dialects:
            add(page, snapshot)
    node = labelled({"node": snapshot.node.name})
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
    return page.encode()


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


def _gauge(page: Page, family: str, words: str) -> None:
    page.declare(family, "gauge", words)


def _counter(page: Page, family: str, words: str) -> None:
    page.declare(family, "counter", words)
