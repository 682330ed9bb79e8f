"""Conversion of a printed text to a value of the catalogue, or to an absence with its reason."""

import datetime as dt
import re
from collections.abc import Mapping
from typing import NamedTuple

from gpufleet.codecs.nvidia_smi.values import shown, slug
from gpufleet.model.absence import Absent, Reason, worst_absence
from gpufleet.model.catalogue import Metric, ValueType
from gpufleet.model.driver_texts import ZERO_REASONS, text_reason
from gpufleet.model.reading import Value
from gpufleet.model.view import normalise_pci_address

_NUMBER = re.compile(r"(-?[0-9]{1,19})(\.[0-9]{1,9})? ?([A-Za-z%][A-Za-z%()/]{0,11})?", re.ASCII)
_NO_VALUE = 0xFFFF_FFFF
"""NVML's 32-bit sentinel for no value. The 64-bit sentinel has more digits than are accepted here."""

_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)
_PERFORMANCE_STATE = re.compile(r"P([0-9]{1,2})", re.ASCII)


class _Unit(NamedTuple):
    base: str
    times: int = 1
    over: int = 1


_UNITS = {
    "": _Unit(""),
    "%": _Unit("ratio", over=100),
    "C": _Unit("celsius"),
    "W": _Unit("watts"),
    "MHz": _Unit("hertz", 1_000_000),
    "MiB": _Unit("bytes", 1 << 20),
    "KB/s": _Unit("bytes_per_second", 1000),
    "FPS": _Unit("hertz"),
    "us": _Unit("seconds", over=1_000_000),
    "ms": _Unit("seconds", over=1000),
    "x": _Unit(""),
    "bank(s)": _Unit(""),
}
"""Printed unit to the catalogue's unit. CSV prints units unless `nounits` is given."""

_IMPLIED = {"celsius": _Unit("celsius")}
"""Units that CSV omits although it prints other units (`temperature.gpu`)."""

_YES = {"yes": 1, "no": 0, "true": 1, "false": 0, "active": 1, "not active": 0, "enabled": 1, "disabled": 0}

_CONDITIONS = {"gpu_fabric_health": {"full": 0, "degraded": 1}}
"""Metric to further terms for 0 and 1.

nvidia-smi 580.65 prints `Full` and `Degraded` as the fabric's bandwidth, by the documentation of NVIDIA's NVML mock
(NVIDIA/k8s-test-infra, docs/configuration.md, "Fabric Health"). Boards in the captures print `N/A`.
"""

LICENSE_STATE, LICENSE_EXPIRY = "vgpu_license_state", "vgpu_license_expiry_timestamp_seconds"

_EXPIRES = re.compile(
    r"\(Expiry: ([0-9]{4})-([0-9]{1,2})-([0-9]{1,2}) ([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2}) GMT\)|\(Expiry: [^)]*\)",
    re.ASCII,
)
"""Expiry in `Licensed (Expiry: 2026-7-7 16:1:44 GMT)`; numbers are not padded."""

CATALOGUE_STATES: Mapping[str, Mapping[str, str]] = {
    "gpu_virtualization_mode": {
        "pass_through": "passthrough",
        "vgpu": "vgpu_guest",
        "host_vgpu": "vgpu_host",
        "host_vsga": "vsga_host",
    },
    "gpu_recovery_action": {"reset": "gpu_reset", "reboot": "node_reboot"},
    "gpu_vgpu_host_mode": {"sr_iov": "sriov", "non_sr_iov": "non_sriov"},
    "gpu_fabric_status": {"Success": "SUCCESS"},
    "gpu_architecture": {"Ada Lovelace": "Ada"},
}
"""Metric to nvidia-smi's names of states and texts that differ from the catalogue's."""


def read_text(metric: Metric, text: str, label: str) -> Value | Absent:
    """Return the value of a printed text.

    Args:
        metric: the catalogue entry.
        text: printed text, including its unit.
        label: name of the field or path, for the detail of an absence.
    """
    if metric.name == LICENSE_STATE:
        text = _EXPIRES.sub("", text)
    why = None if _is_state(metric, text) else text_reason(text)
    if why is not None:
        return Absent(_meaning_of_na(metric, why), label)
    text = text.strip()
    if metric.name == LICENSE_EXPIRY:
        return _expiry(metric, text, label)
    if metric.type is ValueType.ENUM:
        name = slug(text)
        state = CATALOGUE_STATES.get(metric.name, {}).get(name, name)
        return state if state in metric.states else Absent(Reason.INVALID_VALUE, label)
    if metric.type is ValueType.TEXT:
        return _text(metric, text, label)
    value = _checked(metric, _number(metric, text), label)
    return Absent(ZERO_REASONS[metric.name], label) if value == 0 and metric.name in ZERO_REASONS else value


