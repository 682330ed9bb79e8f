"""Metrics page of the hub (Prometheus text)."""

from collections.abc import Mapping, Sequence

from gpufleet import __version__
from gpufleet.exporters.exposition import MetricsPage, format_labels
from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.forward.forwarder import SeriesForwarder
from gpufleet.hub.imports.scrape_status import TargetStatuses
from gpufleet.hub.notify.stats import ReceiverStats
from gpufleet.hub.query.status import HubStatus, RuleStatus
from gpufleet.model.api.fleet import HubIngestState
from gpufleet.model.liveness import State
from gpufleet.model.time import NANOS

CONTENT_TYPE = "text/plain; version=0.0.4"  # the framework adds the charset


def render(status: HubStatus, senders: Mapping[tuple[str, State], int], ingest_state: HubIngestState) -> bytes:
    """Return the page; `senders` is the number of senders by cluster and state."""
    counters = status.counters
    page = MetricsPage()
    for name, text, count in (
        ("received_bodies_total", "Complete bodies received", counters.received_bodies),
        ("received_bytes_total", "Bytes of complete bodies received", counters.received_bytes),
        ("accepted_batches_total", "New batches acknowledged", counters.accepted),
        ("duplicate_batches_total", "Duplicate batches acknowledged", counters.duplicates),
        ("flushed_batches_total", "Batches written to the store", counters.flushed_batches),
        ("flushed_rows_total", "Sample rows written to the store", counters.flushed_rows),
        ("rollups_total", "Hours of samples rolled up", counters.rolled_hours),
        ("rollup_rebuilds_total", "Hours rolled up again because of late samples", counters.rerolled_hours),
        ("rollup_failures_total", "Failed rollups", counters.rollup_failures),
        ("imported_samples_total", "Samples received by remote write, OTLP or federation", counters.imported_samples),
        ("unrecognised_samples_total", "Imported samples of unknown projects, ignored", counters.unrecognised_samples),
        ("unattributed_samples_total", "Imported samples without a device or machine", counters.unattributed_samples),
        ("wal_lost_batches_total", "Acknowledged batches lost or damaged on disk", status.wal_lost),
        ("future_rows_total", "Rows, events and holdings dropped for a time in the future", counters.future_rows),
        (
            "other_name_rows_total",
            "Imported rows, events and holdings dropped because the machine with their host name had another one then",
            counters.other_name_rows,
        ),
        ("repeated_rows_total", "Rows dropped because they repeat another row of their batch", counters.repeated_rows),
        ("dropped_objects_total", "Kubernetes objects without a valid identity", counters.dropped_objects),
        ("forbidden_requests_total", "Requests rejected because of the token's role", counters.forbidden),
        ("flush_failures_total", "Failed flushes, which are retried", counters.flush_failures),
        ("ingesting_seconds_total", "Time in which the hub accepted batches", ingest_state.ingesting_seconds),
        (
            "not_ingesting_seconds_total",
            "Time in which the hub was stalled or rejected batches",
            ingest_state.not_ingesting_seconds,
        ),
    ):
        _single(page, name, "counter", text, count)
    for name, text, value in (
        ("wal_records", "Acknowledged batches not yet in the store", status.wal_records),
        ("wal_bytes", "Bytes on disk of batches not yet in the store", status.wal_bytes),
        ("pending_bytes", "Bytes of bodies being received or written to the log", status.pending_bytes),
        ("missing_batches", "Sequence numbers not received, over all senders", status.missing_batches),
        ("flush_lag_seconds", "Age of the oldest batch not yet in the store", status.flush_lag_seconds),
        ("consecutive_flush_failures", "Failed flushes since the last success", status.consecutive_flush_failures),
    ):
        _single(page, name, "gauge", text, value)
    if counters.last_flush_at:
        at = counters.last_flush_at / NANOS
        _single(page, "last_flush_seconds", "gauge", "Duration of the last flush", counters.last_flush_seconds)
        _single(page, "last_flush_timestamp_seconds", "gauge", "Time of the last successful flush", at)
    page.declare("gpufleet_hub_senders", "gauge", "Senders by liveness state")
    for (cluster, state), count in sorted(senders.items()):
        page.add("gpufleet_hub_senders", format_labels({"cluster": cluster, "state": state.value}), count)
    for name, text, label, counts in (
        ("rejected_batches_total", "Batches rejected, by reason", "reason", counters.rejected),
        ("rejected_samples_total", "Imported samples rejected, by reason", "reason", counters.import_problems),
        ("unauthenticated_requests_total", "Requests without a valid token", "reason", counters.unauthenticated),
        ("task_restarts_total", "Restarts of crashed tasks", "task", counters.task_restarts),
        ("quarantined_batches_total", "Batches quarantined, by step", "step", counters.quarantined),
        ("unknown_metrics_total", "Values of metrics missing in the catalogue", "metric", counters.unknown_metrics),
        ("uncached_series_total", "Series parsed again because the cache is full", "writer", counters.uncached_series),
        ("unknown_labels_total", "New series of known projects by unknown label", "label", counters.unknown_labels),
        ("unrecognised_metrics_total", "Samples of unknown projects", "metric", counters.unrecognised_metrics),
        ("invalid_values_total", "Values outside the catalogue's range", "metric", counters.invalid_values),
    ):
        _by_label(page, name, text, label, counts)
    _pulls(page, status.target_statuses)
    if status.forwarder is not None:
        _forward(page, status.forwarder)
    if status.rules is not None:
        _rules(page, status.rules)
    if status.contract is not None:
        _contract(page, status.contract)
    _notify(page, status.receivers)
    page.declare("gpufleet_hub_build_info", "gauge", "Version of gpufleet; always 1")
    page.add("gpufleet_hub_build_info", format_labels({"version": __version__}), 1)
    return page.encode()


