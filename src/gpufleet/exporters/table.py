"""The snapshot as a terminal screen: devices, host, readers and processes."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gpufleet.exporters.display import (
    NOTHING,
    ValueFormatter,
    bytes_text,
    device_status,
    holders_text,
    percent_text,
    seconds_text,
    value_text,
)
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.machine import OK as GUEST_OK
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Guest, ProcessReport, Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.text import printable
from gpufleet.model.view import ViewKind

MAX_PROCESSES = 8
"""Most processes shown per device, by memory. JSON output lists all."""


def process_table(snapshot: Snapshot) -> Table | None:
    """Return the table of processes, or None if no process is known."""
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
        processes = sorted(device.processes or (), key=_memory_order)
        for process in processes[:MAX_PROCESSES]:
            table.add_row(
                _gpu_number(device, indices),
                str(process.pid),
                printable(process.name),
                printable(", ".join(process.kinds)),
                _reading_text(process.readings.get("memory_bytes"), bytes_text),
                _reading_text(process.readings.get("sm_utilization_ratio"), percent_text),
            )
        if len(processes) > MAX_PROCESSES:
            table.add_row(_gpu_number(device, indices), f"and {len(processes) - MAX_PROCESSES} more", "", "", "", "")
    return table


def _memory_order(process: ProcessReport) -> tuple[float, int]:
    reading = process.readings.get("memory_bytes")
    size = reading.value if reading is not None else None
    return (-size if isinstance(size, int | float) else 1, process.pid)


def _gpu_number(device: Device, indices: dict[str, int | None]) -> str:
    """Return the index of the GPU; for an instance also its name within the GPU."""
    index = device.index if device.kind is ViewKind.GPU else indices.get(device.parent or "")
    number = "–" if index is None else str(index)
    return number if device.kind is ViewKind.GPU else f"{number}:{printable(device.instance or '?')}"


def _reading_text(reading: Reading | None, formatter: ValueFormatter) -> str:
    if reading is None or not isinstance(reading.value, int | float):
        return f"({reading.absent})" if reading is not None and reading.absent is not None else "–"
    return formatter(reading.value)


AVAILABLE = "available"
MAX_COLUMNS = 10_000
"""Wider than any table here."""

WRAPPED = ("GPU", "memory", "power", "state")
"""Columns that may wrap on a narrow terminal."""

UUID_LENGTH = 12
"""Characters of a UUID shown: enough to distinguish the devices of a machine, and for `gpufleet why`."""


class TableExporter:
    """Renders the snapshot for a terminal.

    Args:
        width: columns of the terminal.
        colour: whether to colour it.
    """

    def __init__(self, *, width: int = 120, colour: bool = False) -> None:
        self._width = width
        self._colour = colour

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the screen as text."""
        page = io.StringIO()
        console = Console(
            file=page,
            width=self._width,
            force_terminal=self._colour,
            no_color=not self._colour,
            highlight=False,
            markup=False,
            emoji=False,
        )
        console.print(_header(snapshot))
        if snapshot.devices:
            self._print_gpus(console, snapshot.devices)
            if (processes := process_table(snapshot)) is not None:
                console.print(processes)
        for line in (*_host_lines(snapshot), *_reader_lines(snapshot)):
            console.print(line)
        for guest in snapshot.guests:
            console.print(_guest_line(guest))
            if guest.devices:
                self._print_gpus(console, guest.devices)
        return page.getvalue().encode()

    def _print_gpus(self, console: Console, devices: Sequence[Device]) -> None:
        gpus = _device_table(devices)
        # On a narrow terminal rows wrap, because a truncated number would read as a different one.
        roomy = console.options.update(max_width=MAX_COLUMNS)
        console.width = max(self._width, Measurement.get(console, roomy, gpus).minimum)
        console.print(gpus)
        console.width = self._width


