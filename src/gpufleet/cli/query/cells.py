"""Cells and notes shared by the tables of a hub's answers."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from gpufleet.cli.lookup import device_id, short_id
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.exporters.display import holder_text, seconds_text, value_text
from gpufleet.fleet.attribution.reported import NOT_CERTAIN, NOT_REPORTED
from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AnswerDevice, Coverage
from gpufleet.model.api.holders import HolderRecord, NodeHolder
from gpufleet.model.holdings import DeviceHolders, HolderState, Holding
from gpufleet.model.liveness import Liveness
from gpufleet.model.reading import Reading
from gpufleet.model.view import Scope

Parts = list[TextTable | str]

VENDOR = "NVIDIA "
"""Start of GPU names that is left out on a terminal."""

READING_COLUMNS = (
    ("gpu_utilization_ratio", TextColumn("util", rank=2, right=True)),
    ("gpu_memory_used_bytes", TextColumn("memory", rank=3, right=True)),
    ("gpu_memory_total_bytes", TextColumn("total", wide=True, right=True)),
    ("gpu_temperature_celsius", TextColumn("temp", rank=5, right=True)),
    ("gpu_power_watts", TextColumn("power", rank=4, right=True)),
)
"""Readings of a GPU row, with their columns."""


def count_cell(number: int) -> Cell:
    """Return the cell of a number."""
    return Cell(str(number), key=number)


def time_cell(at: dt.datetime | None) -> Cell:
    """Return the cell of an instant; it is empty if there is none."""
    if at is None:
        return Cell()
    return Cell(f"{at:%m-%d %H:%M:%S}", full=f"{at:%Y-%m-%d %H:%M:%SZ}", key=at.timestamp())


def age_cell(seconds: float) -> Cell:
    """Return the cell of an age."""
    return Cell(seconds_text(max(0.0, seconds)), key=seconds)


def state_cell(liveness: Liveness | None) -> Cell:
    """Return the cell of a liveness state; it is empty for an unknown one."""
    if liveness is None:
        return Cell()
    state = liveness.state.value
    return Cell(f"{state}, not verified" if liveness.unverified else state, key=state)


def since_cell(since: dt.datetime, now: dt.datetime) -> Cell:
    """Return the cell of the time since an instant; in full, it is the instant."""
    seconds = max(0.0, (now - since).total_seconds())
    return Cell(seconds_text(seconds), full=f"{since:%Y-%m-%dT%H:%M:%SZ}", key=-seconds)


UNCERTAIN = "?"
"""Mark before a holder that is not certain; a cut name keeps it."""


def holder_cell(one: Holding | NodeHolder | HolderRecord) -> Cell:
    """Return the cell of a holder; it is marked if it is not certain to have the device now."""
    return Cell(_holder_name(one), key=holder_text(one.holder, one.parent))


def device_holders_cell(found: DeviceHolders | None, liveness: Liveness | None) -> Cell:
    """Return the cell of the present holders of a device; `liveness` is that of its machine."""
    if found is None:
        return Cell()
    if found.holdings:
        return _names_cell(found.holdings)
    if found.state is HolderState.FREE:
        return Cell(found.state.value)
    is_reported = found.detail != NOT_REPORTED
    return _absent_cell(liveness, HolderState.UNKNOWN.value if is_reported else Reason.NOT_REPORTED.value)


def node_holders_cell(
    holders: Sequence[NodeHolder], states: Mapping[HolderState, int], liveness: Liveness | None
) -> Cell:
    """Return the cell of the present holders of a node, with the number of its free devices.

    Args:
        holders: present holders.
        states: number of its devices by holder state.
        liveness: of the node.
    """
    free = states.get(HolderState.FREE, 0)
    if holders:
        cell = _names_cell(holders)
        note = f", {free} free" if free else ""
        return Cell(cell.text + note, full=cell.full + note)
    if not free:
        return _absent_cell(liveness, Reason.NOT_REPORTED.value)
    total = sum(states.values())
    return Cell("free" if free == total else f"{free} of {total} free", key="free")


def _absent_cell(liveness: Liveness | None, reason: str) -> Cell:
    is_current = liveness is None or liveness.is_current
    return Cell(absent=reason if is_current else Reason.STALE.value)


def _names_cell(holders: Sequence[Holding | NodeHolder]) -> Cell:
    names = list(dict.fromkeys(map(_holder_name, holders)))
    return Cell(names[0] + (f" +{len(names) - 1}" if len(names) > 1 else ""), full=", ".join(names))


def uncertain_notes(holders: Iterable[Holding | NodeHolder | HolderRecord]) -> list[str]:
    """Return the note about marked holders if there are any."""
    if all(map(_is_sure, holders)):
        return []
    causes = "sources contradict each other, its source does not confirm it, or its machine does not report now"
    return [f"{UNCERTAIN} before a holder: {causes}. --json has the verdict."]


def _holder_name(one: Holding | NodeHolder | HolderRecord) -> str:
    name = holder_text(one.holder, one.parent)
    return name if _is_sure(one) else f"{UNCERTAIN} {name}"


def _is_sure(one: Holding | NodeHolder | HolderRecord) -> bool:
    if isinstance(one, HolderRecord) and one.until is None and not one.current:
        return False
    return one.verdict not in NOT_CERTAIN


def model_cell(name: str | None) -> Cell:
    """Return the cell of a GPU model, without the vendor on a terminal."""
    return Cell((name or "").replace(VENDOR, ""), full=name or "")


def device_cell(view: str, machine: str) -> Cell:
    """Return the cell of a view key."""
    name = device_id(view, machine)
    return Cell(short_id(name), full=name)


def watts_text(value: float) -> str:
    """Return a power in watts or kilowatts."""
    return f"{value:.0f} W" if value < 10_000 else f"{value / 1000:.3g} kW"


def reading_cell(reading: Reading | None, metric: str) -> Cell:
    """Return the value, with its scope unless that is the device itself."""
    if reading is None or reading.value is None:
        return Cell(absent=reading.absent.value if reading and reading.absent else "not_reported")
    value = reading.value
    text = watts_text(value) if metric.endswith("_watts") and not isinstance(value, str) else value_text(metric, value)
    key = value if isinstance(value, int | float) else None
    if reading.scope is Scope.OWN:
        return Cell(text, full=value_text(metric, value), key=key if key is not None else str(value))
    return Cell(f"{text} ({reading.scope})", full=f"{value_text(metric, value)} ({reading.scope})", key=key)


def reading_cells(device: AnswerDevice) -> list[Cell]:
    """Return the cells of `READING_COLUMNS`."""
    return [reading_cell(device.readings.get(metric), metric) for metric, _ in READING_COLUMNS]


def coverage_lines(found: Sequence[Coverage]) -> list[str]:
    """Return the GPU coverage of clusters, and their expected GPUs if the sources of that number differ."""
    lines = []
    for one in found:
        lines += [f"GPUs reporting in cluster {one.cluster}: {one.summary}", expectation_line(one)]
    return [line for line in lines if line]


def expectation_line(found: Coverage | None) -> str:
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
        f"{'' if one.allocatable is None else f', {one.allocatable} allocatable'}"
        f"{'' if one.allocated is None else f', {one.allocated} allocated'}"
        f"{'' if one.published is None else f', {one.published} in ResourceSlices'}, {one.received_at:%H:%M:%S}Z"
        for one in found.kubernetes
    )
    return f"Expected GPUs of cluster {found.cluster}: {text}{f' ({details})' if details else ''}"
