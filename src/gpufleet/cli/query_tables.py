"""A hub's answers as tables for people: ages and sizes in words, and a reason wherever there is no value."""

import io
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpufleet.exporters.words import bytes_words, event_words, percent_words, seconds_words, value_words
from gpufleet.model.access import AuditRecord
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, Allocation
from gpufleet.model.api.answer import (
    AllocationAnswer,
    Coverage,
    EventsAnswer,
    GpuPage,
    MachinePage,
    NodePage,
    ProcessesAnswer,
    SenderRecord,
    SeriesAnswer,
)
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.api.inventory import GpuChangePage, GpuPool
from gpufleet.model.api.sql import SqlAnswer, SqlViewRecord
from gpufleet.model.api.usage import UsageAnswer, UsageRow
from gpufleet.model.event import EventReport
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.reading import Reading
from gpufleet.model.view import Scope

STATE = ("gpu_state", "state")

SHOWN = (
    ("gpu_utilization_ratio", "util"),
    ("gpu_memory_used_bytes", "mem used"),
    ("gpu_memory_total_bytes", "mem total"),
    ("gpu_temperature_celsius", "temp"),
    ("gpu_power_watts", "power"),
)
"""Readings that a row about a GPU shows, with the column's title."""


PROCESS_TITLES = ("device", "process", "name", "kinds", "memory", "SMs", "memory busy", "encoder", "decoder", "read")


