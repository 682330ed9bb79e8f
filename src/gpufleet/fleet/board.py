"""Defaults of drivers in place of absences, for parts that a board or machine may lack: a rack, NVLink, a fabric, MIG.

Pure; shared by readers.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence

import msgspec

from gpufleet.fleet.ecc import ECC_COUNTS, drop_counts_without_ecc
from gpufleet.model.absence import Absent, Reason, as_unsupported, worst_absence
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.products import (
    ENCODER,
    FAN,
    JPEG,
    MEMORY,
    NVLINK,
    OPTICAL_FLOW,
    RARELY_LACKED,
    is_module,
    is_vgpu_type,
    lacking_parts,
)
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.view import ViewKind

CHASSIS_SERIAL, FABRIC_GUID = "gpu_chassis_serial", "gpu_fabric_guid"

RACK_DEFAULTS = {"gpu_chassis_slot": "0", "gpu_tray_index": "0", "gpu_host_id": "1"}
"""Place of the GPU in a chassis, and what the driver returns without a chassis."""

RACK_PLACE = tuple(RACK_DEFAULTS)

ECC = "ecc"

METRICS_OF_PART: Mapping[str, frozenset[str]] = {
    ECC: ECC_COUNTS,
    NVLINK: frozenset(name for name in CATALOGUE if name.startswith(("gpu_nvlink", "gpu_nvswitch_"))),
}
"""Part of a board to the metrics that belong to it."""

PART_OF_USE = {
    "gpu_encoder_utilization_ratio": ENCODER,
    "gpu_jpeg_utilization_ratio": JPEG,
    "gpu_ofa_utilization_ratio": OPTICAL_FLOW,
    "gpu_fan_speed_ratio": FAN,
    "gpu_fan_speed_rpm": FAN,
    "gpu_nvlink_transmit_bytes_per_second": NVLINK,
    "gpu_nvlink_receive_bytes_per_second": NVLINK,
    "gpu_memory_activity_ratio": MEMORY,
}
"""Metric of the use of a part to the part, as in `model.products`."""

FABRIC_STATE, FABRIC_HEALTH = "gpu_fabric_state", "gpu_fabric_health"
FABRIC_CLUSTER, FABRIC_CLIQUE = "gpu_fabric_cluster_uuid", "gpu_fabric_clique"
_NO_FABRIC, _JOINED = "not_supported", "completed"

FABRIC_DETAILS = (
    *("gpu_fabric_status", FABRIC_CLUSTER, FABRIC_CLIQUE),
    *("gpu_fabric_incorrect_configuration", "gpu_fabric_health_status"),
)
"""Readings that are valid only once the GPU has joined the fabric (nvml.h)."""

_NOT_REPORTED = ("gpu_fabric_incorrect_configuration", "gpu_fabric_health_status")
"""Metrics whose state `not_reported` is the driver's number for no value."""

IDENTITIES = ("gpu_serial", "gpu_vbios_version", "gpu_module_id")
"""Texts that identify a board, its firmware or its place on a baseboard. A text of zeros is no value.

Examples are the VBIOS version in a vGPU guest, and the module id of a product without a baseboard (nvml.h).
"""

MODULE_IDS = ("gpu_module_id", "gpu_platform_module_id")
FIRST_MODULE = "1"
"""Place of the first module on a baseboard, and what the driver returns for a card."""

PROTECTED_TOTAL, PROTECTED_USED = "gpu_protected_memory_total_bytes", "gpu_protected_memory_used_bytes"
UNPROTECTED_TOTAL = "gpu_unprotected_memory_total_bytes"

CONFIDENTIAL, MULTI_GPU_MODE = "nvidia_confidential_computing", "nvidia_confidential_multi_gpu"
GPUS_READY = "nvidia_confidential_gpus_ready"

MEMORY_TOTAL, MEMORY_ACTIVITY = "gpu_memory_total_bytes", "gpu_memory_activity_ratio"

DISPLAY_ATTACHED, DISPLAY_ACTIVE = "gpu_display_attached", "gpu_display_active"

NAME, VGPU_TYPE, VIRTUALIZATION = "gpu_name", "vgpu_type", "gpu_virtualization_mode"
MIG_MODES = MIG_MODE, MIG_MODE_PENDING = "gpu_mig_mode", "gpu_mig_mode_pending"
RETIRED_PAGES, RETIRED_PAGES_PENDING = "gpu_retired_pages", "gpu_retired_pages_pending"

