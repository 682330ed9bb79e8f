"""Tables of a hub's answers for terminals, with absence reasons in place of missing values."""

import io
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpufleet.exporters.display import bytes_text, event_text, percent_text, seconds_text, value_text
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
"""Readings of a GPU row, with column titles."""


PROCESS_TITLES = ("device", "process", "name", "kinds", "memory", "SMs", "memory busy", "encoder", "decoder", "read")


def render(tables: Iterable[Table | str], *, width: int, colour: bool) -> str:
    """Render tables and lines below each other."""
    page = io.StringIO()
    console = Console(file=page, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    for table in tables:
        console.print(table)
    return page.getvalue()


def fleet(found: FleetAnswer) -> list[Table | str]:
    """Return a table with a row per cluster, and remarks."""
    rows = []
    for one in found.clusters:
        fresh = one.freshness
        if fresh is None:
            continue
        age = None if fresh.last_seen_at is None else (found.at - fresh.last_seen_at).total_seconds()
        problems = [*fresh.liveness.partial, *fresh.liveness.suspect]
        rows.append(
            (
                one.cluster.id,
                fresh.liveness.state.value + (", not verified" if fresh.liveness.unverified else ""),
                "never" if age is None else _age(max(0.0, age)),
                "" if one.coverage is None else one.coverage.summary,
                _states(fresh.machines),
                "" if fresh.complete_up_to is None else f"{fresh.complete_up_to:%Y-%m-%d %H:%M:%S}Z",
                str(fresh.missing_batches),
                "; ".join(problems),
            )
        )
    titles = (
        "cluster",
        "state",
        "last seen",
        "GPUs reporting",
        "machines",
        "complete up to",
        "missing",
        "partial or suspect",
    )
    lines: list[Table | str] = [_table(titles, rows, "clusters"), found.summary]
    lines += [escape(_clean(text)) for one in found.clusters if (text := _expectations(one.coverage))]
    if found.hub.rejecting:
        lines.append("The hub is rejecting batches: time without heartbeat is not counted.")
    return lines


def _states(counted: Mapping[State, int]) -> str:
    return ", ".join(f"{count} {state.value}" for state, count in counted.items())


def nodes(page: NodePage) -> list[Table | str]:
    """Return a table with a row per node, and GPU coverage."""
    rows = [
        (
            one.machine.machine.name,
            one.machine.id,
            one.machine.cluster,
            f"{one.gpus_reporting} of {one.gpus}",
            _last_seen(one.machine.liveness, one.machine.age_seconds),
            one.machine.conflict or one.last_error or "",
        )
        for one in page.items
    ]
    table = _table(("node", "id", "cluster", "GPUs reporting", "last seen", "conflict or last error"), rows, "nodes")
    return [table, *_coverage(page.coverage)]


def changes(found: GpuChangePage) -> list[Table | str]:
    """Return a table with a row per change."""
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
    return [
        table,
        *(["There are more changes: raise --limit, or narrow --since and --until."] if found.next is not None else []),
    ]


def pools(found: Sequence[GpuPool]) -> list[Table | str]:
    """Return a table with a row per group of identical GPUs."""
    rows = [
        (
            one.cluster,
            one.name or "unknown",
            one.side,
            one.driver or "unknown",
            one.vbios or "unknown",
            str(one.gpus),
            str(one.machines),
        )
        for one in found
    ]
    return [_table(("cluster", "GPU", "seen by", "driver", "VBIOS", "GPUs", "machines"), rows, "GPUs")]


def sql(found: SqlAnswer) -> list[Table | str]:
    """Return the rows of a statement, and their number."""
    rows = [tuple("" if cell is None else str(cell) for cell in row) for row in found.rows]
    return [_table(found.columns, rows, "rows"), f"{len(rows)} rows in {found.seconds:.2f} s"]


def sql_views(found: Sequence[SqlViewRecord]) -> list[Table | str]:
    """Return a table with a row per SQL view."""
    rows = [(one.name, one.help, ", ".join(column.name for column in one.columns[:12])) for one in found]
    return [_table(("view", "row", "first columns"), rows, "views")]


def events(found: EventsAnswer) -> list[Table | str]:
    """Return a table with a row per event."""
    rows = [
        (
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.node or one.machine,
            one.device or "machine",
            f"{one.kind} {one.code}" if one.code else one.kind,
            event_text(one.attributes),
        )
        for one in found.events
    ]
    more = ["There are older events: use --limit, --since, or --json with `cursor`."] if found.next else []
    return [_table(("at (UTC)", "node", "device", "event", "details"), rows, "events"), *more]


def event_reports(found: Sequence[EventReport]) -> list[Table | str]:
    """Return a table with a row per event of one machine."""
    rows = [
        (
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.uuid or one.pci_address or "machine",
            f"{one.kind} {one.code}" if one.code else one.kind,
            event_text(one.attributes),
        )
        for one in found
    ]
    return [_table(("at (UTC)", "device", "event", "details"), rows, "events")]


def allocations(found: Sequence[Allocation]) -> list[Table | str]:
    """Return a table with a row per allocation."""
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
    """Return a table with a row per machine, and GPU coverage."""
    rows = [
        (
            one.machine.name,
            one.id,
            one.cluster,
            one.machine.kind.value,
            str(one.gpus),
            one.sender,
            _last_seen(one.liveness, one.age_seconds),
            one.conflict or "",
        )
        for one in page.items
    ]
    table = _table(("machine", "id", "cluster", "kind", "GPUs", "sender", "last seen", "conflict"), rows, "machines")
    return [table, *_coverage(page.coverage)]


def gpus(page: GpuPage) -> list[Table | str]:
    """Return a table with a row per view, and GPU coverage."""
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
    """Return a table with a row per process, or per device without processes."""
    rows: list[tuple[str, ...]] = []
    for table in found.devices:
        age = f"late, {_age(table.age_seconds)}" if table.stale else _age(table.age_seconds)
        if not table.processes:
            rows.append((table.device, "none", *[""] * (len(PROCESS_TITLES) - 3), age))
        for one in table.processes:
            cells = [_process_reading(one.readings.get(name), name) for name in PROCESS_READINGS]
            rows.append((table.device, str(one.pid), one.name, ",".join(one.kinds), *cells, age))
    cut = [
        escape(_clean(f"{one.device}: {len(one.processes)} of {one.total} processes, by memory"))
        for one in found.devices
        if one.total > len(one.processes)
    ]
    return [_table(PROCESS_TITLES, rows, f"process tables of {found.node} within the last hour"), *cut]


def _coverage(found: Sequence[Coverage]) -> list[Table | str]:
    lines = []
    for one in found:
        lines += [f"GPUs reporting in cluster {one.cluster}: {one.summary}", _expectations(one)]
    return [escape(_clean(line)) for line in lines if line]


def _expectations(found: Coverage | None) -> str:
    """Return the expected GPUs by source, if the sources differ or include Kubernetes."""
    if found is None:
        return ""
    sources = found.sources
    expected = [
        (name, count)
        for name in ("registration", "pci", "nvml", "kubernetes")
        if (count := getattr(sources, name)) is not None
    ]
    if not found.kubernetes and len({count for _, count in expected}) < 2:
        return ""
    text = ", ".join(f"{count} by {name}" for name, count in expected)
    if found.kubernetes_shares:
        text += f" ({found.kubernetes_shares} of them shares of GPUs)"
    details = "; ".join(
        f"{one.reader} reports {one.gpus} on {one.machines} nodes"
        f"{'' if one.allocatable is None else f', {one.allocatable} allocatable'}, {one.received_at:%H:%M:%S}Z"
        for one in found.kubernetes
    )
    return f"Expected GPUs of cluster {found.cluster}: {text}{f' ({details})' if details else ''}"


def senders(found: Sequence[SenderRecord]) -> list[Table | str]:
    """Return a table with a row per sender."""
    rows = [
        (
            one.sender,
            one.cluster,
            one.version,
            _last_seen(one.liveness, one.age_seconds),
            "" if one.queue_records is None else str(one.queue_records),
            "" if one.oldest_unsent is None else f"{one.oldest_unsent:%Y-%m-%d %H:%M:%S}Z",
            "" if one.dropped_total is None else str(one.dropped_total),
            str(one.missing),
            "" if one.conflict is None else f"{one.conflict.batches} batches: {one.conflict.detail}",
        )
        for one in found
    ]
    titles = ("sender", "cluster", "version", "last seen", "queued", "oldest unsent", "dropped", "missing", "conflict")
    return [_table(titles, rows, "senders")]


def audit(found: Sequence[AuditRecord]) -> list[Table | str]:
    """Return a table with a row per audit entry."""
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
    lines: list[Table | str] = [_table(("number", "at", "actor", "request", "status", "detail"), rows, "entries")]
    if found and found[-1].number > 1:
        lines.append(f"Older entries: --before {found[-1].number}")
    return lines


def allocation(found: AllocationAnswer) -> list[Table | str]:
    """Return the source, the totals, and a table with a row per device."""
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
        (metric, total.operation, value_text(metric, total.value), f"{total.reporting} of {total.devices}")
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
    """Return a table per series; a step without a measurement shows a dash."""
    lines: list[Table | str] = [escape(f"allocation {found.allocation.id}: source {found.source.value}")]
    if found.reason is not None:
        lines.append(escape(f"{found.reason.value}: {found.detail}"))
    for one in found.series:
        rows = [
            (f"{point.at:%Y-%m-%d %H:%M:%S}Z", "-" if point.value is None else value_text(one.metric, point.value))
            for point in one.points
        ]
        title = one.metric if one.device is None else f"{one.metric} of {one.device}"
        lines += [escape(title), _table(("start of step", "value"), rows, "points")]
    if not found.series and found.reason is None:
        lines.append("There are no measurements in this time.")
    return lines


def usage(found: UsageAnswer) -> list[Table | str]:
    """Return a table with a row per group and the total, and the unresolved allocations."""
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
        escape(_clean(found.summary)),
    ]
    if found.unresolved:
        unresolved = [(one.allocation, f"{one.devices:g}", one.reason.value, one.detail) for one in found.unresolved]
        lines.append(_table(("allocation", "GPUs missing", "reason", "detail"), unresolved, "allocations"))
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
    """Replace control characters, because names and errors come from other machines."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _reading(reading: Reading | None, metric: str) -> str:
    """Return a value with its scope unless that is the device itself, or the absence reason in parentheses."""
    if reading is None or reading.value is None:
        return f"({reading.absent.value if reading and reading.absent else 'not_reported'})"
    text = value_text(metric, reading.value)
    return text if reading.scope is Scope.OWN else f"{text} ({reading.scope})"


def _process_reading(reading: Reading | None, name: str) -> str:
    if reading is None or reading.value is None or isinstance(reading.value, str):
        return f"({reading.absent.value if reading and reading.absent else 'not_reported'})"
    return bytes_text(reading.value) if PROCESS_READINGS[name].unit == "bytes" else percent_text(reading.value)


def _last_seen(liveness: Liveness | None, age_seconds: float) -> str:
    """Return the age of the last report, preceded by the liveness state unless that is live."""
    if liveness is None or liveness.state is State.LIVE:
        return _age(age_seconds)
    if liveness.state is State.NEVER_SEEN:
        return f"{liveness.state.value}, named {_age(age_seconds)}"
    return f"{liveness.state.value}{', not verified' if liveness.unverified else ''}, {_age(age_seconds)}"


def _age(seconds: float) -> str:
    return f"{seconds_text(seconds)} ago"