def _header(snapshot: Snapshot) -> Text:
    host = snapshot.host.readings
    facts = [_info_text(host, "host_os_name"), _info_text(host, "host_kernel_release"), f"gpufleet {snapshot.version}"]
    for label, metric in (("driver", "nvidia_driver_version"), ("CUDA", "nvidia_cuda_version")):
        if version := _info_text(host, metric):
            facts.append(f"{label} {version}")
    facts.append(snapshot.measured_at.strftime("%Y-%m-%d %H:%M:%S UTC"))
    line = Text(printable(snapshot.node.name), style="bold")
    line.append("  " + printable(" · ".join(fact for fact in facts if fact)), style="dim")
    gpus = sum(device.kind is ViewKind.GPU for device in snapshot.devices)
    line.append("\n")
    if gpus:
        line.append(f"GPUs: {snapshot.aggregate.coverage} report")
    elif snapshot.host.pci is None:
        line.append("GPUs: unknown, the PCI bus was not read")
    else:
        others = sum(function.vendor != NVIDIA_VENDOR for function in snapshot.host.pci)
        line.append("GPUs: none by NVIDIA on the PCI bus" + (f" ({others} of other vendors)" if others else ""))
    return line


def _guest_line(guest: Guest) -> Text:
    """Return the line of a virtual machine: name, state, and the detail given by its source."""
    line = Text("guest    ", style="dim")
    line.append(printable(guest.machine.name), style="bold")
    line.append(f" {printable(guest.vm_uuid[:UUID_LENGTH])} ", style="dim")
    good = guest.state == GUEST_OK
    line.append(printable(guest.state) or NOTHING, style="green" if good else "red")
    way = _info_text(guest.host.readings, "guest_access_path")
    detail = guest.detail or (f"by {way}" if good and way else "")
    line.append(f" · {printable(detail)}" if detail else "", style="dim")
    return line