def sum_counts(metric: Metric, texts: Mapping[str, str]) -> Value | Absent:
    """Return the sum of separately printed counts.

    A count that this chip does not have (`N/A`) adds nothing, as in the driver's own totals. If any other count is
    absent, or all are, so is the sum, with the worst reason.
    """
    parts = [read_text(metric, text, label) for label, text in texts.items()]
    absent = [part for part in parts if isinstance(part, Absent)]
    counts = [int(part) for part in parts if not isinstance(part, Absent)]
    if absent and (not counts or any(part.reason is not Reason.NOT_SUPPORTED for part in absent)):
        return worst_absence(absent)
    return _checked(metric, sum(counts), next(iter(texts)))


def is_active(text: str) -> int | None:
    """Return 1 for `Active`, 0 for `Not Active`, None for anything else."""
    return {"active": 1, "not active": 0}.get(text.strip().lower())


def _meaning_of_na(metric: Metric, why: Reason) -> Reason:
    """Return `no_data` instead of `not_supported` for metrics that every device supports but may have no value for."""
    cases = {case.reason for case in metric.absent_when}
    if why is Reason.NOT_SUPPORTED and Reason.NO_DATA in cases and Reason.NOT_SUPPORTED not in cases:
        return Reason.NO_DATA
    return why


def _expiry(metric: Metric, text: str, label: str) -> Value | Absent:
    found = _EXPIRES.search(text)
    if found is None or found[1] is None:
        return Absent(Reason.NO_DATA, label)
    try:
        year, month, day, hour, minute, second = (int(part) for part in found.groups())
        at = dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC)
    except ValueError:
        return Absent(Reason.INVALID_VALUE, label)
    return _checked(metric, int(at.timestamp()), label)


def _is_state(metric: Metric, text: str) -> bool:
    return metric.type is ValueType.ENUM and slug(text) in metric.states


def _text(metric: Metric, text: str, label: str) -> Value | Absent:
    if metric.name == "gpu_pci_address":
        try:
            return normalise_pci_address(text)
        except ValueError:
            return Absent(Reason.INVALID_VALUE, label)
    if metric.name == "gpu_fabric_cluster_uuid" and not text.strip("0-"):
        return Absent(Reason.NO_DATA, label)  # a fabric within one host
    return shown(CATALOGUE_STATES.get(metric.name, {}).get(text, text)) or Absent(Reason.NO_DATA, label)


def _number(metric: Metric, text: str) -> Value | None:
    """Return the number in the metric's unit, or None if the text is not a number or has another unit."""
    if not metric.unit and metric.type is ValueType.INT and _HEXADECIMAL.fullmatch(text) is not None:
        return int(text, 16) if int(text, 16) != _NO_VALUE else None
    state = _PERFORMANCE_STATE.fullmatch(text)
    if state is not None and metric.name == "gpu_performance_state":
        return int(state[1])
    if metric.high == 1 and metric.type is ValueType.INT:
        term = text.lower()
        known = _YES.get(term, _CONDITIONS.get(metric.name, {}).get(term))
        if known is not None:
            return known
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    whole, part, printed = found[1], found[2], found[3] or ""
    unit = _IMPLIED.get(metric.unit) if not printed else None
    unit = unit or _UNITS.get(printed)
    if unit is None or unit.base != metric.unit:
        return None
    if int(whole) == _NO_VALUE:
        return None
    if metric.type is ValueType.INT:
        return None if part is not None or unit.over != 1 else int(whole) * unit.times
    return float(whole + (part or "")) * unit.times / unit.over


def _checked(metric: Metric, value: Value | None, label: str) -> Value | Absent:
    if value is None or isinstance(value, str):
        return Absent(Reason.INVALID_VALUE, label)
    too_low = metric.low is not None and value < metric.low
    too_high = metric.high is not None and value > metric.high
    if too_low or too_high or value >= 2**63:
        return Absent(Reason.INVALID_VALUE, label)
    return value
