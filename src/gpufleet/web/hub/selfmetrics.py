"""The hub's own metrics as a Prometheus page."""

from collections.abc import Mapping

from gpufleet import __version__
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.hub.forward.forwarder import Forwarder
from gpufleet.hub.imports.scrape_status import Standings
from gpufleet.hub.query.status import HubStatus
from gpufleet.model.api.fleet import HubHearing
from gpufleet.model.liveness import State
from gpufleet.model.time import NANOS

CONTENT_TYPE = "text/plain; version=0.0.4"  # the framework adds the charset


def render(status: HubStatus, senders: Mapping[tuple[str, State], int], hearing: HubHearing) -> bytes:
    """Return the page; `senders` counts them by cluster and state."""
    counters = status.counters
    page = Page()
    for name, words, count in (
        ("received_bodies_total", "Bodies of batches that arrived whole", counters.received_bodies),
        ("received_bytes_total", "Bytes of those bodies", counters.received_bytes),
        ("accepted_batches_total", "Batches acknowledged as new", counters.accepted),
        ("duplicate_batches_total", "Batches acknowledged that were held already", counters.duplicates),
        ("flushed_batches_total", "Batches written to the store", counters.flushed_batches),
        ("flushed_rows_total", "Rows of samples written to the store", counters.flushed_rows),
        ("rollups_total", "Hours of samples that rollups were made of", counters.rolled_hours),
        ("rollups_again_total", "Those that were made anew, for something came late", counters.rolled_again),
        ("rollup_failures_total", "Attempts to make rollups that failed", counters.rollup_failures),
        ("written_samples_total", "Samples that came by remote write, OTLP or federation", counters.written_samples),
        ("written_other_samples_total", "Those of no project that is known here", counters.written_others),
        ("written_nameless_samples_total", "Those that do not tell whose they are", counters.written_nameless),
        ("wal_lost_batches_total", "Acknowledged batches that the disk damaged or lost", status.wal_lost),
        ("future_rows_total", "Rows dropped because they were measured in the future", counters.future_rows),
        ("repeated_rows_total", "Rows dropped as their batch had another of the same instant", counters.repeated_rows),
        ("forbidden_requests_total", "Requests that the token's role does not cover", counters.forbidden),
        ("flush_failures_total", "Flushes that failed and were tried again", counters.flush_failures),
        ("listening_seconds_total", "Time in which senders could be heard", hearing.listening_seconds),
        ("deaf_seconds_total", "Time in which the hub stood still or turned batches away", hearing.deaf_seconds),
    ):
        _single(page, name, "counter", words, count)
    for name, words, value in (
        ("wal_records", "Acknowledged batches that the store does not have yet", status.wal_records),
        ("wal_bytes", "Bytes of those batches on disk", status.wal_bytes),
        ("pending_bytes", "Bytes of bodies being received or made durable", status.pending_bytes),
        ("missing_batches", "Batches lost or still on the way, over all senders", status.missing_batches),
        ("flush_lag_seconds", "Age of the oldest acknowledged batch the store does not have", status.flush_lag_seconds),
        ("flush_failures_in_a_row", "0 while flushing works", status.flush_failures_in_a_row),
        ("last_flush_seconds", "How long the last flush took", counters.last_flush_seconds),
    ):
        _single(page, name, "gauge", words, value)
    if counters.last_flush_at:
        at = counters.last_flush_at / NANOS
        _single(page, "last_flush_timestamp_seconds", "gauge", "When the last flush succeeded", at)
    page.declare("gpufleet_hub_senders", "gauge", "Senders by how recently they were heard of")
    for (cluster, state), count in sorted(senders.items()):
        page.add("gpufleet_hub_senders", labelled({"cluster": cluster, "state": state.value}), count)
    _by_label(page, "rejected_batches_total", "Batches refused, by reason", "reason", counters.rejected)
    _by_label(
        page, "unwritten_samples_total", "Samples that could not be taken, by why", "reason", counters.written_problems
    )
    _by_label(
        page,
        "unauthenticated_requests_total",
        "Requests without a token that is taken, by reason",
        "reason",
        counters.unauthenticated,
    )
    defects = "Times that a task was ended by a defect and begun again"
    _by_label(page, "task_defects_total", defects, "task", counters.task_defects)
    _by_label(page, "quarantined_batches_total", "Batches put aside, by step", "step", counters.quarantined)
    _by_label(
        page, "unknown_metrics_total", "Values of metrics that this catalogue lacks", "metric", counters.unknown_metrics
    )
    words = "Series that were read anew for want of room to remember them"
    _by_label(page, "unremembered_series_total", words, "writer", counters.unremembered_series)
    words = "New series of known projects that have a label which no table has"
    _by_label(page, "unknown_labels_total", words, "label", counters.unknown_labels)
    _by_label(page, "other_metrics_total", "Samples of no project that is known here", "metric", counters.other_metrics)
    _by_label(
        page, "invalid_values_total", "Values that the catalogue does not allow", "metric", counters.invalid_values
    )
    _pulls(page, status.standings)
    if status.forwarder is not None:
        _forward(page, status.forwarder)
    page.declare("gpufleet_hub_build_info", "gauge", "Version of gpufleet; always 1")
    page.add("gpufleet_hub_build_info", labelled({"version": __version__}), 1)
    return page.encode()


