"""The snapshot as one screen for a person.

Who uses the GPUs, for the screen.
"""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gpufleet.exporters.words import Words, bytes_words, percent_words, seconds_words, value_words
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.machine import OK as GUEST_OK
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Guest, ProcessReport, Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.text import clean
from gpufleet.model.view import Side, ViewKind

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
                _table_processes_number(device, indices),
                str(process.pid),
                process.name,
                ", ".join(process.kinds),
                _table_processes_shown(process.readings.get("memory_bytes"), bytes_words),
                _table_processes_shown(process.readings.get("sm_utilization_ratio"), percent_words),
            )
        if len(processes) > MOST:
            table.add_row(_table_processes_number(device, indices), f"and {len(processes) - MOST} more", "", "", "", "")
    return table


def _held(process: ProcessReport) -> tuple[float, int]:
    reading = process.readings.get("memory_bytes")
    held = reading.value if reading is not None else None
    return (-held if isinstance(held, int | float) else 1, process.pid)


def _table_processes_number(device: Device, indices: dict[str, int | None]) -> str:
    """Return the GPU's number, and what names a part of it there."""
    index = device.index if device.kind is ViewKind.GPU else indices.get(device.parent or "")
    number = "–" if index is None else str(index)
    return number if device.kind is ViewKind.GPU else f"{number}:{device.instance or '?'}"


def _table_processes_shown(reading: Reading | None, words: Words) -> str:
    if reading is None or not isinstance(reading.value, int | float):
        return f"({reading.absent})" if reading is not None and reading.absent is not None else "–"
    return words(reading.value)


NOTHING = "–"
AVAILABLE = "available"
MOST_COLUMNS = 10_000
"""More than any table of ours needs."""

WRAPPED = ("GPU", "memory", "power", "state")
"""Columns that become lines of several words where there is no room."""

UUID_LETTERS = 12
"""Enough of a UUID to tell devices of a machine apart, and for `gpufleet why`."""


class TableExporter:
    """Renders for a terminal.

    Args:
        width: columns of the terminal.
        colour: whether to colour it.
    """

    def __init__(self, *, width: int = 120, colour: bool = False) -> None:
        self._width = width
        self._colour = colour

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the screen."""
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
        console.print(_head(snapshot))
        if snapshot.devices:
            self._print_gpus(console, snapshot.devices)
            if (processes := process_table(snapshot)) is not None:
                console.print(processes)
        for line in (*_host(snapshot), *_readers(snapshot)):
            console.print(line)
        for guest in snapshot.guests:
            console.print(_guest(guest))
            if guest.devices:
                self._print_gpus(console, guest.devices)
        return page.getvalue().encode()

    def _print_gpus(self, console: Console, devices: Sequence[Device]) -> None:
        gpus = _gpus(devices)
        # On a terminal that is too narrow its rows wrap: half a figure would be another one.
        roomy = console.options.update(max_width=MOST_COLUMNS)
        console.width = max(self._width, Measurement.get(console, roomy, gpus).minimum)
        console.print(gpus)
        console.width = self._width


def _head(snapshot: Snapshot) -> Text:
    host = snapshot.host.readings
    facts = [_text(host, "host_os_name"), _text(host, "host_kernel_release"), f"gpufleet {snapshot.version}"]
    for words, metric in (("driver", "nvidia_driver_version"), ("CUDA", "nvidia_cuda_version")):
        if version := _text(host, metric):
            facts.append(f"{words} {version}")
    facts.append(snapshot.measured_at.strftime("%Y-%m-%d %H:%M:%S UTC"))
    line = Text(snapshot.node.name, style="bold")
    line.append("  " + " · ".join(fact for fact in facts if fact), style="dim")
    gpus = sum(device.kind is ViewKind.GPU for device in snapshot.devices)
    line.append("\n")
    if gpus:
        line.append(f"GPUs: {snapshot.aggregate.coverage} report")
    elif snapshot.host.pci is None:
        line.append("GPUs: unknown, the PCI bus was not read")
    else:
        others = sum(function.vendor != NVIDIA_VENDOR for function in snapshot.host.pci)
        line.append("GPUs: none by NVIDIA on the PCI bus" + (f" ({others} by others)" if others else ""))
    return line


def _guest(guest: Guest) -> Text:
    """Return a virtual machine's line: who it is, and how the agent gets on with it, in words of whoever said so."""
    line = Text("guest    ", style="dim")
    line.append(guest.machine.name, style="bold")
    line.append(f" {guest.vm_uuid[:UUID_LETTERS]} ", style="dim")
    good = guest.state == GUEST_OK
    line.append(guest.state or NOTHING, style="green" if good else "red")
    way = _text(guest.host.readings, "guest_way")
    words = guest.detail or (f"by {way}" if good and way else "")
    line.append(f" · {clean(words)}" if words else "", style="dim")
    return line


