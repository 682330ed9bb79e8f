"""Tables of a hub's answers."""

import datetime as dt
from collections.abc import Mapping, Sequence

from gpufleet.cli.lookup import device_id, short_id, short_ids
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.exporters.display import bytes_text, event_text, percent_text, seconds_text, value_text
from gpufleet.model.access import AuditRecord
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, Allocation
from gpufleet.model.api.answer import (
    AllocationAnswer,
    AnswerDevice,
    Coverage,
    EventsAnswer,
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    NodeGpus,
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
from gpufleet.model.holdings import Holder
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.reading import Reading
from gpufleet.model.view import Scope

Parts = list[TextTable | str]

STATE = "gpu_state"

UNKNOWN = "unknown"
"""Model of GPUs that reported no name."""

VENDOR = "NVIDIA "
"""Start of GPU names that is left out on a terminal."""

SHOWN = (
    ("gpu_utilization_ratio", TextColumn("util", rank=2, right=True)),
    ("gpu_memory_used_bytes", TextColumn("memory", rank=3, right=True)),
    ("gpu_memory_total_bytes", TextColumn("total", wide=True, right=True)),
    ("gpu_temperature_celsius", TextColumn("temp", rank=5, right=True)),
    ("gpu_power_watts", TextColumn("power", rank=4, right=True)),
)
"""Readings of a GPU row, with their columns."""


def fleet(found: FleetAnswer) -> Parts:
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
                _state(fresh.liveness),
                Cell() if age is None else _age(age),
                _coverage_cell(one.coverage),
                _states(fresh.machines),
                _time(fresh.complete_up_to),
                _count(fresh.missing_batches),
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
        TextColumn("partial-or-suspect", rank=1, wrap=True),
    )
    notes = [found.summary, *(_expectations(one.coverage) for one in found.clusters)]
    if found.hub.rejecting:
        notes.append("The hub is rejecting batches: time without heartbeat is not counted.")
    return [TextTable(columns, rows, "clusters"), *filter(None, notes)]


def _coverage_cell(found: Coverage | None) -> Cell:
    if found is None:
        return Cell()
    expected = "?" if found.expected is None else str(found.expected)
    return Cell(f"{found.reporting} of {expected}", full=found.summary, key=found.reporting)


def _states(counted: Mapping[State, int]) -> str:
    return ", ".join(f"{count} {state.value}" for state, count in counted.items())


def nodes(page: NodePage, gpus: Mapping[str, NodeGpus]) -> Parts:
    """Return a table with a row per node, and GPU coverage; `gpus` are the GPUs of each node by its id."""
    rows = [
        (
            one.machine.machine.name,
            one.machine.id,
            one.machine.cluster,
            _state(one.machine.liveness),
            Cell(f"{one.gpus_reporting} of {one.gpus}", key=one.gpus_reporting),
            *_load(gpus.get(one.machine.id)),
            _seen(one.machine),
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
        TextColumn("error", rank=1, cut=True),
    )
    return [TextTable(columns, rows, "nodes"), *_coverage(page.coverage)]


def _load(found: NodeGpus | None) -> tuple[Cell | str, ...]:
    """Return model, utilisation, power and holder of a node's GPUs."""
    if found is None:
        return "", "", "", ""
    named = {name: count for name, count in found.models.items() if name != UNKNOWN}
    models = ", ".join(
        name if named == found.models and len(named) == 1 else f"{count} x {name}" for name, count in named.items()
    )
    names = [_holder(one) for one in found.holders]
    holder = names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "") if names else ""
    busy, power = found.utilization_ratio, found.power_watts
    return (
        _model(models),
        Cell() if busy is None else Cell(percent_text(busy), key=busy),
        Cell() if power is None else Cell(_watts(power), key=power),
        Cell(holder, full=", ".join(names)),
    )


def _holder(holder: Holder) -> str:
    name = "/".join(filter(None, (holder.namespace, holder.name))) or holder.id
    return f"{holder.kind.value} {name}"


def _model(name: str | None) -> Cell:
    return Cell((name or "").replace(VENDOR, ""), full=name or "")


def _watts(value: float) -> str:
    return f"{value:.0f} W" if value < 10_000 else f"{value / 1000:.3g} kW"


