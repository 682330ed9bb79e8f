"""NVLink and the chip-to-chip link."""

from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls.nvlink import (
    C2C_ERRORS,
    C2C_FIELDS,
    CORRECTED,
    LINK_ERRORS,
    LINK_FIELDS,
    PEERS,
    STATE,
    VERSION,
    Ids,
)
from gpufleet.readers.nvml.mapping.row import Convert, Row, field_row
from gpufleet.readers.nvml.mapping.units import bit_errors, count, kibi, mega, number, same

_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVML_NVLINK_VERSION_*."""

_LINKS, _CORRECTIONS, _C2C = "NVLink field values", "NVLink corrections", "C2C field values"


def _version(value: protocol.Value) -> Value | None:
    found = int(number(value))
    return _VERSIONS.get(found, f"unnamed ({found})") if found else None


def _active(value: protocol.Value) -> Value | None:
    """Count the links that are up; none can be counted while the state of one is not known."""
    states = value if isinstance(value, list) else []
    if any(not isinstance(state, list) or state[0] for state in states):
        raise ValueError("the state of a link is not known")
    return sum(1 for _, up in states if up)


def _link(metric: str, name: str, convert: Convert, instead: Row | None = None) -> Row:
    part, id_ = next((at, id_) for at, (found, id_, _) in enumerate(LINK_FIELDS) if found == name)
    return Row(metric, _LINKS, convert, part, every=True, sparse=True, instead=instead, inner=f"FI {id_}", bits=64)


def _rate(name: str, *, silent: bool) -> Row:
    """Return a row of bit errors; that the chip tells none is told of the first kind."""
    row = _link("gpu_nvlink_bit_error_ratio", f"{name} bit errors", bit_errors)
    return row._replace(labels=(name,), silent=silent)


def _traffic(metric: str, name: str) -> Row:
    """Chips before Blackwell count in KiB, Blackwell in bytes under another number."""
    return _link(metric, f"{name}, KiB", kibi, _link(metric, name, same))


def _errors(metric: str, call: str, first: int, kinds: Ids) -> tuple[Row, ...]:
    """Return a row a kind of error; that the chip counts none is told of the first kind."""
    return tuple(
        [
            Row(
                metric,
                call,
                same,
                first + at,
                every=True,
                sparse=True,
                silent=at > 0,
                labels=(kind,),
                inner=f"FI {id_}",
                bits=64,
            )
            for at, (kind, id_, _) in enumerate(kinds)
        ]
    )


ROWS = (
    Row("gpu_nvlinks", STATE, count),
    Row("gpu_nvlinks_active", STATE, _active),
    Row("gpu_nvlink_up", STATE, same, every=True),
    _link("gpu_nvlink_speed_bytes_per_second", "speed", mega),
    field_row("gpu_nvlink_transmit_bytes_total", "nvlink, transmitted", kibi, bits=64),
    field_row("gpu_nvlink_receive_bytes_total", "nvlink, received", kibi, bits=64),
    _traffic("gpu_nvlink_link_transmit_bytes_total", "transmitted"),
    _traffic("gpu_nvlink_link_receive_bytes_total", "received"),
    *_errors("gpu_nvlink_errors_total", _LINKS, len(LINK_FIELDS), LINK_ERRORS),
    _rate("effective", silent=False),
    _rate("symbol", silent=True),
    *_errors("gpu_nvlink_corrected_total", _CORRECTIONS, 0, CORRECTED),
    *[Row("gpu_nvlink_peers", "NVLink peers", same, at, labels=(peer,)) for at, peer in enumerate(PEERS)],
    field_row("gpu_nvswitch_links", "nvswitch links", same),
    Row("gpu_nvlink_version", VERSION, _version),
    Row("gpu_c2c_enabled", "nvmlDeviceGetC2cModeInfoV", same, 0),
    Row("gpu_c2c_link_up", _C2C, same, 0, every=True, inner="FI 171"),
    Row("gpu_c2c_link_speed_bytes_per_second", _C2C, mega, 1, every=True, inner="FI 172"),
    *_errors("gpu_c2c_errors_total", _C2C, len(C2C_FIELDS), C2C_ERRORS),
)