NOT_OF_MIG = frozenset(
    name
    for name, metric in CATALOGUE.items()
    if Subject.MIG in metric.subjects and any(case.reason is Reason.NOT_IN_MIG_MODE for case in metric.absent_when)
)
"""Metrics of a MIG device that the driver does not report, such as its utilisation."""

HIDDEN_BY_MIG = frozenset(
    {
        "gpu_remapped_rows_correctable",
        "gpu_remapped_rows_uncorrectable",
        "gpu_row_remap_pending",
        "gpu_row_remap_failed",
        "gpu_row_remap_banks",
        "gpu_remapped_rows_inactive",
    }
)
"""Metrics that a chip does not report while it has MIG instances: nvml.h, and both H200 captures."""


def drop_rack_defaults(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace the driver's defaults for a board that is not in a rack by `not_supported`.

    A place is valid only with the serial number of a chassis. An empty or zero serial number or GUID is no value. If
    the source does not report the serial number at all, a place that differs from the defaults is valid.
    """
    for name in (CHASSIS_SERIAL, FABRIC_GUID):
        value = values.get(name)
        if value is not None and _is_none(value):
            values[name] = Absent(Reason.NOT_SUPPORTED, value.detail if isinstance(value, Absent) else name)
    serial = values.get(CHASSIS_SERIAL)
    if serial is None and all(values.get(name, default) == default for name, default in RACK_DEFAULTS.items()):
        serial = Absent(Reason.NOT_REPORTED, CHASSIS_SERIAL)
    if not isinstance(serial, Absent):
        return
    for name in RACK_PLACE:
        if name in values and not isinstance(values[name], Absent):
            values[name] = serial


def drop_fabric_defaults(values: MutableMapping[str, Value | Absent], dims: Iterable[DimValue]) -> tuple[DimValue, ...]:
    """Replace the driver's defaults for a GPU that is outside a fabric or has not joined its fabric yet.

    `not_supported` as the state of the fabric, and `not_reported` as its health or configuration, are no values. The
    state is also the reason of absent details: readers cannot distinguish a GPU without a fabric from a GPU that has
    not joined its fabric. A clique is a number within its cluster, so it counts only with a cluster UUID, and clique 0
    only with a known one: the driver reports it for every fabric that does not span hosts. Return the readings with
    dimensions, changed likewise.
    """
    cluster = values.get(FABRIC_CLUSTER)
    if cluster is None and values.get(FABRIC_CLIQUE) == "0":
        cluster = Absent(Reason.NOT_REPORTED, FABRIC_CLUSTER)
    if isinstance(cluster, Absent) and not isinstance(values.get(FABRIC_CLIQUE, cluster), Absent):
        values[FABRIC_CLIQUE] = cluster
    state = values.get(FABRIC_STATE)
    if state == _NO_FABRIC:
        state = values[FABRIC_STATE] = Absent(Reason.NOT_SUPPORTED, FABRIC_STATE)
    if state is None or state == _JOINED or (isinstance(state, Absent) and state.reason is Reason.NOT_REPORTED):
        for name in _NOT_REPORTED:
            if values.get(name) == "not_reported":
                values[name] = Absent(Reason.NOT_SUPPORTED, name)
        return tuple(dims)
    why = state if isinstance(state, Absent) else Absent(Reason.NO_DATA, FABRIC_STATE)
    for name in FABRIC_DETAILS:
        if name in values:
            values[name] = _without_fabric(values[name], why)
    return tuple(
        [
            DimValue(dim.metric, dim.labels, _without_fabric(dim.value, why)) if dim.metric == FABRIC_HEALTH else dim
            for dim in dims
        ]
    )


def _without_fabric(value: Value | Absent, why: Absent) -> Value | Absent:
    """Return a detail of the fabric as absent for the reason `why`, unless its reading failed for another reason."""
    if isinstance(value, Absent) and value.reason not in {Reason.NOT_SUPPORTED, Reason.NO_DATA} - {why.reason}:
        return value
    return why


def drop_zero_identities(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace identities that consist of zeros by `not_supported`."""
    for name in IDENTITIES:
        value = values.get(name)
        if isinstance(value, str) and not value.strip("0.- "):
            values[name] = Absent(Reason.NOT_SUPPORTED, name)


def drop_module_of_card(values: MutableMapping[str, Value | Absent], product: Value | Absent | None) -> None:
    """Replace module 1 of a card by `not_supported`: the driver reports it also without a baseboard (T4, L40S).

    A GPU with a chassis is a module. Without a known product, module 1 is absent for the reason of the product's name.
    """
    if not isinstance(values.get(CHASSIS_SERIAL, Absent(Reason.NOT_REPORTED)), Absent):
        return
    if isinstance(product, str):
        why = None if is_module(product) else Absent(Reason.NOT_SUPPORTED, NAME)
    else:
        why = product if isinstance(product, Absent) else Absent(Reason.NOT_REPORTED, NAME)
    for name in MODULE_IDS:
        if why is not None and values.get(name) == FIRST_MODULE:
            values[name] = why


def drop_attached_display(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace an attached display that is not active by `no_data`.

    The driver reports `enabled` also for a board without outputs, and in a vGPU guest (seen on A100-SXM4, A6000-24Q).
    """
    if values.get(DISPLAY_ATTACHED) == "enabled" != values.get(DISPLAY_ACTIVE):
        values[DISPLAY_ATTACHED] = Absent(Reason.NO_DATA, DISPLAY_ATTACHED)


def drop_place_defaults(values: MutableMapping[str, Value | Absent], product: Value | Absent | None) -> None:
    """Replace the driver's defaults for the identity of a board, its place, and its display."""
    drop_rack_defaults(values)
    drop_zero_identities(values)
    drop_module_of_card(values, product)
    drop_attached_display(values)


def drop_empty_protected_memory(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace the sizes of protected and unprotected memory of a GPU without protected memory by `not_supported`.

    The driver reports 0 protected bytes unless confidential computing is on, also for boards that cannot have it.
    The unprotected memory is then all memory that the driver manages, or 0. Without a known total, 0 used bytes are
    therefore no value.
    """
    if values.get(PROTECTED_TOTAL) == 0:
        values[PROTECTED_TOTAL] = Absent(Reason.NOT_SUPPORTED, PROTECTED_TOTAL)
    total = values.get(PROTECTED_TOTAL, Absent(Reason.NOT_REPORTED, PROTECTED_TOTAL))
    if not isinstance(total, Absent):
        return
    if values.get(PROTECTED_USED) == 0:
        values[PROTECTED_USED] = total
    has_size = not isinstance(values.get(UNPROTECTED_TOTAL, total), Absent)
    if has_size and total.reason is Reason.NOT_SUPPORTED:
        values[UNPROTECTED_TOTAL] = total


def drop_readiness_without_confidential_mode(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace the readiness of confidential GPUs by `not_supported` if no mode of confidential computing is on.

    The driver reports 0 in that case. With a mode for several GPUs, it reports confidential computing as disabled. If
    a mode cannot be read, 0 proves nothing and is absent for the mode's reason.

    Args:
        values: readings of the machine, with both modes.
    """
    computing, several = values[CONFIDENTIAL], values[MULTI_GPU_MODE]
    if isinstance(values[GPUS_READY], Absent) or computing == "enabled" or several in ("protected_pcie", "nvlink"):
        return
    without = (Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER)
    unread = [mode for mode in (computing, several) if isinstance(mode, Absent) and mode.reason not in without]
    if not unread:
        values[GPUS_READY] = Absent(Reason.NOT_SUPPORTED, CONFIDENTIAL)
    elif values[GPUS_READY] == 0:
        values[GPUS_READY] = worst_absence(unread)


def drop_activity_without_memory(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace an activity of 0 by `not_supported` if the GPU has no memory of its own.

    The driver reports 0 at any load for a GPU that uses the memory of its CPU (see `model.products`).
    """
    total = values.get(MEMORY_TOTAL)
    if values.get(MEMORY_ACTIVITY) == 0 and isinstance(total, Absent) and total.reason is Reason.NOT_SUPPORTED:
        values[MEMORY_ACTIVITY] = total


def unproven_uses(product: Value | Absent | None) -> dict[str, Absent]:
    """Return the uses of parts that the product lacks or may lack, each with the absence that replaces 0.

    Args:
        product: product name of the GPU, or type of the vGPU; an absence or None if it is not known.

    Returns:
        Keys of `PART_OF_USE` to the absence.
    """
    if not isinstance(product, str):
        why = product if isinstance(product, Absent) else Absent(Reason.NOT_REPORTED, NAME)
        return {use: why for use, part in PART_OF_USE.items() if part not in RARELY_LACKED}
    lacking = lacking_parts(product)
    return {use: Absent(Reason.NOT_SUPPORTED, use) for use, part in PART_OF_USE.items() if part in lacking}


def drop_unproven_uses(values: MutableMapping[str, Value | Absent], unproven: Mapping[str, Absent]) -> None:
    """Replace uses of 0 that are no measurement: those of parts that the product lacks or may lack.

    Args:
        values: readings of a GPU or vGPU.
        unproven: result of `unproven_uses`.
    """
    for use, why in unproven.items():
        if values.get(use) == 0:
            values[use] = why


def without_unproven_uses(dims: Iterable[DimValue], unproven: Mapping[str, Absent]) -> tuple[DimValue, ...]:
    """Return readings with dimensions, changed as by `drop_unproven_uses`."""
    if not unproven:
        return tuple(dims)
    return tuple(
        [
            DimValue(dim.metric, dim.labels, unproven[dim.metric]) if dim.value == 0 and dim.metric in unproven else dim
            for dim in dims
        ]
    )


def is_vgpu_guest(product: Value | Absent | None, virtualization: Value | Absent | None) -> bool:
    """Return whether a GPU is a vGPU as its guest sees it.

    Args:
        product: product name, which is the vGPU type in a guest.
        virtualization: reading of `gpu_virtualization_mode`. Both are None if their source has none.
    """
    return virtualization == "vgpu_guest" or (isinstance(product, str) and is_vgpu_type(product))


def drop_defaults_of_guest(
    values: MutableMapping[str, Value | Absent], dims: Iterable[DimValue]
) -> tuple[DimValue, ...]:
    """Replace the defaults of a vGPU guest's driver by `not_in_guest`; return the readings with dimensions.

    - It reports a `disabled` MIG mode also for chips without MIG (seen on A6000-24Q). For a vGPU on a MIG device, it
      reports `enabled`.
    - It reports 0 retired pages (seen on V100D-8C, driver 535). They are recorded in the InfoROM of the board, which a
      guest cannot read.
    """
    for name, default in ((MIG_MODE, "disabled"), (MIG_MODE_PENDING, "disabled"), (RETIRED_PAGES_PENDING, 0)):
        if values.get(name) == default:
            values[name] = Absent(Reason.NOT_IN_GUEST, name)
    return tuple(
        [
            DimValue(dim.metric, dim.labels, Absent(Reason.NOT_IN_GUEST, dim.metric))
            if dim.metric == RETIRED_PAGES and dim.value == 0
            else dim
            for dim in dims
        ]
    )


def drop_use_of_mig_device(values: MutableMapping[str, Value | Absent]) -> None:
    """Replace a utilisation of 0 of a MIG device by `not_in_mig_mode`: dcgm-exporter 3 writes 0 without a value."""
    for name in NOT_OF_MIG & values.keys():
        if values[name] == 0:
            values[name] = Absent(Reason.NOT_IN_MIG_MODE, name)


def in_mig_mode(metric: str, value: Value | Absent) -> Value | Absent:
    """Return the reading of a GPU in MIG mode: `not_in_mig_mode` instead of `not_supported` for what MIG hides."""
    hidden = metric in HIDDEN_BY_MIG and isinstance(value, Absent) and value.reason is Reason.NOT_SUPPORTED
    return Absent(Reason.NOT_IN_MIG_MODE) if hidden else value


def part_absence(metric: str, value: Value | Absent, lacks: Collection[str], where: str) -> Value | Absent:
    """Return the reading, or `not_supported` if it belongs to a part that the board lacks.

    Args:
        metric: catalogue name.
        value: the reading.
        lacks: keys of `METRICS_OF_PART`.
        where: detail of the absence.
    """
    is_of_part = any(metric in METRICS_OF_PART[part] for part in lacks)
    return as_unsupported(value, where) if is_of_part else value


def drop_defaults(
    values: MutableMapping[str, Value | Absent],
    dims: Iterable[DimValue],
    product: Value | Absent | None,
    *,
    is_guest: bool,
) -> tuple[DimValue, ...]:
    """Replace the driver's defaults for parts that a board lacks, except ECC counts.

    Args:
        values: readings of a GPU, changed in place.
        dims: readings of the same GPU with dimensions. They are returned, changed likewise.
        product: as for `unproven_uses`.
        is_guest: result of `is_vgpu_guest`.
    """
    drop_place_defaults(values, product)
    drop_empty_protected_memory(values)
    drop_activity_without_memory(values)
    unproven = unproven_uses(product)
    drop_unproven_uses(values, unproven)
    if is_guest:
        dims = drop_defaults_of_guest(values, dims)
    return drop_fabric_defaults(values, without_unproven_uses(dims, unproven))


DECIDING = frozenset(
    {
        *(CHASSIS_SERIAL, *RACK_PLACE, FABRIC_STATE, FABRIC_CLUSTER, PROTECTED_TOTAL, DISPLAY_ACTIVE),
        *(NAME, VGPU_TYPE, VIRTUALIZATION),
    }
)
"""Metrics whose readings decide whether other readings of the board are defaults."""

_WITH_DEFAULTS = (DECIDING - {NAME, VGPU_TYPE, VIRTUALIZATION}) | {
    *(FABRIC_GUID, *FABRIC_DETAILS, *IDENTITIES, *MODULE_IDS, PROTECTED_USED, DISPLAY_ATTACHED, *MIG_MODES),
    RETIRED_PAGES_PENDING,
    *PART_OF_USE,
}
"""Metrics for which a driver, or an exporter that repeats it, has defaults in place of absences."""

_OF_MIG_WITH_DEFAULTS = _WITH_DEFAULTS | NOT_OF_MIG
_DIMS_WITH_DEFAULTS = {FABRIC_HEALTH, RETIRED_PAGES, *PART_OF_USE}


def may_have_defaults(sample: Sample) -> bool:
    """Return whether a sample has readings for which a driver has defaults."""
    if sample.view is None:
        return False
    metrics = _OF_MIG_WITH_DEFAULTS if sample.view.kind is ViewKind.MIG else _WITH_DEFAULTS
    return not metrics.isdisjoint(sample.values) or any(dim.metric in _DIMS_WITH_DEFAULTS for dim in sample.dims)


def without_defaults(sample: Sample, known: Mapping[str, Value | Absent] | None = None) -> Sample:
    """Return a sample without the driver's defaults for what its board does not have, except ECC counts.

    Args:
        sample: of a page, or of a part of it.
        known: readings of `DECIDING` in other parts.
    """
    if sample.view is None or not may_have_defaults(sample):
        return sample
    values = {**(known or {}), **sample.values}
    if sample.view.kind is ViewKind.MIG:
        drop_use_of_mig_device(values)
    product = values.get(VGPU_TYPE if sample.view.kind is ViewKind.VGPU else NAME)
    is_guest = is_vgpu_guest(product, values.get(VIRTUALIZATION))
    dims = drop_defaults(values, sample.dims, product, is_guest=is_guest)
    values = {name: values[name] for name in sample.values}
    if (values, dims) == (sample.values, sample.dims):
        return sample
    return msgspec.structs.replace(sample, values=values, dims=dims)


def drop_board_defaults(samples: Sequence[Sample], *, lists_modes: bool = False) -> list[Sample]:
    """Return the samples of one page or pass without what its boards do not have.

    Args:
        samples: all samples of one machine.
        lists_modes: as for `drop_counts_without_ecc`.
    """
    known: dict[str, dict[str, Value | Absent]] = {}
    for sample in samples:
        if sample.view is not None:
            known.setdefault(sample.view.key, {}).update(deciding_readings(sample))
    return [
        without_defaults(sample, known[sample.view.key]) if sample.view is not None else sample
        for sample in drop_counts_without_ecc(samples, lists_modes=lists_modes)
    ]


def deciding_readings(sample: Sample) -> dict[str, Value | Absent]:
    """Return the readings of a sample that decide whether other readings of its board are defaults."""
    return {name: sample.values[name] for name in DECIDING & sample.values.keys()}


def _is_none(value: Value | Absent) -> bool:
    if isinstance(value, Absent):
        return value.reason is Reason.NO_DATA
    return not str(value).removeprefix("0x").strip("0- ")
