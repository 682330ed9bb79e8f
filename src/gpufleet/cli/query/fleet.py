"""`gpufleet query fleet` and `senders`: freshness of clusters and of what reports for them."""

from collections.abc import Mapping, Sequence

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import (
    HUB_URL,
    CaOption,
    Columns,
    HubUrl,
    Json,
    Limit,
    Sort,
    States,
    TokenFileOption,
    Watch,
    Wide,
)
from gpufleet.cli.query.cells import Parts, age_cell, count_cell, expectation_line, state_cell, time_cell
from gpufleet.cli.query.findings import evaluation_text
from gpufleet.cli.query.request import LIVENESS_STATES, make_layout, query_and_print
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.model.api.answer import Coverage
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.api.kubernetes import ClusterCollection, CollectionState
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.finding import Severity
from gpufleet.model.liveness import State
from gpufleet.model.text import printable


def fleet(
    hub: HubUrl = HUB_URL,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show clusters: freshness, completeness, and GPUs reporting."""
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)
    query_and_print(hub, "/v1/fleet", {}, FleetAnswer, fleet_tables, Access(token_file, ca), layout, json, watch)


def senders(
    hub: HubUrl = HUB_URL,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show senders: delay, spool and missing batches."""
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)
    access = Access(token_file, ca)
    query_and_print(hub, "/v1/senders", {}, tuple[SenderRecord, ...], senders_tables, access, layout, json, watch)


def fleet_tables(found: FleetAnswer) -> Parts:
    """Return a table with a row per cluster, and remarks."""
    rows = []
    for one in found.clusters:
        fresh = one.freshness
        if fresh is None:
            continue
        age = None if fresh.last_seen_at is None else (found.at - fresh.last_seen_at).total_seconds()
        rows.append(
            (
                one.cluster.id,
                state_cell(fresh.liveness),
                Cell() if age is None else age_cell(age),
                _coverage_cell(one.coverage),
                _states(fresh.machines),
                time_cell(fresh.complete_up_to),
                count_cell(fresh.missing_batches),
                _findings_text(one.findings),
                *_collection_cells(one.collection),
                "; ".join([*fresh.liveness.partial, *fresh.liveness.suspect]),
            )
        )
    columns = (
        TextColumn("cluster"),
        TextColumn("state"),
        TextColumn("seen", rank=3, right=True),
        TextColumn("gpus", right=True),
        TextColumn("machines", rank=2, cut=True),
        TextColumn("complete", rank=4),
        TextColumn("missing", rank=1, right=True),
        TextColumn("findings", rank=2),
        TextColumn("kubernetes", wide=True),
        TextColumn("api-server", wide=True),
        TextColumn("collected", wide=True, right=True),
        TextColumn("partial-or-suspect", rank=1, wrap=True),
    )
    notes = [
        found.summary,
        f"Open findings: {_findings_text(found.findings) or 'unknown'}.",
        "" if found.evaluation.is_current else evaluation_text(found.evaluation),
        *(expectation_line(one.coverage) for one in found.clusters),
    ]
    notes += [_collection_line(one) for one in found.clusters]
    if found.hub.rejecting:
        notes.append("The hub is rejecting batches: time without heartbeat is not counted.")
    return [TextTable(columns, rows, "clusters"), *filter(None, notes)]


def _findings_text(counts: Mapping[Severity, int] | None) -> str:
    """Return the number of open findings by severity; empty if it is unknown."""
    if counts is None:
        return ""
    return ", ".join(f"{counts[one]} {one.value}" for one in Severity if counts.get(one)) or "none"


def _coverage_cell(found: Coverage | None) -> Cell:
    if found is None:
        return Cell()
    expected = "?" if found.expected is None else str(found.expected)
    return Cell(f"{found.reporting} of {expected}", full=found.summary, key=found.reporting)


def _collection_cells(found: ClusterCollection | None) -> tuple[Cell | str, ...]:
    """Return the state of the collection of Kubernetes objects, the version of the API server, and the age."""
    if found is None or not found.collectors:
        return "", "", Cell()
    newest = found.collectors[0]
    return found.state.value, printable(newest.server_version), age_cell(newest.age_seconds)


def _collection_line(one: ClusterRecord) -> str:
    """Return a remark on a cluster whose Kubernetes objects are not all known; empty if it never had a collector."""
    found = one.collection
    if found is None or not found.collectors or found.state is CollectionState.CURRENT:
        return ""
    return printable(f"Kubernetes objects of {one.cluster.id}: {found.state}: {found.detail}.")


def _states(counted: Mapping[State, int]) -> str:
    return ", ".join(f"{count} {state.value}" for state, count in counted.items())


def senders_tables(found: Sequence[SenderRecord]) -> Parts:
    """Return a table with a row per sender."""
    rows = [
        (
            one.sender,
            one.cluster,
            state_cell(one.liveness),
            one.version,
            _seen_cell(one),
            Cell() if one.queue_records is None else count_cell(one.queue_records),
            time_cell(one.oldest_unsent),
            Cell() if one.dropped_total is None else count_cell(one.dropped_total),
            count_cell(one.missing),
            "" if one.conflict is None else f"{one.conflict.batches} batches: {one.conflict.detail}",
        )
        for one in found
    ]
    columns = (
        TextColumn("sender"),
        TextColumn("cluster", rank=1),
        TextColumn("state"),
        TextColumn("version", rank=5),
        TextColumn("seen", rank=3, right=True),
        TextColumn("queued", rank=2, right=True),
        TextColumn("oldest-unsent", rank=6),
        TextColumn("dropped", rank=4, right=True),
        TextColumn("missing", rank=1, right=True),
        TextColumn("conflict", rank=1, cut=True),
    )
    return [TextTable(columns, rows, "senders")]


def _seen_cell(found: SenderRecord) -> Cell:
    """Return the age of the last report, or of the last answer of a polled target; empty if it never answered."""
    if found.last_seen_at is None:
        return Cell()
    return age_cell(found.age_seconds + (found.received_at - found.last_seen_at).total_seconds())