def _gpus(devices: Sequence[Device]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, right in (
        ("#", True), ("GPU", False), ("UUID", False), ("PCI", False), ("util", True), ("memory", True), ("temp", True),
        ("power", True), ("state", False),
    ):  # fmt: skip
        table.add_column(title, justify="right" if right else "left", no_wrap=title not in WRAPPED, overflow="fold")
    for device in devices:
        readings = device.readings
        state, good = _state(device)
        table.add_row(
            NOTHING if device.index is None else str(device.index),
            _title(device),
            (device.uuid or device.instance or NOTHING)[:UUID_LETTERS],
            device.pci_address or NOTHING,
            _shown(readings, "gpu_utilization_ratio", percent_words),
            _pair(readings, "gpu_memory_used_bytes", "gpu_memory_total_bytes", bytes_words),
            _shown(readings, "gpu_temperature_celsius", lambda value: f"{value:.0f} °C"),
            _pair(readings, "gpu_power_watts", "gpu_power_limit_watts", lambda value: f"{value:.0f} W"),
            Text(state, style="green" if good else "red"),
        )
    return table


def _title(device: Device) -> str:
    """Return what to call the device; a part of a GPU is set off from it."""
    name = device.name or f"{device.kind} ({device.side})"
    if device.kind is ViewKind.GPU:
        return name
    _, mig, profile = name.rpartition(" MIG ")
    return f"└ MIG {profile}" if mig else f"└ {name}"


def _state(device: Device) -> tuple[str, bool]:
    """Return the device's state, or why its readings are absent, and whether that is good."""
    if device.kind is not ViewKind.GPU and _has_values(device):
        license_ = device.readings.get("vgpu_license_state")
        bad = license_ is not None and str(license_.value).startswith("unlicensed")
        return (str(license_.value), False) if license_ is not None and bad else ("ok", True)
    state = device.readings.get("gpu_state")
    if state is None and device.side is not Side.PCI_ONLY and _has_values(device):
        return NOTHING, False  # whoever reads it does not tell; that something else is absent is no state
    asked = [state] if state is not None and state.absent is not None else []
    asked += [reading for reading in device.readings.values() if reading.absent is not None]
    if state is not None and state.value == "ok":
        wanted = _wanted(device)
        return ", ".join(["ok", *wanted]), not wanted
    words = [str(state.value)] if state is not None and state.value is not None else []
    if asked:
        words.append(f"{asked[0].absent}: {asked[0].detail}" if asked[0].detail else str(asked[0].absent))
    return ", ".join(words) or NOTHING, False


def _has_values(device: Device) -> bool:
    return any(reading.value is not None for reading in device.readings.values())


def _wanted(device: Device) -> list[str]:
    """Return what a GPU that answers well still asks an operator for."""
    wanted = []
    action = device.readings.get("gpu_recovery_action")
    if action is not None and action.value not in (None, "none"):
        wanted.append(f"asks for {action.value}")
    for metric, words in (("gpu_row_remap_pending", "remap pending"), ("gpu_row_remap_failed", "remap failed")):
        if _number(device.readings, metric):
            wanted.append(words)
    return wanted


def _host(snapshot: Snapshot) -> list[Text]:
    host = snapshot.host.readings
    lines: list[Text] = []
    facts = [
        f"{_shown(host, 'host_cpu_utilization_ratio', percent_words)} of {_shown(host, 'host_cpus', str)} cores",
        "load " + " ".join(_shown(host, f"host_load_{span}", lambda v: f"{v:.2f}") for span in ("1m", "5m", "15m")),
    ]
    if "host_cpus" in host or "host_cpu_utilization_ratio" in host:
        lines.append(_line("cpu", " · ".join(facts)))
    total, available = _number(host, "host_memory_total_bytes"), _number(host, "host_memory_available_bytes")
    if total is not None and available is not None:
        lines.append(_line("memory", f"{bytes_words(total - available)} of {bytes_words(total)} in use"))
    pressure = [
        f"{dim.labels['resource']} {percent_words(dim.value)}"
        for dim in snapshot.host.dimensions
        if dim.metric == "host_pressure_ratio"
        and dim.labels["share"] == "some"
        and dim.labels["window"] == "10s"
        and isinstance(dim.value, int | float)
    ]
    if pressure:
        lines.append(_line("waiting", " · ".join(pressure)))
    lines += _disks(snapshot)
    return lines


def _disks(snapshot: Snapshot) -> list[Text]:
    figures: dict[str, dict[str, float]] = {}
    for dim in snapshot.host.dimensions:
        if dim.metric.startswith("host_filesystem_") and isinstance(dim.value, int | float):
            figures.setdefault(dim.labels["mountpoint"], {})[dim.metric] = dim.value
    facts = [
        f"{mount} {bytes_words(known['host_filesystem_available_bytes'])} free of "
        f"{bytes_words(known['host_filesystem_size_bytes'])}"
        for mount, known in figures.items()
        if known.get("host_filesystem_size_bytes") and "host_filesystem_available_bytes" in known
    ]
    shown = " · ".join(facts[:4]) + (f" · and {len(facts) - 4} more" if len(facts) > 4 else "")
    return [_line("disks", shown)] if facts else []


def _readers(snapshot: Snapshot) -> list[Text]:
    lines: list[Text] = []
    told: set[tuple[str, str]] = set()
    for report in snapshot.readers:
        if report.state in (ReaderState.OK, ReaderState.NEVER) or (report.reader, report.last_error) in told:
            continue
        told.add((report.reader, report.last_error))
        bad = report.state is ReaderState.FAILED
        words = f"failed ({report.error_class})" if bad else str(report.state)
        lines.append(_line(report.reader, f"{words}: {report.last_error}", style="red" if bad else "yellow"))
    working = dict.fromkeys(
        report.reader
        for report in snapshot.readers
        if report.state is ReaderState.OK and report.reader not in {reader for reader, _ in told}
    )
    idle = [reader for reader in working if snapshot.capabilities.get(reader, AVAILABLE) != AVAILABLE]
    for reader in idle:
        del working[reader]
        lines.append(_line(reader, "nothing to read on this machine", style="dim"))
    if working:
        longest = max(report.duration_seconds for report in snapshot.readers)
        lines.append(_line("readers", f"{', '.join(working)} ok · longest pass {seconds_words(longest)}"))
    return lines


def _line(title: str, words: str, style: str = "") -> Text:
    line = Text(f"{title:<8} ", style="dim")
    line.append(words, style=style)
    return line


def _text(readings: dict[str, Reading], metric: str) -> str:
    reading = readings.get(metric)
    return "" if reading is None or reading.value is None else value_words(metric, reading.value)


def _number(readings: dict[str, Reading], metric: str) -> float | None:
    reading = readings.get(metric)
    return reading.value if reading is not None and isinstance(reading.value, int | float) else None


def _shown(readings: dict[str, Reading], metric: str, words: Words) -> str:
    value = _number(readings, metric)
    return NOTHING if value is None else words(value)


def _pair(readings: dict[str, Reading], used: str, limit: str, words: Words) -> str:
    return f"{_shown(readings, used, words)} / {_shown(readings, limit, words)}"