def render(tables: Iterable[Table | str], *, width: int, colour: bool) -> str:
    """Write tables and lines one below the other."""
    page = io.StringIO()
    console = Console(file=page, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    for table in tables:
        console.print(table)
    return page.getvalue()


def fleet(found: FleetAnswer) -> list[Table | str]:
    """One row a cluster, and what is wrong with it."""
    rows = []
    for one in found.clusters:
        fresh = one.freshness
        if fresh is None:
            continue
        age = None if fresh.heard_at is None else (found.at - fresh.heard_at).total_seconds()
        words = [*fresh.liveness.partial, *fresh.liveness.suspect]
        rows.append(
            (
                one.cluster.id,
                fresh.liveness.state.value + (", not verified" if fresh.liveness.unverified else ""),
                "never" if age is None else _age(max(0.0, age)),
                "" if one.coverage is None else one.coverage.words,
                _states(fresh.machines),
                "" if fresh.complete_up_to is None else f"{fresh.complete_up_to:%Y-%m-%d %H:%M:%S}Z",
                str(fresh.missing_batches),
                "; ".join(words),
            )
        )
    titles = (
        "cluster",
        "state",
        "heard",
        "GPUs reporting",
        "machines",
        "complete up to",
        "missing",
        "partial or suspect",
    )
    lines: list[Table | str] = [_table(titles, rows, "clusters"), found.words]
    lines += [escape(_clean(said)) for one in found.clusters if (said := _expectations(one.coverage))]
    if found.hub.deaf:
        lines.append("The hub turns batches away just now: nobody's silence is counted.")
    return lines


def _states(counted: Mapping[State, int]) -> str:
    return ", ".join(f"{count} {state.value}" for state, count in counted.items())


def nodes(page: NodePage) -> list[Table | str]:
    """One row a node, and how many GPUs report of those that should."""
    rows = [
        (
            one.machine.machine.name,
            one.machine.id,
            one.machine.cluster,
            f"{one.gpus_reporting} of {one.gpus}",
            _heard(one.machine.liveness, one.machine.age_seconds),
            one.machine.conflict or one.last_error or "",
        )
        for one in page.items
    ]
    table = _table(("node", "id", "cluster", "GPUs reporting", "heard", "conflict or last error"), rows, "nodes")
    return [table, *_coverage(page.coverage)]


def changes(found: GpuChangePage) -> list[Table | str]:
    """One row a change."""
    rows = [
        (
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.kind.value,
            one.node or one.machine,
            one.pci_address,
            one.device,
            one.before_device or f"{one.before_machine} {one.before_pci_address}",
        )
        for one in found.items
    ]
    table = _table(("at (UTC)", "kind", "machine", "slot", "device", "before"), rows, "changes")
    return [table, *(["there are more: raise --limit, or ask about less time"] if found.next is not None else [])]


def pools(found: Sequence[GpuPool]) -> list[Table | str]:
    """One row for GPUs that are alike."""
    rows = [
        (
            one.cluster,
            one.name or "not told",
            one.side,
            one.driver or "not told",
            one.vbios or "not told",
            str(one.gpus),
            str(one.machines),
        )
        for one in found
    ]
    return [_table(("cluster", "GPU", "seen by", "driver", "VBIOS", "GPUs", "machines"), rows, "GPUs")]


def sql(found: SqlAnswer) -> list[Table | str]:
    """The rows of a statement's answer, and how many they are."""
    rows = [tuple("" if cell is None else str(cell) for cell in row) for row in found.rows]
    return [_table(found.columns, rows, "rows"), f"{len(rows)} rows in {found.seconds:.2f} s"]


def sql_views(found: Sequence[SqlViewRecord]) -> list[Table | str]:
    """One row a view."""
    rows = [(one.name, one.help, ", ".join(column.name for column in one.columns[:12])) for one in found]
    return [_table(("view", "one row is", "columns begin"), rows, "views")]


def events(found: EventsAnswer) -> list[Table | str]:
    """One row an event."""
    rows = [
        (
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.node or one.machine,
            one.device or "machine",
            f"{one.kind} {one.code}" if one.code else one.kind,
            event_words(one.attributes),
        )
        for one in found.events
    ]
    more = ["There are more, older ones: --limit, --since or --json with `cursor`."] if found.next else []
    return [_table(("at (UTC)", "node", "device", "event", "what"), rows, "events"), *more]


def event_reports(found: Sequence[EventReport]) -> list[Table | str]:
    """One row an event of one machine."""
    rows = [
        (
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.uuid or one.pci_address or "machine",
            f"{one.kind} {one.code}" if one.code else one.kind,
            event_words(one.attributes),
        )
        for one in found
    ]
    return [_table(("at (UTC)", "device", "event", "what"), rows, "events")]


def allocations(found: Sequence[Allocation]) -> list[Table | str]:
    """One row an allocation."""
    rows = []
    for one in found:
        target = one.spec.target
        begin, end = one.spec.valid_from, one.closed_at or one.spec.valid_to
        rows.append(
            (
                one.id,
                one.spec.kind.value,
                target.cluster,
                getattr(target, REQUIRED_TARGET_FIELD[one.spec.kind]) or "",
                one.spec.tenant or "",
                one.spec.team or "",
                f"{begin:%Y-%m-%d %H:%M:%SZ}" if begin else "",
                f"{end:%Y-%m-%d %H:%M:%SZ}" if end else "open",
            )
        )
    titles = ("allocation", "kind", "cluster", "target", "tenant", "team", "from", "to")
    return [_table(titles, rows, "allocations")]


def machines(page: MachinePage) -> list[Table | str]:
    """One row a machine, and how many GPUs report of those that should."""
    rows = [
        (
            one.machine.name,
            one.id,
            one.cluster,
            one.machine.kind.value,
            str(one.gpus),
            one.sender,
            _heard(one.liveness, one.age_seconds),
            one.conflict or "",
        )
        for one in page.items
    ]
    table = _table(("machine", "id", "cluster", "kind", "GPUs", "sender", "heard", "conflict"), rows, "machines")
    return [table, *_coverage(page.coverage)]


def gpus(page: GpuPage) -> list[Table | str]:
    """One row a view, and how many GPUs report of those that should."""
    rows = [
        (
            one.node,
            "" if one.index is None else str(one.index),
            one.device.id,
            one.device.name or "",
            one.device.side.value,
            *(_reading(one.device.readings.get(metric), metric) for metric, _ in (STATE, *SHOWN)),
            _age(one.age_seconds),
        )
        for one in page.items
    ]
    titles = ("node", "index", "id", "name", "side", *(title for _, title in (STATE, *SHOWN)), "age")
    return [_table(titles, rows, "GPUs"), *_coverage(page.coverage)]


def processes(found: ProcessesAnswer) -> list[Table | str]:
    """One row a process, or a device that nobody uses."""
    rows: list[tuple[str, ...]] = []
    for table in found.devices:
        age = f"late, {_age(table.age_seconds)}" if table.stale else _age(table.age_seconds)
        if not table.processes:
            rows.append((table.device, "nobody", *[""] * (len(PROCESS_TITLES) - 3), age))
        for one in table.processes:
            cells = [_process_reading(one.readings.get(name), name) for name in PROCESS_READINGS]
            rows.append((table.device, str(one.pid), one.name, ",".join(one.kinds), *cells, age))
    cut = [
        escape(_clean(f"{one.device}: {one.total} processes, the {len(one.processes)} that hold the most memory"))
        for one in found.devices
        if one.total > len(one.processes)
    ]
    return [_table(PROCESS_TITLES, rows, f"table of processes of {found.node} within the hour"), *cut]


def _coverage(found: Sequence[Coverage]) -> list[Table | str]:
    lines = []
    for one in found:
        lines += [f"GPUs reporting in cluster {one.cluster}: {one.words}", _expectations(one)]
    return [escape(_clean(words)) for words in lines if words]


def _expectations(found: Coverage | None) -> str:
    """Say who expects how many GPUs, where they do not agree or Kubernetes is among them."""
    if found is None:
        return ""
    sources = found.sources
    told = [
        (name, count)
        for name in ("registration", "pci", "nvml", "kubernetes")
        if (count := getattr(sources, name)) is not None
    ]
    if not found.kubernetes and len({count for _, count in told}) < 2:
        return ""
    words = ", ".join(f"{count} by {name}" for name, count in told)
    if found.kubernetes_shares:
        words += f" ({found.kubernetes_shares} of them shares of GPUs)"
    said = "; ".join(
        f"{one.reader} says {one.gpus} of {one.machines} nodes"
        f"{'' if one.allocatable is None else f', {one.allocatable} allocatable'}, {one.received_at:%H:%M:%S}Z"
        for one in found.kubernetes
    )
    return f"GPUs of cluster {found.cluster}: {words}{f' ({said})' if said else ''}"


def senders(found: Sequence[SenderRecord]) -> list[Table | str]:
    """One row a sender."""
    rows = [
        (
            one.sender,
            one.cluster,
            one.version,
            _heard(one.liveness, one.age_seconds),
            "" if one.queue_records is None else str(one.queue_records),
            "" if one.oldest_unsent is None else f"{one.oldest_unsent:%Y-%m-%d %H:%M:%S}Z",
            "" if one.dropped_total is None else str(one.dropped_total),
            str(one.missing),
            "" if one.conflict is None else f"{one.conflict.batches} batches: {one.conflict.detail}",
        )
        for one in found
    ]
    titles = ("sender", "cluster", "version", "heard", "queued", "oldest unsent", "dropped", "missing", "conflict")
    return [_table(titles, rows, "senders")]


def audit(found: Sequence[AuditRecord]) -> list[Table | str]:
    """One row an entry."""
    rows = [
        (
            str(one.number),
            f"{one.entry.at:%Y-%m-%d %H:%M:%S}Z",
            one.entry.actor,
            f"{one.entry.method} {one.entry.path}",
            str(one.entry.status or ""),
            one.entry.detail,
        )
        for one in found
    ]
    lines: list[Table | str] = [_table(("number", "at", "actor", "what", "status", "detail"), rows, "entries")]
    if found and found[-1].number > 1:
        lines.append(f"older ones: --before {found[-1].number}")
    return lines


def allocation(found: AllocationAnswer) -> list[Table | str]:
    """Who answers, the totals, and one row a device."""
    spec = found.allocation.spec
    head = f"allocation {found.allocation.id}: {spec.kind.value}, source {found.source.value}"
    if found.reason is not None:
        head += f", {found.reason.value}" + (f" ({found.detail})" if found.detail else "")
    if found.age_seconds is not None:
        head += f", {_age(found.age_seconds)}"
    lines: list[Table | str] = [escape(head)]
    if found.last_error:
        lines.append(escape(f"last error: {found.last_error}"))
    totals = [
        (metric, total.operation, value_words(metric, total.value), f"{total.reporting} of {total.devices}")
        for metric, total in found.aggregate.metrics.items()
        if total.value is not None
    ]
    lines.append(escape(f"GPUs reporting: {found.aggregate.coverage}"))
    if totals:
        lines.append(_table(("metric", "total", "value", "devices"), totals, "totals"))
    if found.devices:
        rows = [
            (
                one.uuid or one.pci_address or one.id,
                one.name or "",
                one.side.value,
                *(_reading(one.readings.get(metric), metric) for metric, _ in SHOWN),
            )
            for one in found.devices
        ]
        lines.append(_table(("device", "name", "side", *(title for _, title in SHOWN)), rows, "devices"))
    if found.host:
        values = [(metric, _reading(reading, metric)) for metric, reading in found.host.items()]
        lines.append(_table(("host", "value"), values, "host readings"))
    return lines


def series(found: SeriesAnswer) -> list[Table | str]:
    """One table a series; a step in which nothing was measured shows a dash."""
    lines: list[Table | str] = [escape(f"allocation {found.allocation.id}: source {found.source.value}")]
    if found.reason is not None:
        lines.append(escape(f"{found.reason.value}: {found.detail}"))
    for one in found.series:
        rows = [
            (f"{point.at:%Y-%m-%d %H:%M:%S}Z", "-" if point.value is None else value_words(one.metric, point.value))
            for point in one.points
        ]
        title = one.metric if one.device is None else f"{one.metric} of {one.device}"
        lines += [escape(title), _table(("start of step", "value"), rows, "points")]
    if not found.series and found.reason is None:
        lines.append("nothing was measured in that time")
    return lines


def usage(found: UsageAnswer) -> list[Table | str]:
    """One row a group, the total at the end, and what is not wholly accounted for."""
    titles = (*(one.value for one in found.group_by), "GPUs", "held", "used", "idle", "unknown", "energy", "cost")
    empty = [""] * max(0, len(found.group_by) - 1)
    total = ["total", *empty] if found.group_by else []
    rows = [
        (*(one.group[name] or "-" for name in found.group_by), *_usage_cells(one, found.currency)) for one in found.rows
    ]
    rows.append((*total, *_usage_cells(found.total, found.currency)))
    lines: list[Table | str] = [
        f"{found.start:%Y-%m-%d %H:%M:%S}Z to {found.end:%Y-%m-%d %H:%M:%S}Z, in GPU-hours",
        _table(titles, rows, "usage"),
        escape(_clean(found.words)),
    ]
    if found.unplaced:
        unplaced = [(one.allocation, f"{one.devices:g}", one.reason.value, one.detail) for one in found.unplaced]
        lines.append(_table(("allocation", "GPUs missing", "why", "words"), unplaced, "allocations"))
    return lines


def _usage_cells(row: UsageRow, currency: str | None) -> tuple[str, ...]:
    hours = (row.held_gpu_hours, row.used_gpu_hours, row.idle_gpu_hours, row.unknown_gpu_hours)
    energy = "-" if row.energy_kwh is None else f"{row.energy_kwh:.3f} kWh ({row.energy_source})"
    cost = f"({row.cost_absent})" if row.cost is None else f"{row.cost:.2f} {currency or ''}".strip()
    return (str(row.gpus), *(f"{one:.3f}" for one in hours), energy, cost)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], what: str) -> Table | str:
    if not rows:
        return f"no {what}"
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_clean(cell)) for cell in row))
    return table