def _device_table(devices: Sequence[Device]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, right in (
        ("#", True), ("GPU", False), ("UUID", False), ("PCI", False), ("util", True), ("memory", True), ("temp", True),
        ("power", True), ("state", False),
    ):  # fmt: skip
        table.add_column(title, justify="right" if right else "left", no_wrap=title not in WRAPPED, overflow="fold")
    shows_holders = any(device.holders is not None for device in devices)
    if shows_holders:
        table.add_column("holder", overflow="fold")
    gpus = {device.key: device for device in devices if device.kind is ViewKind.GPU}
    for device in devices:
        readings = device.readings
        state, good = device_status(device, gpus.get(device.parent or ""))
        table.add_row(
            NOTHING if device.index is None else str(device.index),
            printable(_title(device)),
            printable((device.uuid or device.instance or NOTHING)[:UUID_LENGTH]),
            printable(device.pci_address or NOTHING),
            _number_text(readings, "gpu_utilization_ratio", percent_text),
            _usage_text(readings, "gpu_memory_used_bytes", "gpu_memory_total_bytes", bytes_text),
            _number_text(readings, "gpu_temperature_celsius", lambda value: f"{value:.0f} °C"),
            _usage_text(readings, "gpu_power_watts", "gpu_power_limit_watts", lambda value: f"{value:.0f} W"),
            Text(printable(state), style="green" if good else "red"),
            *([holders_text(device.holders) or NOTHING] if shows_holders else []),
        )
    return table


def _title(device: Device) -> str:
    """Return the title of a device; an instance is indented."""
    name = device.name or f"{device.kind} ({device.side})"
    if device.kind is ViewKind.GPU:
        return name
    _, mig, profile = name.rpartition(" MIG ")
    return f"└ MIG {profile}" if mig else f"└ {name}"


def _host_lines(snapshot: Snapshot) -> list[Text]:
    host = snapshot.host.readings
    lines: list[Text] = []
    facts = [
        (
            f"{_number_text(host, 'host_cpu_utilization_ratio', percent_text)} of "
            f"{_number_text(host, 'host_cpus', str)} cores"
        ),
        "load "
        + " ".join(_number_text(host, f"host_load_{span}", lambda v: f"{v:.2f}") for span in ("1m", "5m", "15m")),
    ]
    if "host_cpus" in host or "host_cpu_utilization_ratio" in host:
        lines.append(_summary_line("cpu", " · ".join(facts)))
    total, available = _number(host, "host_memory_total_bytes"), _number(host, "host_memory_available_bytes")
    if total is not None and available is not None:
        lines.append(_summary_line("memory", f"{bytes_text(total - available)} of {bytes_text(total)} in use"))
    pressure = [
        f"{dim.labels['resource']} {percent_text(dim.value)}"
        for dim in snapshot.host.dimensions
        if dim.metric == "host_pressure_ratio"
        and dim.labels["share"] == "some"
        and dim.labels["window"] == "10s"
        and isinstance(dim.value, int | float)
    ]
    if pressure:
        lines.append(_summary_line("waiting", " · ".join(pressure)))
    lines += _disk_lines(snapshot)
    return lines


def _disk_lines(snapshot: Snapshot) -> list[Text]:
    figures: dict[str, dict[str, float]] = {}
    for dim in snapshot.host.dimensions:
        if dim.metric.startswith("host_filesystem_") and isinstance(dim.value, int | float):
            figures.setdefault(dim.labels["mountpoint"], {})[dim.metric] = dim.value
    facts = [
        f"{mount} {bytes_text(known['host_filesystem_available_bytes'])} free of "
        f"{bytes_text(known['host_filesystem_size_bytes'])}"
        for mount, known in figures.items()
        if known.get("host_filesystem_size_bytes") and "host_filesystem_available_bytes" in known
    ]
    shown = " · ".join(facts[:4]) + (f" · and {len(facts) - 4} more" if len(facts) > 4 else "")
    return [_summary_line("disks", shown)] if facts else []


def _reader_lines(snapshot: Snapshot) -> list[Text]:
    lines: list[Text] = []
    shown: set[tuple[str, str]] = set()
    for report in snapshot.readers:
        if report.state in (ReaderState.OK, ReaderState.NEVER) or (report.reader, report.last_error) in shown:
            continue
        shown.add((report.reader, report.last_error))
        bad = report.state is ReaderState.FAILED
        text = f"failed ({report.error_class})" if bad else str(report.state)
        lines.append(_summary_line(report.reader, f"{text}: {report.last_error}", style="red" if bad else "yellow"))
    working = dict.fromkeys(
        report.reader
        for report in snapshot.readers
        if report.state is ReaderState.OK and report.reader not in {reader for reader, _ in shown}
    )
    idle = [reader for reader in working if snapshot.capabilities.get(reader, AVAILABLE) != AVAILABLE]
    for reader in idle:
        del working[reader]
        lines.append(_summary_line(reader, "nothing to read on this machine", style="dim"))
    if working:
        durations = [report.duration_seconds for report in snapshot.readers if report.duration_seconds is not None]
        longest = f" · longest pass {seconds_text(max(durations))}" if durations else ""
        lines.append(_summary_line("readers", f"{', '.join(working)} ok{longest}"))
    return lines


def _summary_line(title: str, text: str, style: str = "") -> Text:
    line = Text(f"{printable(title):<8} ", style="dim")
    line.append(printable(text), style=style)
    return line


def _info_text(readings: dict[str, Reading], metric: str) -> str:
    reading = readings.get(metric)
    return "" if reading is None or reading.value is None else value_text(metric, reading.value)


def _number(readings: dict[str, Reading], metric: str) -> float | None:
    reading = readings.get(metric)
    return reading.value if reading is not None and isinstance(reading.value, int | float) else None


def _number_text(readings: dict[str, Reading], metric: str, formatter: ValueFormatter) -> str:
    value = _number(readings, metric)
    return NOTHING if value is None else formatter(value)


def _usage_text(readings: dict[str, Reading], used: str, limit: str, formatter: ValueFormatter) -> str:
    return f"{_number_text(readings, used, formatter)} / {_number_text(readings, limit, formatter)}"