def changes(found: GpuChangePage) -> Parts:
    """Return a table with a row per change."""
    rows = [
        (
            _time(one.at),
            one.kind.value,
            one.node or one.machine,
            one.pci_address,
            _device(one.device, one.node or one.machine),
            _device(one.before_device, one.node or one.machine)
            if one.before_device is not None
            else Cell(f"{one.before_machine}/{(one.before_pci_address or '').removeprefix('0000:')}"),
        )
        for one in found.items
    ]
    columns = (
        TextColumn("at", rank=1),
        TextColumn("kind"),
        TextColumn("node"),
        TextColumn("slot", rank=2),
        TextColumn("device"),
        TextColumn("before", rank=1),
    )
    more = ["There are more changes: raise --limit, or narrow --since and --until."] if found.next is not None else []
    return [TextTable(columns, rows, "changes"), *more]


def pools(found: Sequence[GpuPool]) -> Parts:
    """Return a table with a row per group of identical GPUs."""
    rows = [
        (
            one.cluster,
            _model(one.name),
            one.side,
            one.driver or "",
            one.vbios or "",
            _count(one.gpus),
            _count(one.machines),
        )
        for one in found
    ]
    columns = (
        TextColumn("cluster"),
        TextColumn("model", cut=True),
        TextColumn("side", rank=2),
        TextColumn("driver", rank=1),
        TextColumn("vbios", rank=3),
        TextColumn("gpus", right=True),
        TextColumn("machines", right=True),
    )
    return [TextTable(columns, rows, "GPUs")]


def sql(found: SqlAnswer) -> Parts:
    """Return the rows of a statement, and their number."""
    rows = [["" if cell is None else str(cell) for cell in row] for row in found.rows]
    columns = [TextColumn(name) for name in found.columns]
    return [TextTable(columns, rows, "rows"), f"{len(rows)} rows in {found.seconds:.2f} s"]


def sql_views(found: Sequence[SqlViewRecord]) -> Parts:
    """Return a table with a row per SQL view."""
    rows = [(one.name, one.help, ", ".join(column.name for column in one.columns[:12])) for one in found]
    return [
        TextTable(
            (TextColumn("view"), TextColumn("row", wrap=True), TextColumn("first-columns", wrap=True)), rows, "views"
        )
    ]


EVENT_COLUMNS = (
    TextColumn("at", rank=1),
    TextColumn("node", rank=2),
    TextColumn("device"),
    TextColumn("event"),
    TextColumn("details", wrap=True),
)


def events(found: EventsAnswer) -> Parts:
    """Return a table with a row per event."""
    rows = [
        (
            _time(one.at),
            one.node or one.machine,
            _device(one.device, one.node or one.machine) if one.device else "machine",
            Cell(f"{one.kind} {one.code}" if one.code else one.kind, key=one.code),
            event_text(one.attributes),
        )
        for one in found.events
    ]
    more = ["There are older events: use --limit, --since, or --json with `cursor`."] if found.next else []
    return [TextTable(EVENT_COLUMNS, rows, "events"), *more]


def event_reports(found: Sequence[EventReport]) -> Parts:
    """Return a table with a row per event of one machine."""
    rows = [
        (
            _time(one.at),
            Cell(short_id(one.uuid), full=one.uuid) if one.uuid else one.pci_address or "machine",
            f"{one.kind} {one.code}" if one.code else one.kind,
            event_text(one.attributes),
        )
        for one in found
    ]
    return [TextTable([one for one in EVENT_COLUMNS if one.name != "node"], rows, "events")]


def allocations(found: Sequence[Allocation]) -> Parts:
    """Return a table with a row per allocation."""
    rows = []
    for one in found:
        target = one.spec.target
        end = one.closed_at or one.spec.valid_to
        rows.append(
            (
                one.id,
                one.spec.kind.value,
                target.cluster,
                getattr(target, REQUIRED_TARGET_FIELD[one.spec.kind]) or "",
                one.spec.tenant or "",
                one.spec.team or "",
                _time(one.spec.valid_from),
                _time(end) if end else "open",
            )
        )
    columns = (
        TextColumn("allocation"),
        TextColumn("kind", rank=3),
        TextColumn("cluster", rank=4),
        TextColumn("target", rank=1),
        TextColumn("tenant", rank=2),
        TextColumn("team", rank=5),
        TextColumn("from", rank=7),
        TextColumn("to", rank=6),
    )
    return [TextTable(columns, rows, "allocations")]