def _clean(text: str) -> str:
    """Take control characters out: names and errors come from other machines."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _reading(reading: Reading | None, metric: str) -> str:
    """Write a value, and what it is about unless that is the device itself; or in brackets why there is none."""
    if reading is None or reading.value is None:
        return f"({reading.absent.value if reading and reading.absent else 'not_reported'})"
    words = value_words(metric, reading.value)
    return words if reading.scope is Scope.OWN else f"{words} ({reading.scope})"


def _process_reading(reading: Reading | None, name: str) -> str:
    if reading is None or reading.value is None or isinstance(reading.value, str):
        return f"({reading.absent.value if reading and reading.absent else 'not_reported'})"
    return bytes_words(reading.value) if PROCESS_READINGS[name].unit == "bytes" else percent_words(reading.value)


def _heard(liveness: Liveness | None, age_seconds: float) -> str:
    """Say when something was heard of, and what is to be thought of that unless it is live."""
    if liveness is None or liveness.state is State.LIVE:
        return _age(age_seconds)
    if liveness.state is State.NEVER_SEEN:
        return f"{liveness.state.value}, named {_age(age_seconds)}"
    return f"{liveness.state.value}{', not verified' if liveness.unverified else ''}, {_age(age_seconds)}"


def _age(seconds: float) -> str:
    return f"{seconds_words(seconds)} ago"
