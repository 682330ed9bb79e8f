"""Rows for vGPU instances on their host, for their GPU, and for a vGPU seen from its guest."""

import datetime as dt

from gpufleet.model.catalogue.instances import ARR_MODES, SCHEDULER_POLICIES, VGPU_CAPABILITIES
from gpufleet.model.reading import Value
from gpufleet.model.view import normalise_uuid
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import vgpu as calls
from gpufleet.readers.nvml.mapping.row import MetricRow
from gpufleet.readers.nvml.mapping.units import number, percent, same, text

_VM_ID_KINDS = ("domain_id", "uuid")
_NO_DRIVER = frozenset({"", "N/A", "Not Available"})
_NANOS = 1_000_000_000


def _vm_id(value: protocol.Value) -> Value | None:
    """Return a UUID in lower case, or the hypervisor's own id unchanged."""
    return (normalise_uuid(value) or text(value)) if isinstance(value, str) else None


def _vm_id_kind(value: protocol.Value) -> Value:
    return _VM_ID_KINDS[int(number(value))] if value in (0, 1) else f"unnamed ({int(number(value))})"


def _guest_driver(value: protocol.Value) -> Value | None:
    version = text(value)
    return None if version in _NO_DRIVER else version


def _policy(value: protocol.Value) -> Value:
    return _name_of(SCHEDULER_POLICIES, value)


def _arr_mode(value: protocol.Value) -> Value:
    return _name_of(ARR_MODES, value)


def _name_of(states: tuple[str, ...], value: protocol.Value) -> Value:
    """Return the state's name; `unknown` for a number of a newer driver."""
    found = int(number(value))
    return states[found] if 0 <= found < len(states) else "unknown"


def _time_slice(value: protocol.Value) -> Value | None:
    """Return seconds from nanoseconds; None for 0, which means no time slice."""
    return (number(value) / _NANOS) or None


def _any(value: protocol.Value) -> Value:
    return int(number(value) > 0)


def _guest_license(value: protocol.Value) -> Value:
    return "licensed" if number(value) == 1 else "unlicensed"


def _expiry(value: protocol.Value) -> Value:
    """Return seconds since 1970 of a date in UTC.

    Raises:
        TypeError: if the value is not six integers.
        ValueError: if the date does not exist.
    """
    if not isinstance(value, list) or len(value) != 6 or not all(isinstance(part, int) for part in value):
        raise TypeError("a date has six numbers")
    year, month, day, hour, minute, second = value
    return int(dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC).timestamp())


ROWS: tuple[MetricRow, ...] = (
    MetricRow("vgpu_vm_id", calls.VM_ID, _vm_id, 0),
    MetricRow("vgpu_vm_id_kind", calls.VM_ID, _vm_id_kind, 1),
    MetricRow("vgpu_type", calls.TYPE, text, entry=0, inner=calls.TYPE_NAME),
    MetricRow("gpu_memory_total_bytes", calls.TYPE, same, entry=1, inner=calls.TYPE_SIZE, bits=64),
    MetricRow("gpu_memory_used_bytes", calls.MEMORY, same, bits=64),
    MetricRow("gpu_utilization_ratio", calls.UTILIZATION, percent, 0),
    MetricRow("gpu_memory_activity_ratio", calls.UTILIZATION, percent, 1),
    MetricRow("gpu_encoder_utilization_ratio", calls.UTILIZATION, percent, 2),
    MetricRow("gpu_decoder_utilization_ratio", calls.UTILIZATION, percent, 3),
    MetricRow("gpu_jpeg_utilization_ratio", calls.UTILIZATION, percent, 4),
    MetricRow("gpu_ofa_utilization_ratio", calls.UTILIZATION, percent, 5),
    MetricRow("vgpu_class", calls.TYPE_DETAILS, text, entry=0, inner=calls.TYPE_CLASS),
    MetricRow("vgpu_type_license", calls.TYPE_DETAILS, text, entry=1, inner=calls.TYPE_LICENSE),
    MetricRow("vgpu_guest_driver_version", calls.DRIVER, _guest_driver),
    MetricRow("vgpu_gpu_instance", calls.GPU_INSTANCE, text),
    MetricRow("vgpu_mdev_uuid", calls.MDEV, text),
    MetricRow("vgpu_ecc_mode", calls.ECC_MODE, None),
    MetricRow("vgpu_frame_rate_limit_hertz", calls.FRAME_LIMIT, same),
    MetricRow("vgpu_placement_id", calls.PLACEMENT, same),
    MetricRow("vgpu_accounting_mode", calls.ACCOUNTING_MODE, None),
    MetricRow("vgpu_accounting_processes", calls.ACCOUNTING_STATS, same, entry=0),
    MetricRow("vgpu_active", calls.ACCOUNTING_STATS, _any, entry=0),
    MetricRow("vgpu_accounting_utilization_ratio", calls.ACCOUNTING_STATS, percent, entry=1),
    MetricRow("vgpu_license_state", calls.LICENSE, None, entry=0),
    MetricRow("vgpu_license_expiry_timestamp_seconds", calls.LICENSE, _expiry, entry=1),
)
"""Readings of a vGPU instance."""


def _capability(name: str, number: int) -> MetricRow:
    entry = calls.CAPABILITY_NUMBERS.index(number)
    return MetricRow("gpu_vgpu_capability", calls.CAPABILITIES, same, entry=entry, labels=(name,))


GPU_ROWS: tuple[MetricRow, ...] = (
    MetricRow("gpu_vgpu_host_mode", calls.HOST_MODE, None),
    MetricRow("gpu_vgpu_scheduler_policy", calls.SCHEDULER, _policy, 0),
    MetricRow("gpu_vgpu_scheduler_arr_mode", calls.SCHEDULER, _arr_mode, 1),
    MetricRow("gpu_vgpu_scheduler_time_slice_seconds", calls.SCHEDULER, _time_slice, 2),
    MetricRow("gpu_vgpu_scheduler_arr_supported", calls.SCHEDULER_CAPS, same),
    MetricRow("gpu_vgpu_heterogeneous_mode", calls.HETEROGENEOUS, None),
    *(_capability(name, number) for name, number in VGPU_CAPABILITIES),
    MetricRow("vgpu_license_state", calls.FEATURES, _guest_license, entry=0),
    MetricRow("vgpu_license_expiry_timestamp_seconds", calls.FEATURES, _expiry, entry=1),
    MetricRow("vgpu_license_product", calls.FEATURES, text, entry=2),
)
"""Readings of a GPU that hosts vGPUs, and of a vGPU seen from its guest."""