def machines(page: MachinePage) -> Parts:
    """Return a table with a row per machine, and GPU coverage."""
    rows = [
        (
            one.machine.name,
            one.id,
            one.cluster,
            one.machine.kind.value,
            _state(one.liveness),
            _count(one.gpus),
            one.sender,
            _seen(one),
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
    return [TextTable(columns, rows, "machines"), *_coverage(page.coverage)]


def gpus(page: GpuPage) -> Parts:
    """Return a table with a row per view, and GPU coverage."""
    names = {one.device.id: _device_name(one) for one in page.items}
    short = short_ids(list(names.values()))
    rows = [
        (
            one.node,
            Cell() if one.index is None else _count(one.index),
            Cell(short[names[one.device.id]], full=names[one.device.id]),
            one.cluster,
            one.device.machine,
            one.device.side.value,
            one.device.pci_address or "",
            _model(one.device.name),
            _gpu_state(one),
            *_readings(one.device),
            _age(one.age_seconds),
        )
        for one in page.items
    ]
    columns = (
        TextColumn("node"),
        TextColumn("index", rank=8, right=True),
        TextColumn("id"),
        TextColumn("cluster", wide=True),
        TextColumn("machine", wide=True),
        TextColumn("side", wide=True),
        TextColumn("pci", wide=True),
        TextColumn("model", rank=6, cut=True),
        TextColumn("state", rank=1),
        *(column for _, column in SHOWN),
        TextColumn("age", rank=9, right=True),
    )
    return [TextTable(columns, rows, "GPUs"), *_coverage(page.coverage)]


def _device_name(one: GpuRecord) -> str:
    return one.device.uuid or device_id(one.device.id.split("/", 2)[2], one.node)


def _device(view: str, machine: str) -> Cell:
    """Return the cell of a view key."""
    name = device_id(view, machine)
    return Cell(short_id(name), full=name)


def _gpu_state(one: GpuRecord) -> Cell:
    """Return the liveness state, or for a live GPU its own."""
    if one.liveness is not None and one.liveness.state is not State.LIVE:
        return _state(one.liveness)
    return _reading(one.device.readings.get(STATE), STATE)


def _readings(device: AnswerDevice) -> list[Cell]:
    return [_reading(device.readings.get(metric), metric) for metric, _ in SHOWN]


def processes(found: ProcessesAnswer) -> Parts:
    """Return a table with a row per process, or per device without processes."""
    rows: list[tuple[Cell | str, ...]] = []
    for table in found.devices:
        age = _age(table.age_seconds)
        if table.stale:
            age = Cell(f"late, {age.text}", key=age.key)
        device = _device(table.device, found.node)
        if not table.processes:
            rows.append((device, "none", *[""] * (len(PROCESS_READINGS) + 2), age))
        for one in table.processes:
            cells = [_process_reading(one.readings.get(name), name) for name in PROCESS_READINGS]
            rows.append((device, _count(one.pid), one.name, ",".join(one.kinds), *cells, age))
    cut = [
        f"{one.device}: {len(one.processes)} of {one.total} processes, by memory"
        for one in found.devices
        if one.total > len(one.processes)
    ]
    columns = (
        TextColumn("device"),
        TextColumn("process", right=True),
        TextColumn("name", rank=1, cut=True),
        TextColumn("kinds", rank=3),
        TextColumn("memory", rank=1, right=True),
        TextColumn("sms", rank=2, right=True),
        TextColumn("memory-busy", rank=6, right=True),
        TextColumn("encoder", rank=5, right=True),
        TextColumn("decoder", rank=5, right=True),
        TextColumn("age", rank=4, right=True),
    )
    return [TextTable(columns, rows, f"process tables of {found.node} within the last hour"), *cut]


def _coverage(found: Sequence[Coverage]) -> list[str]:
    lines = []
    for one in found:
        lines += [f"GPUs reporting in cluster {one.cluster}: {one.summary}", _expectations(one)]
    return [line for line in lines if line]


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


def senders(found: Sequence[SenderRecord]) -> Parts:
    """Return a table with a row per sender."""
    rows = [
        (
            one.sender,
            one.cluster,
            _state(one.liveness),
            one.version,
            _age(one.age_seconds),
            Cell() if one.queue_records is None else _count(one.queue_records),
            _time(one.oldest_unsent),
            Cell() if one.dropped_total is None else _count(one.dropped_total),
            _count(one.missing),
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


def audit(found: Sequence[AuditRecord]) -> Parts:
    """Return a table with a row per audit entry."""
    rows = [
        (
            _count(one.number),
            _time(one.entry.at),
            one.entry.actor,
            f"{one.entry.method} {one.entry.path}",
            str(one.entry.status or ""),
            one.entry.detail,
        )
        for one in found
    ]
    columns = (
        TextColumn("number", right=True),
        TextColumn("at"),
        TextColumn("actor", rank=1),
        TextColumn("request", wrap=True),
        TextColumn("status", rank=2, right=True),
        TextColumn("detail", rank=1, wrap=True),
    )
    older = [f"Older entries: --before {found[-1].number}"] if found and found[-1].number > 1 else []
    return [TextTable(columns, rows, "entries"), *older]


def allocation(found: AllocationAnswer) -> Parts:
    """Return the source, the totals, and tables of the devices and the machine."""
    spec = found.allocation.spec
    head = f"allocation {found.allocation.id}: {spec.kind.value}, source {found.source.value}"
    if found.reason is not None:
        head += f", {found.reason.value}" + (f" ({found.detail})" if found.detail else "")
    if found.age_seconds is not None:
        head += f", {seconds_text(found.age_seconds)} ago"
    lines: Parts = []
    if found.devices:
        names = {one.id: one.uuid or device_id(one.id.split("/", 2)[2], one.machine) for one in found.devices}
        short = short_ids(list(names.values()))
        rows = [
            (Cell(short[names[one.id]], full=names[one.id]), _model(one.name), one.side.value, *_readings(one))
            for one in found.devices
        ]
        columns = (
            TextColumn("device"),
            TextColumn("model", rank=6, cut=True),
            TextColumn("side", rank=7),
            *(column for _, column in SHOWN),
        )
        lines.append(TextTable(columns, rows, "devices"))
    totals = [
        (metric, total.operation, value_text(metric, total.value), f"{total.reporting} of {total.devices}")
        for metric, total in found.aggregate.metrics.items()
        if total.value is not None
    ]
    if totals:
        columns = (
            TextColumn("metric"),
            TextColumn("total", rank=1),
            TextColumn("value", right=True),
            TextColumn("devices", right=True),
        )
        lines.append(TextTable(columns, totals, "totals"))
    if found.host:
        values = [(metric, _reading(reading, metric)) for metric, reading in found.host.items()]
        lines.append(TextTable((TextColumn("host"), TextColumn("value", right=True)), values, "host readings"))
    lines += [head, f"GPUs reporting: {found.aggregate.coverage}"]
    if found.last_error:
        lines.append(f"last error: {found.last_error}")
    return lines


def series(found: SeriesAnswer) -> Parts:
    """Return a table with a row per step and device."""
    rows = []
    for one in found.series:
        name = "machine" if one.device is None else one.device.split("/", 2)[2]
        device = name if one.device is None else _device(name, one.device.split("/", 2)[1])
        rows += [
            (
                Cell(f"{point.at:%Y-%m-%d %H:%M:%SZ}"),
                device,
                one.metric,
                Cell() if point.value is None else Cell(value_text(one.metric, point.value)),
            )
            for point in one.points
        ]
    columns = (
        TextColumn("start-of-step"),
        TextColumn("device"),
        TextColumn("metric", rank=1),
        TextColumn("value", right=True),
    )
    notes = [f"allocation {found.allocation.id}: source {found.source.value}"]
    if found.reason is not None:
        notes.append(f"{found.reason.value}: {found.detail}")
    return [TextTable(columns, rows, "measurements in this time"), *notes]


def usage(found: UsageAnswer) -> Parts:
    """Return a table with a row per group and the total, and the unresolved allocations."""
    columns = (
        *(TextColumn(one.value) for one in found.group_by),
        TextColumn("gpus", right=True),
        TextColumn("held", right=True),
        TextColumn("used", rank=1, right=True),
        TextColumn("idle", rank=1, right=True),
        TextColumn("unknown", rank=1, right=True),
        TextColumn("energy", rank=3, right=True),
        TextColumn("energy-source", wide=True),
        TextColumn("cost", rank=2, right=True),
    )
    rows: list[Sequence[Cell | str]] = [
        (*(one.group[name] or "" for name in found.group_by), *_usage_cells(one, found.currency)) for one in found.rows
    ]
    rest = [""] * max(0, len(found.group_by) - 1)
    total = ["total", *rest] if found.group_by else []
    rows.append((*total, *_usage_cells(found.total, found.currency)))
    notes = [f"{found.start:%Y-%m-%d %H:%M:%S}Z to {found.end:%Y-%m-%d %H:%M:%S}Z, in GPU-hours", found.summary]
    lines: Parts = [TextTable(columns, rows, "usage")]
    if found.unresolved:
        unresolved = [
            (one.allocation, Cell(f"{one.devices:g}", key=one.devices), one.reason.value, one.detail)
            for one in found.unresolved
        ]
        names = (
            TextColumn("allocation"),
            TextColumn("gpus-missing", right=True),
            TextColumn("reason"),
            TextColumn("detail", wrap=True),
        )
        lines.append(TextTable(names, unresolved, "allocations"))
    return [*lines, *notes]


def _usage_cells(row: UsageRow, currency: str | None) -> tuple[Cell, ...]:
    hours = (row.held_gpu_hours, row.used_gpu_hours, row.idle_gpu_hours, row.unknown_gpu_hours)
    return (
        _count(row.gpus),
        *(Cell(f"{one:.3f}", key=one) for one in hours),
        Cell() if row.energy_kwh is None else Cell(f"{row.energy_kwh:.3f} kWh", key=row.energy_kwh),
        Cell() if row.energy_kwh is None else Cell(str(row.energy_source)),
        Cell(absent=str(row.cost_absent or ""))
        if row.cost is None
        else Cell(f"{row.cost:.2f} {currency or ''}".strip(), key=row.cost),
    )


def _count(number: int) -> Cell:
    return Cell(str(number), key=number)


def _time(at: dt.datetime | None) -> Cell:
    if at is None:
        return Cell()
    return Cell(f"{at:%m-%d %H:%M:%S}", full=f"{at:%Y-%m-%d %H:%M:%SZ}", key=at.timestamp())


def _reading(reading: Reading | None, metric: str) -> Cell:
    """Return the value, with its scope unless that is the device itself."""
    if reading is None or reading.value is None:
        return Cell(absent=reading.absent.value if reading and reading.absent else "not_reported")
    value = reading.value
    text = _watts(value) if metric.endswith("_watts") and not isinstance(value, str) else value_text(metric, value)
    key = value if isinstance(value, int | float) else None
    if reading.scope is Scope.OWN:
        return Cell(text, full=value_text(metric, value), key=key if key is not None else str(value))
    return Cell(f"{text} ({reading.scope})", full=f"{value_text(metric, value)} ({reading.scope})", key=key)


def _process_reading(reading: Reading | None, name: str) -> Cell:
    if reading is None or reading.value is None or isinstance(reading.value, str):
        return Cell(absent=reading.absent.value if reading and reading.absent else "not_reported")
    formatted = bytes_text(reading.value) if PROCESS_READINGS[name].unit == "bytes" else percent_text(reading.value)
    return Cell(formatted, key=reading.value)


def _state(liveness: Liveness | None) -> Cell:
    if liveness is None:
        return Cell()
    state = liveness.state.value
    return Cell(f"{state}, not verified" if liveness.unverified else state, key=state)


def _seen(machine: MachineRecord) -> Cell:
    """Return the age of the last report; of a machine that never reported, when it was named."""
    age = _age(machine.age_seconds)
    return Cell(f"named {age.text}", key=age.key) if machine.named_only else age


def _age(seconds: float) -> Cell:
    return Cell(seconds_text(max(0.0, seconds)), key=seconds)
