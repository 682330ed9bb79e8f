"""Lines of the machine itself: processor, memory, pressure, network and disks. Pure."""

from collections.abc import Mapping

from gpufleet.exporters.display import ValueFormatter, bytes_text, percent_text
from gpufleet.model.reading import DimReading, Reading
from gpufleet.model.snapshot import Host
from gpufleet.top.lines import NOTHING, Line, Span, cell
from gpufleet.top.observation import number_of

MAX_DISKS = 3
MAX_INTERFACES = 3

_RESOURCES = ("cpu", "io", "memory")


def host_lines(host: Host) -> list[Line]:
    """Return a line for processor and memory, and for pressure and network; one for disks if they are read."""
    readings = host.readings
    cpu = _text(readings, "host_cpu_utilization_ratio", percent_text)
    load = _text(readings, "host_load_1m", lambda value: f"{value:.2f}")
    total, free = (number_of(readings, f"host_memory_{part}_bytes") for part in ("total", "available"))
    memory = NOTHING if total is None or free is None else f"{bytes_text(total - free)} of {bytes_text(total)}"
    first = f"{cpu} of {_text(readings, 'host_cpus', lambda value: f'{value:g}')} cores, load {load}"
    lines = [_line("cpu", first, "memory", memory)]
    waiting = ", ".join(f"{name} {text}" for name, text in _pressure(host.dimensions).items()) or NOTHING
    lines.append(_line("waiting", waiting, "network", _network(host.dimensions)))
    disks = _disks(host.dimensions)
    if disks:
        lines.append((cell("disks", 8, "dim"), cell(disks)))
    return lines


def _line(name: str, text: str, second: str, other: str) -> Line:
    return (cell(name, 8, "dim"), cell(text, 32), Span(" "), cell(second, 8, "dim"), cell(other))


def _pressure(dimensions: tuple[DimReading, ...]) -> dict[str, str]:
    """Return the share of the last 10 s in which tasks waited, by resource."""
    found = {
        one.labels["resource"]: percent_text(one.value)
        for one in dimensions
        if one.metric == "host_pressure_ratio"
        and (one.labels.get("share"), one.labels.get("window")) == ("some", "10s")
        and one.labels.get("resource") in _RESOURCES
        and isinstance(one.value, int | float)
    }
    return {name: found[name] for name in _RESOURCES if name in found}


def _network(dimensions: tuple[DimReading, ...]) -> str:
    """Return the rates of the busiest physical interfaces."""
    rates: dict[str, dict[str, float]] = {}
    for one in dimensions:
        direction = _DIRECTIONS.get(one.metric)
        if direction and one.labels.get("class") == "physical" and isinstance(one.value, int | float):
            rates.setdefault(one.labels.get("interface", "?"), {})[direction] = one.value
    busiest = sorted(rates.items(), key=lambda entry: (-sum(entry[1].values()), entry[0]))
    shown = [
        f"{name} " + " ".join(f"{direction} {bytes_text(value)}/s" for direction, value in sorted(found.items()))
        for name, found in busiest[:MAX_INTERFACES]
    ]
    return ", ".join(shown) or NOTHING


_DIRECTIONS = {
    "host_network_receive_bytes_per_second": "in",
    "host_network_transmit_bytes_per_second": "out",
}


def _disks(dimensions: tuple[DimReading, ...]) -> str:
    """Return the fullest filesystems."""
    sizes: dict[str, dict[str, float]] = {}
    for one in dimensions:
        if one.metric.startswith("host_filesystem_") and isinstance(one.value, int | float):
            sizes.setdefault(one.labels.get("mountpoint", "?"), {})[one.metric] = one.value
    found = []
    for mount, known in sizes.items():
        size, available = known.get("host_filesystem_size_bytes"), known.get("host_filesystem_available_bytes")
        if size and available is not None:
            found.append((available / size, f"{mount} {bytes_text(available)} free of {bytes_text(size)}"))
    found.sort()
    more = f", {len(found) - MAX_DISKS} more" if len(found) > MAX_DISKS else ""
    return ", ".join(text for _, text in found[:MAX_DISKS]) + more


def _text(readings: Mapping[str, Reading], metric: str, formatter: ValueFormatter) -> str:
    value = number_of(readings, metric)
    return NOTHING if value is None else formatter(value)