def _pulls(page: Page, standings: Standings) -> None:
    """Add what the hub asks by itself."""
    found = [(labelled({"cluster": who[0], "sender": who[1]}), one) for who, one in standings]
    page.declare("gpufleet_hub_pull_up", "gauge", "Whether a target answered when it was asked last")
    for labels, one in found:
        if one.up is not None:
            page.add("gpufleet_hub_pull_up", labels, int(one.up))
    for name, words, field in (
        ("pull_answers_total", "Passes of a target that brought something", "answers"),
        ("pull_failures_total", "Passes of a target that brought nothing", "failures"),
        ("pull_lost_total", "Passes of a target that the hub had no room for", "lost"),
    ):
        page.declare(f"gpufleet_hub_{name}", "counter", words)
        for labels, one in found:
            page.add(f"gpufleet_hub_{name}", labels, getattr(one, field))
    _single(page, "discovery_refused_files", "gauge", "Files of targets that cannot be read", standings.files_refused)
    words = "Targets in those files that are not asked"
    _single(page, "discovery_refused_targets", "gauge", words, standings.targets_refused)


def _forward(page: Page, forwarder: Forwarder) -> None:
    """Add the way to a database."""
    stats, queue = forwarder.stats, forwarder.queue
    for name, words, count in (
        ("queued_points_total", "Points that went into the queue for the database", stats.queued),
        ("taken_points_total", "Points that the database has taken", stats.taken),
        ("rejected_points_total", "Points that the database will not take", stats.rejected),
        ("late_points_total", "Values left out because newer ones of theirs had been passed on", stats.late),
        ("lost_batches_total", "Batches whose points could not be made or queued", stats.lost),
        ("dropped_requests_total", "Requests that the full queue let go of, since it was made", queue.dropped),
        ("failures_total", "Posts to the database that were made again", stats.failures),
    ):
        _single(page, f"forward_{name}", "counter", words, count)
    _single(page, "forward_waiting_requests", "gauge", "Requests that wait for the database", queue.requests)
    _single(page, "forward_waiting_bytes", "gauge", "Bytes of those requests on disk", queue.bytes)
    if stats.last_success is not None:
        at = stats.last_success / NANOS
        _single(page, "forward_last_success_timestamp_seconds", "gauge", "When the database last took anything", at)


def _single(page: Page, name: str, kind: str, words: str, value: float) -> None:
    page.declare(f"gpufleet_hub_{name}", kind, words)
    page.add(f"gpufleet_hub_{name}", "", value)


def _by_label(page: Page, name: str, words: str, label: str, counts: Mapping[str, int]) -> None:
    page.declare(f"gpufleet_hub_{name}", "counter", words)
    for value, count in sorted(dict(counts).items()):
        page.add(f"gpufleet_hub_{name}", labelled({label: value}), count)
