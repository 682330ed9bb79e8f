"""`gpufleet query nodes` and `machines`."""

from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import quote

import typer

from gpufleet.cli.fetch import Access, get_pages
from gpufleet.cli.options import (
    HUB_URL,
    TIME,
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
from gpufleet.cli.query.cells import (
    Parts,
    age_cell,
    count_cell,
    coverage_lines,
    model_cell,
    node_holders_cell,
    reading_cell,
    state_cell,
    time_cell,
    uncertain_notes,
    watts_text,
)
from gpufleet.cli.query.request import (
    LIVENESS_STATES,
    ClusterFilter,
    Parameters,
    decode_answer,
    make_layout,
    query_and_print,
    query_pages,
)
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.exporters.display import included_text, percent_text
from gpufleet.fleet.attribution.reported import unresolved_total
from gpufleet.model.api.answer import MachinePage, MachineRecord, NodeGpus, NodeGpusPage, NodePage, NodeRecord
from gpufleet.model.api.probe import ProbeChangePage
from gpufleet.model.reading import Value
from gpufleet.model.text import bounded, printable

MAX_SHOWN_NAME = 48
"""Maximum length of an unresolved device name in a table."""

SUMMARY_NODES = 200
"""Nodes per request for the GPUs of nodes: the hub reads every sample of their GPUs."""


def nodes(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
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
    """Show nodes: GPUs, model, utilisation, power, holder, freshness, newest error."""
    access, query = Access(token_file, ca), {"cluster": cluster}
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)

    def with_gpus(page: NodePage) -> list[TextTable | str]:
        gpus: dict[str, NodeGpus] = {}
        if page.items:
            most = None if limit is None or sort or state else limit
            body = get_pages(hub, "/v1/nodes/gpus", query, access, most, page_size=SUMMARY_NODES)
            gpus = {one.machine: one for one in decode_answer(body, NodeGpusPage, hub).items}
        return nodes_tables(page, gpus)

    query_pages(hub, "/v1/nodes", query, NodePage, with_gpus, access, layout, json, watch)


def machines(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also show the readings of the performance probe of each machine.")
    ] = False,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show machines, nodes and guests, with their ids."""
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)
    query = {"cluster": cluster, "probe": "true" if probe else None}
    query_pages(hub, "/v1/machines", query, MachinePage, machines_tables, Access(token_file, ca), layout, json, watch)


def probe_changes(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="Id or name of a node or guest.")],
    hub: HubUrl = HUB_URL,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: the oldest change].")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME}; exclusive [default: now].")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of changes.")] = 100,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show changes of the performance probe of a machine, newest first: huge pages, versions, device numbers."""

    def query() -> Parameters:
        return {
            "since": time_parameter("--since", since),
            "until": time_parameter("--until", until),
            "limit": str(limit),
        }

    path = f"/v1/machines/{quote(machine, safe='')}/probe/changes"
    access, layout = Access(token_file, ca), make_layout(wide, columns, sort, as_json=json)
    query_and_print(hub, path, query, ProbeChangePage, probe_change_tables, access, layout, json, watch)


UNKNOWN = "unknown"
"""Model of GPUs that reported no name."""


def nodes_tables(page: NodePage, gpus: Mapping[str, NodeGpus]) -> Parts:
    """Return a table with a row per node, and GPU coverage; `gpus` are the GPUs of each node by its id."""
    rows = [
        (
            one.machine.machine.name,
            one.machine.id,
            one.machine.cluster,
            state_cell(one.machine.liveness),
            Cell(f"{one.gpus_reporting} of {one.gpus}", key=one.gpus_reporting),
            *_load(gpus.get(one.machine.id)),
            _seen_cell(one.machine),
            _unresolved_cell(one.unresolved_devices, one.unresolved_names),
            *_kubernetes_cells(one),
            one.machine.conflict or one.last_error or "",
        )
        for one in page.items
    ]
    columns = (
        TextColumn("node"),
        TextColumn("id", rank=6),
        TextColumn("cluster", rank=8),
        TextColumn("state"),
        TextColumn("gpus", right=True),
        TextColumn("model", rank=4, cut=True),
        TextColumn("util", rank=2, right=True),
        TextColumn("power", rank=3, right=True),
        TextColumn("holder", rank=3, cut=True),
        TextColumn("seen", rank=7, right=True),
        TextColumn("unresolved", wide=True),
        TextColumn("kube-node", wide=True),
        TextColumn("kube-state", wide=True),
        TextColumn("taints", wide=True),
        TextColumn("pool", wide=True),
        TextColumn("error", rank=1, cut=True),
    )
    holders = [holder for one in gpus.values() for holder in one.holders]
    return [TextTable(columns, rows, "nodes"), *uncertain_notes(holders), *coverage_lines(page.coverage)]


def _unresolved_cell(counts: Mapping[str, int | None], names: Mapping[str, Sequence[str]]) -> Cell:
    """Return the cell of the unresolved device names by holder source, with the first name of each source.

    It is empty if none are reported. A source that fails has the number `-`.
    """
    first = {source: f" ({bounded(own[0], MAX_SHOWN_NAME)})" for source, own in names.items() if own}
    shown = {source: "-" if count is None else str(count) for source, count in counts.items() if count != 0}
    named = [f"{source} {count}{first.get(source, '')}" for source, count in shown.items()]
    return Cell(", ".join(named) or ("0" if counts else ""), key=unresolved_total(counts))


def _kubernetes_cells(record: NodeRecord) -> tuple[str, str, str, str]:
    """Return name, state, taints and pool of the Kubernetes node, or the names of all nodes that can be the machine."""
    node = record.kubernetes_node
    if node is None:
        several = record.kubernetes_candidates
        return printable(" or ".join(several)), "conflict" if several else "", "", ""
    ready = {"True": "ready", "False": "not ready", "Unknown": "unknown"}.get(node.ready, "")
    state = ", ".join(filter(None, (ready, "cordoned" if node.cordoned else "")))
    taints = ", ".join(f"{one.key}:{one.effect}" for one in node.taints)
    return printable(node.name), state, printable(taints), printable(", ".join(dict.fromkeys(node.pools.values())))


def _load(found: NodeGpus | None) -> tuple[Cell | str, ...]:
    """Return model, utilisation, power and holder of a node's GPUs."""
    if found is None:
        return "", "", "", ""
    named = {name: count for name, count in found.models.items() if name != UNKNOWN}
    models = ", ".join(
        name if named == found.models and len(named) == 1 else f"{count} x {name}" for name, count in named.items()
    )
    busy, power, gpus = found.utilization_ratio, found.power_watts, sum(found.models.values())
    return (
        model_cell(models),
        Cell() if busy is None else Cell(percent_text(busy) + included_text(found.utilization_gpus, gpus), key=busy),
        Cell() if power is None else Cell(watts_text(power) + included_text(found.power_gpus, gpus), key=power),
        node_holders_cell(found.holders, found.holder_states, found.liveness),
    )


def machines_tables(page: MachinePage) -> Parts:
    """Return a table with a row per machine, and GPU coverage."""
    rows = [
        (
            one.machine.name,
            one.id,
            one.cluster,
            one.machine.kind.value,
            state_cell(one.liveness),
            count_cell(one.gpus),
            one.sender,
            _seen_cell(one),
            one.conflict or "",
        )
        for one in page.items
    ]
    columns = (
        TextColumn("machine"),
        TextColumn("id"),
        TextColumn("cluster", rank=2),
        TextColumn("kind", rank=4),
        TextColumn("state"),
        TextColumn("gpus", rank=3, right=True),
        TextColumn("sender", rank=6),
        TextColumn("seen", rank=5, right=True),
        TextColumn("conflict", rank=1, cut=True),
    )
    return [TextTable(columns, rows, "machines"), *_probe_tables(page), *coverage_lines(page.coverage)]


def _probe_tables(page: MachinePage) -> list[TextTable]:
    """Return a table with a row per reading of the performance probe, if the answer has them."""
    if all(one.probe is None for one in page.items):
        return []
    rows = [
        (
            one.machine.name,
            name.removeprefix("probe_"),
            reading_cell(reading, name),
            "" if reading.absent is None else printable(f"{reading.absent}: {reading.detail}").rstrip(": "),
            Cell() if reading.measured_at is None else reading.measured_at.isoformat(timespec="seconds"),
        )
        for one in page.items
        for name, reading in (one.probe or {}).items()
    ]
    columns = (
        TextColumn("machine"),
        TextColumn("probe"),
        TextColumn("value", wrap=True),
        TextColumn("absent", wrap=True),
        TextColumn("measured", rank=1),
    )
    return [TextTable(columns, rows, "readings of the probe")]


def probe_change_tables(found: ProbeChangePage) -> Parts:
    """Return a table with a row per change."""
    rows = [
        (time_cell(one.at), one.metric.removeprefix("probe_"), _change_cell(one.before), _change_cell(one.value))
        for one in found.items
    ]
    columns = (
        TextColumn("at"),
        TextColumn("probe"),
        TextColumn("before", wrap=True),
        TextColumn("value", wrap=True),
    )
    more = ["There are older changes: raise --limit, or use --until."] if found.next is not None else []
    return [TextTable(columns, rows, "changes"), *more]


def _change_cell(value: Value | None) -> Cell:
    return Cell("absent" if value is None else printable(str(value)))


def _seen_cell(machine: MachineRecord) -> Cell:
    """Return the age of the last report; of a machine that never reported, when it was named."""
    age = age_cell(machine.age_seconds)
    return Cell(f"named {age.text}", key=age.key) if machine.named_only else age
