"""Who uses the GPUs, for the screen."""

from rich.table import Table

from gpufleet.exporters.words import Words, bytes_words, percent_words
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, ProcessReport, Snapshot
from gpufleet.model.view import ViewKind

MOST = 8
"""Processes of one device on the screen: those that hold the most memory. JSON has all."""


def process_table(snapshot: Snapshot) -> Table | None:
    """Return the table, or None where no process is known."""
    used = [device for device in snapshot.devices if device.processes]
    if not used:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, right in (
        ("#", True), ("process", True), ("name", False), ("kinds", False), ("memory", True), ("SM", True),
    ):  # fmt: skip
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    indices = {device.key: device.index for device in snapshot.devices}
    for device in used:
        processes = sorted(device.processes or (), key=_held)
        for process in processes[:MOST]:
            table.add_row(
                _number(device, indices),
                str(process.pid),
                process.name,
                ", ".join(process.kinds),
                _shown(process.readings.get("memory_bytes"), bytes_words),
                _shown(process.readings.get("sm_utilization_ratio"), percent_words),
            )
        if len(processes) > MOST:
            table.add_row(_number(device, indices), f"and {len(processes) - MOST} more", "", "", "", "")
    return table


def _held(process: ProcessReport) -> tuple[float, int]:
    reading = process.readings.get("memory_bytes")
    held = reading.value if reading is not None else None
    return (-held if isinstance(held, int | float) else 1, process.pid)


def _number(device: Device, indices: dict[str, int | None]) -> str:
    """Return the GPU's number, and what names a part of it there."""
    index = device.index if device.kind is ViewKind.GPU else indices.get(device.parent or "")
    number = "–" if index is None else str(index)
    return number if device.kind is ViewKind.GPU else f"{number}:{device.instance or '?'}"


def _shown(reading: Reading | None, words: Words) -> str:
    if reading is None or not isinstance(reading.value, int | float):
        return f"({reading.absent})" if reading is not None and reading.absent is not None else "–"
    return words(reading.value)
