"""Rows for PCIe, NVLink, the chip-to-chip link and the NVLink fabric."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.catalogue.gpu_links import FABRIC_CONFIGURATIONS, FABRIC_HEALTH
from gpufleet.model.reading import Value
from gpufleet.model.view import normalise_pci_address
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls.links import (
    C2C_ERRORS,
    C2C_FIELDS,
    CORRECTED,
    FABRIC_INFO,
    LINK_ERRORS,
    LINK_FIELDS,
    NVLINK_PEER_PCI,
    NVLINK_STATE,
    NVLINK_VERSION,
    PCIE_ERRORS,
    PEERS,
    LinkFields,
)
from gpufleet.readers.nvml.mapping.row import Convert, FailedEntriesError, MetricRow, field_row, field_table
from gpufleet.readers.nvml.mapping.units import bit_errors, count, kibi, mega, number, same
from gpufleet.readers.nvml.parse import CODE_NAMES

_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVML_NVLINK_VERSION_*."""

_LINKS, _CORRECTIONS, _C2C = "NVLink field values", "NVLink corrections", "C2C field values"

_SUMMARIES = CATALOGUE["gpu_fabric_health_status"].states

_COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED: status, clique and health are valid in this state only (nvml.h)."""


def _version(value: protocol.Value) -> Value | None:
    found = int(number(value))
    return _VERSIONS.get(found, f"unnamed ({found})") if found else None


def _slot(address: protocol.Value) -> str:
    """Write a PCI address as sysfs does. Raises ValueError."""
    return normalise_pci_address(str(address))


def _active(value: protocol.Value) -> Value | None:
    """Count the links that are up.

    Raises:
        ValueError: if the driver returned something else.
        FailedEntriesError: if the state of a link is unknown.
    """
    states = value if isinstance(value, list) else []
    if any(not isinstance(state, list) or not isinstance(state[0], int) for state in states):
        raise ValueError("the state of a link is unknown")
    codes = [state[0] for state in states if state[0]]
    if codes:
        raise FailedEntriesError(codes)
    return sum(1 for _, up in states if up)


def _link(metric: str, name: str, convert: Convert, instead: MetricRow | None = None) -> MetricRow:
    part, id_ = next((at, id_) for at, (found, id_, _) in enumerate(LINK_FIELDS) if found == name)
    return MetricRow(
        metric, _LINKS, convert, part, every=True, sparse=True, instead=instead, inner=f"FI {id_}", bits=64
    )


def _rate(name: str, *, omit_if_none: bool) -> MetricRow:
    """Return a row of bit errors. If the chip has no bit error ratios, only the first kind reports that."""
    row = _link("gpu_nvlink_bit_error_ratio", f"{name} bit errors", bit_errors)
    return row._replace(labels=(name,), omit_if_none=omit_if_none, unmeasured=Reason.NO_DATA)


def _traffic(metric: str, name: str) -> MetricRow:
    """Return a row of a byte counter. Chips before Blackwell count in KiB, Blackwell in bytes in another field."""
    return _link(metric, f"{name}, KiB", kibi, _link(metric, name, same))


def _errors(metric: str, call: str, first: int, kinds: LinkFields) -> tuple[MetricRow, ...]:
    """Return a row per kind of error. If the chip counts none of them, only the first kind reports that."""
    return tuple(
        [
            MetricRow(
                metric,
                call,
                same,
                first + at,
                every=True,
                sparse=True,
                omit_if_none=at > 0,
                labels=(kind,),
                inner=f"FI {id_}",
                bits=64,
            )
            for at, (kind, id_, _) in enumerate(kinds)
        ]
    )


def _if_completed(value: protocol.Value) -> list[protocol.Value] | None:
    """Return the fabric info of a GPU that has joined the fabric, or None."""
    return value if isinstance(value, list) and len(value) >= 5 and value[0] == _COMPLETED else None


def _fabric_status(value: protocol.Value) -> Value | None:
    info = _if_completed(value)
    if info is None:
        return None
    code = int(number(info[1]))
    return "SUCCESS" if code == 0 else CODE_NAMES.get(code, f"unnamed ({code})")


def _fabric_clique(value: protocol.Value) -> Value | None:
    info = _if_completed(value)
    return str(int(number(info[2]))) if info is not None else None


def _fabric_cluster(value: protocol.Value) -> Value | None:
    """Format 16 bytes as a UUID; all zero means a fabric within one host."""
    info = _if_completed(value)
    if info is None or not isinstance(info[3], str) or not info[3].strip("0"):
        return None
    digits = info[3]
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _health_bits(value: protocol.Value, shift: int, width: int) -> int:
    """Return bits of the health mask; 0, which means "not reported", before the GPU has joined."""
    info = _if_completed(value)
    return int(number(info[4])) >> shift & ((1 << width) - 1) if info is not None else 0


def _fabric_condition(name: str, shift: int) -> MetricRow:
    yes, no = (2, 1) if name == "fabric_manager_disconnected" else (1, 2)

    def convert(value: protocol.Value) -> Value | None:
        return {yes: 1, no: 0}.get(_health_bits(value, shift, 2))

    return MetricRow("gpu_fabric_health", FABRIC_INFO, convert, labels=(name,))


def _fabric_configuration(value: protocol.Value) -> Value | None:
    found = _health_bits(value, 8, 4)
    if found >= len(FABRIC_CONFIGURATIONS):
        raise ValueError(f"configuration {found} has no name")
    return FABRIC_CONFIGURATIONS[found]


def _fabric_summary(value: protocol.Value) -> Value | None:
    """Return the name of the health summary; drivers before 580 do not report it."""
    info = _if_completed(value)
    found = int(number(info[5])) if info is not None and len(info) > 5 else 0
    if not 0 <= found < len(_SUMMARIES):
        raise ValueError(f"summary {found} has no name")
    return _SUMMARIES[found]


ROWS = (
    # PCIe
    MetricRow("gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", same),
    MetricRow("gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth", same),
    MetricRow("gpu_pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", same),
    MetricRow("gpu_pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth", same),
    MetricRow("gpu_pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", same),
    field_row("gpu_pcie_transmit_bytes_total", "pcie, transmitted", same, bits=64),
    field_row("gpu_pcie_receive_bytes_total", "pcie, received", same, bits=64),
    field_table("gpu_pcie_errors_total", "pcie error", tuple([kind for kind, _ in PCIE_ERRORS]), same),
    # NVLink
    MetricRow("gpu_nvlinks", NVLINK_STATE, count),
    MetricRow("gpu_nvlinks_active", NVLINK_STATE, _active),
    MetricRow("gpu_nvlink_up", NVLINK_STATE, same, every=True),
    _link("gpu_nvlink_speed_bytes_per_second", "speed", mega),
    field_row("gpu_nvlink_transmit_bytes_total", "nvlink, transmitted", kibi, bits=64),
    field_row("gpu_nvlink_receive_bytes_total", "nvlink, received", kibi, bits=64),
    _traffic("gpu_nvlink_link_transmit_bytes_total", "transmitted"),
    _traffic("gpu_nvlink_link_receive_bytes_total", "received"),
    *_errors("gpu_nvlink_errors_total", _LINKS, len(LINK_FIELDS), LINK_ERRORS),
    _rate("effective", omit_if_none=False),
    _rate("symbol", omit_if_none=True),
    *_errors("gpu_nvlink_corrected_total", _CORRECTIONS, 0, CORRECTED),
    *[MetricRow("gpu_nvlink_peers", "NVLink peers", same, at, labels=(peer,)) for at, peer in enumerate(PEERS)],
    MetricRow(
        "gpu_nvlink_gpu_links",
        "linked GPUs",
        same,
        every=True,
        label=_slot,
        names=("unknown",),
        omit_if_none=True,
        inner=NVLINK_PEER_PCI,
    ),
    field_row("gpu_nvswitch_links", "nvswitch links", same),
    MetricRow("gpu_nvlink_version", NVLINK_VERSION, _version),
    # chip-to-chip link
    MetricRow("gpu_c2c_enabled", "nvmlDeviceGetC2cModeInfoV", same, 0),
    MetricRow("gpu_c2c_link_up", _C2C, same, 0, every=True, inner="FI 171"),
    MetricRow("gpu_c2c_link_speed_bytes_per_second", _C2C, mega, 1, every=True, inner="FI 172"),
    *_errors("gpu_c2c_errors_total", _C2C, len(C2C_FIELDS), C2C_ERRORS),
    # fabric
    MetricRow("gpu_fabric_state", FABRIC_INFO, None, 0),
    MetricRow("gpu_fabric_status", FABRIC_INFO, _fabric_status),
    MetricRow("gpu_fabric_cluster_uuid", FABRIC_INFO, _fabric_cluster),
    MetricRow("gpu_fabric_clique", FABRIC_INFO, _fabric_clique),
    *[_fabric_condition(name, shift) for name, shift in FABRIC_HEALTH],
    MetricRow("gpu_fabric_incorrect_configuration", FABRIC_INFO, _fabric_configuration),
    MetricRow("gpu_fabric_health_status", FABRIC_INFO, _fabric_summary),
)