def _pulls(page: MetricsPage, target_statuses: TargetStatuses) -> None:
    """Add the status of pulled targets and of target files."""
    found = [(format_labels({"cluster": who[0], "sender": who[1]}), one) for who, one in target_statuses]
    page.declare("gpufleet_hub_pull_up", "gauge", "1 if the last pull of the target succeeded")
    for labels, one in found:
        if one.up is not None:
            page.add("gpufleet_hub_pull_up", labels, int(one.up))
    for name, text, field in (
        ("pull_successes_total", "Successful pulls of a target", "answers"),
        ("pull_failures_total", "Failed pulls of a target", "failures"),
        ("pull_dropped_total", "Successful pulls whose data could not be ingested", "lost"),
    ):
        page.declare(f"gpufleet_hub_{name}", "counter", text)
        for labels, one in found:
            page.add(f"gpufleet_hub_{name}", labels, getattr(one, field))
    for name, text, count in (
        ("discovery_refused_files", "Target files that cannot be read", target_statuses.files_refused),
        ("discovery_refused_targets", "Targets in these files that are left out", target_statuses.targets_refused),
    ):
        _single(page, name, "gauge", text, count)


def _forward(page: MetricsPage, forwarder: SeriesForwarder) -> None:
    """Add the status of forwarding to a database."""
    stats, queue = forwarder.stats, forwarder.queue
    for name, text, count in (
        ("queued_points_total", "Points queued for the database", stats.queued),
        ("accepted_points_total", "Points accepted by the database", stats.accepted),
        ("rejected_points_total", "Points rejected by the database", stats.rejected),
        ("late_points_total", "Points left out because newer ones of their series were forwarded", stats.late),
        ("lost_batches_total", "Batches that could not be converted or queued", stats.lost),
        ("dropped_requests_total", "Requests dropped from the full queue since it was created", queue.dropped),
        ("failures_total", "Failed posts to the database, which are retried", stats.failures),
    ):
        _single(page, f"forward_{name}", "counter", text, count)
    _single(page, "forward_queue_requests", "gauge", "Requests queued for the database", queue.requests)
    _single(page, "forward_queue_bytes", "gauge", "Bytes on disk of queued requests", queue.bytes)
    if stats.last_success is not None:
        at = stats.last_success / NANOS
        _single(page, "forward_last_success_timestamp_seconds", "gauge", "Time of the last accepted request", at)


def _rules(page: MetricsPage, rules: RuleStatus) -> None:
    """Add the open findings, and the status of the evaluation of the rules."""
    page.declare("gpufleet_findings", "gauge", "Open findings; the cluster of a finding about the hub itself is empty")
    for (rule, severity, state, cluster), count in sorted(rules.counts().items()):
        labels = {"rule": rule, "severity": severity.value, "state": state.value, "cluster": cluster}
        page.add("gpufleet_findings", format_labels(labels), count)
    at = None if rules.at is None else rules.at / NANOS
    for name, text, value in (
        ("evaluation_seconds", "Duration of the last evaluation of the rules", rules.seconds),
        ("subjects", "Subjects that the rules judge", rules.subjects),
        ("untracked", "Subjects for which a rule fires beyond the limit on findings", rules.untracked),
        ("last_evaluation_timestamp_seconds", "Time of the last evaluation of the rules", at),
    ):
        if value is not None:
            _single(page, f"findings_{name}", "gauge", text, value)
    text = "Evaluations without a part of the facts, or whose result could not be stored"
    _by_label(page, "findings_errors_total", text, "part", rules.errors)


def _contract(page: MetricsPage, contract: ContractVerdicts) -> None:
    """Add the items of the adoption contract of each cluster by status."""
    text = "Items of the adoption contract that apply to the tier of the cluster, by status"
    page.declare("gpufleet_contract_items", "gauge", text)
    for (cluster, status), count in sorted(contract.counts().items()):
        page.add("gpufleet_contract_items", format_labels({"cluster": cluster, "status": status.value}), count)


def _notify(page: MetricsPage, receivers: Sequence[ReceiverStats]) -> None:
    """Add the status of the receivers of findings."""
    found = [(format_labels({"receiver": one.name}), one) for one in receivers]
    for name, text, field in (
        ("sent_total", "Notifications of findings that the receiver accepted", "sent"),
        ("failures_total", "Failed notifications of findings, which are retried", "failures"),
        ("dead_total", "Notifications of findings that were rejected or given up", "dead"),
    ):
        page.declare(f"gpufleet_hub_notify_{name}", "counter", text)
        for labels, one in found:
            page.add(f"gpufleet_hub_notify_{name}", labels, getattr(one, field))
    page.declare("gpufleet_hub_notify_lag", "gauge", "Transitions of findings that the receiver does not have yet")
    name = "gpufleet_hub_notify_last_success_timestamp_seconds"
    page.declare(name, "gauge", "Time of the last accepted notification")
    for labels, one in found:
        page.add("gpufleet_hub_notify_lag", labels, one.lag)
        if one.last_success is not None:
            page.add(name, labels, one.last_success / NANOS)


def _single(page: MetricsPage, name: str, kind: str, text: str, value: float) -> None:
    page.declare(f"gpufleet_hub_{name}", kind, text)
    page.add(f"gpufleet_hub_{name}", "", value)


def _by_label(page: MetricsPage, name: str, text: str, label: str, counts: Mapping[str, int]) -> None:
    page.declare(f"gpufleet_hub_{name}", "counter", text)
    for value, count in sorted(dict(counts).items()):
        page.add(f"gpufleet_hub_{name}", format_labels({label: value}), count)
