"""Columns of device and process rows, by the width of the terminal. Pure."""

from gpufleet.exporters.display import bytes_text, percent_text
from gpufleet.model.view import ViewKind
from gpufleet.top.history import UtilizationHistory
from gpufleet.top.lines import NOTHING, Line, Span, Style, cell, joined, sparkline
from gpufleet.top.rows import DeviceRow, ProcessRow

NUMBER, UTILIZATION, MEMORY, TEMPERATURE, POWER, STATUS = 6, 5, 13, 5, 9, 8
TITLE, WIDE_TITLE = 12, 22

WIDE, WIDEST = 112, 140
"""Widths from which rows have a sparkline, and from which they also have the UUID."""

SPARK, IDENTITY, ACTIVE = 12, 40, 6

BUSY, FULL = 0.8, 0.95
"""Shares from which utilisation and memory are highlighted."""


def device_head(width: int) -> Line:
    """Return the titles of the device columns."""
    spans = [
        cell("#", NUMBER, "head"),
        cell("GPU", _title_width(width), "head"),
        cell("util", UTILIZATION, "head", right=True),
        cell("memory", MEMORY, "head", right=True),
        cell("temp", TEMPERATURE, "head", right=True),
        cell("power", POWER, "head", right=True),
        cell("state", STATUS, "head"),
    ]
    if width >= WIDE:
        spans.insert(3, cell("history", SPARK, "head"))
    if width >= WIDEST:
        spans.append(cell("UUID", IDENTITY, "head"))
    return joined([*spans, cell("holder", style="head")])


def vgpu_host_line(row: DeviceRow) -> Line:
    """Return the line about a GPU as a host of vGPUs."""
    return (Span(" " * (NUMBER + 1)), cell(row.host, style="dim"))


def device_line(row: DeviceRow, history: UtilizationHistory, width: int) -> Line:
    """Return the line of a device without its parts."""
    is_part = row.kind is not ViewKind.GPU
    spans = [
        cell(f"└{row.number}" if is_part else row.number, NUMBER),
        cell(row.title, _title_width(width)),
        cell(NOTHING if row.utilization is None else percent_text(row.utilization), UTILIZATION,
             _level(row.utilization, BUSY), right=True),
        cell(memory_text(row.memory_used, row.memory_total), MEMORY,
             _level(_share(row.memory_used, row.memory_total), FULL), right=True),
    ]  # fmt: skip
    if width >= WIDE:
        spans.insert(3, cell(sparkline(history.values(row.key), SPARK), SPARK, "dim"))
    if row.kind is ViewKind.VGPU:
        active = NOTHING if row.active is None else "active" if row.active else "idle"
        spans += [cell(active, ACTIVE), cell(row.status, STATUS, "good" if row.good else "bad")]
        spans += [cell(f"vm {row.vm or NOTHING}"), cell(row.holder)]
        return joined(spans)
    spans += [
        cell(NOTHING if row.temperature is None else f"{row.temperature:.0f} °C", TEMPERATURE, right=True),
        cell(_power_text(row), POWER, right=True),
        cell(row.status, STATUS, "good" if row.good else "bad"),
    ]
    if width >= WIDEST:
        spans.append(cell(row.identity, IDENTITY, "dim"))
    return joined([*spans, cell(row.holder)])


def _title_width(width: int) -> int:
    return WIDE_TITLE if width >= WIDE else TITLE


def memory_text(used: float | None, total: float | None) -> str:
    """Return used and total memory in the unit of the total: `3/8 GiB`."""
    if total is None or total <= 0:
        return NOTHING if used is None else bytes_text(used)
    number, unit = bytes_text(total).split(" ")
    if used is None:
        return f"{NOTHING}/{number} {unit}"
    share = used / total * float(number)
    return f"{share:{'.2f' if 0 < share < 1 else '.3g'}}/{number} {unit}"


def _power_text(row: DeviceRow) -> str:
    if row.power is None:
        return NOTHING
    return f"{row.power:.0f} W" if row.power_limit is None else f"{row.power:.0f}/{row.power_limit:.0f} W"


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _level(value: float | None, high: float) -> Style:
    return "warn" if value is not None and value >= high else ""


def process_widths(width: int) -> tuple[int, ...]:
    """Return the widths of the process columns before the command: wider for holders if there is room."""
    return (NUMBER, 8, 10, max(14, min(40, width - 64)), 9, 5)


def process_head(widths: tuple[int, ...]) -> Line:
    """Return the titles of the process columns."""
    number, pid, user, holder, memory, utilization = widths
    return joined(
        [
            cell("#", number, "head"),
            cell("pid", pid, "head", right=True),
            cell("user", user, "head"),
            cell("holder", holder, "head"),
            cell("memory", memory, "head", right=True),
            cell("SM", utilization, "head", right=True),
            cell("command", style="head"),
        ]
    )


def process_line(row: ProcessRow, widths: tuple[int, ...]) -> Line:
    """Return the line of a process."""
    number, pid, user, holder, memory, utilization = widths
    return joined(
        [
            cell(row.number, number),
            cell(str(row.pid), pid, right=True),
            cell(row.user or NOTHING, user),
            cell(row.holder or NOTHING, holder),
            cell(NOTHING if row.memory is None else bytes_text(row.memory), memory, right=True),
            cell(NOTHING if row.utilization is None else percent_text(row.utilization), utilization, right=True),
            cell(row.command or f"({row.kinds})"),
        ]
    )
