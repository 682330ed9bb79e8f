"""OpenTelemetry's conventions for hosts (`system.*`), as far as they mean what the catalogue means.

Read in open-telemetry/semantic-conventions, `model/system`, at 0108c1b; `development` there. `system.cpu.utilization`
is by processor and mode and ours is neither; their packets are by device, ours by interface.
"""

from gpufleet.dialects.otel_row import OWN, Instrument, OtelRow

COUNTER, UP_DOWN = Instrument.COUNTER, Instrument.UP_DOWN_COUNTER
_INTERFACE = ("network.interface.name", OWN + "class")


def _network(metric: str, name: str, unit: str, direction: str) -> OtelRow:
    fixed = (("network.io.direction", direction),)
    return OtelRow(metric=metric, name=name, unit=unit, instrument=COUNTER, fixed=fixed, dims=_INTERFACE)


SYSTEM: tuple[OtelRow, ...] = (
    OtelRow(
        metric="host_cpu_seconds_total",
        name="system.cpu.time",
        unit="s",
        instrument=COUNTER,
        dims=("cpu.logical_number", "cpu.mode"),
        words=(("irq", "interrupt"),),
    ),
    OtelRow(metric="host_cpus", name="system.cpu.logical.count", unit="{cpu}", instrument=UP_DOWN),
    OtelRow(metric="host_memory_total_bytes", name="system.memory.limit", unit="By", instrument=UP_DOWN),
    OtelRow(
        metric="host_filesystem_size_bytes",
        name="system.filesystem.limit",
        unit="By",
        instrument=UP_DOWN,
        dims=("system.filesystem.mountpoint", "system.device", "system.filesystem.type"),
    ),
    _network("host_network_receive_bytes_total", "system.network.io", "By", "receive"),
    _network("host_network_transmit_bytes_total", "system.network.io", "By", "transmit"),
    _network("host_network_receive_errors_total", "system.network.errors", "{error}", "receive"),
    _network("host_network_transmit_errors_total", "system.network.errors", "{error}", "transmit"),
    _network("host_network_receive_drops_total", "system.network.packet.dropped", "{packet}", "receive"),
    _network("host_network_transmit_drops_total", "system.network.packet.dropped", "{packet}", "transmit"),
)
