"""Conversion of devices to samples of one lane, one per device. Pure; shared with `gpufleet decode`."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.codecs.nvidia_smi.records import DeviceRecord
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.device_state import (
    ERROR,
    OK,
    STATE_OF_REASON,
    UNREADABLE,
    device_reason,
    state_of,
    state_with_instances,
)
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.view import View
from gpufleet.readers.nvidia_smi.machine import NAME
from gpufleet.readers.nvidia_smi.mapping.devices import (
    GpuModes,
    MetricValues,
    RequestedMetrics,
    absent_gpu,
    map_gpu,
    map_mig,
    map_mig_dims,
    map_vgpu,
    modes_of,
    processes_of,
)
from gpufleet.readers.nvidia_smi.mapping.processes import MEMORY
from gpufleet.readers.nvidia_smi.mapping.rows import MIG_DEVICES, PROCESSES, RESET_QUERY, RESET_STATUS, VGPU_NAMES
from gpufleet.readers.nvidia_smi.views import Gpu, address_of, mig_instances, uuid_of, vgpu_instances

_COUNTED = (PROCESSES, MIG_DEVICES)
"""Metrics that count list entries: they are 0 also if the device reports nothing."""


def gpu_sample(
    gpu: Gpu,
    lane: Lane,
    requested: RequestedMetrics,
    modes: GpuModes,
    at: int,
    *,
    replaced: MetricValues | None = None,
    named: Reason | None = None,
) -> Sample:
    """Return a GPU's sample.

    Args:
        gpu: the GPU.
        lane: lane of the sample.
        requested: metrics of the sample.
        modes: modes of the GPU.
        at: time of the pass in nanoseconds since 1970.
        replaced: readings whose own command failed.
        named: reason in an error message of the pass that names this GPU, or None.
    """
    values, dims = map_gpu(gpu.record, lane, requested, modes)
    values |= replaced or {}
    if lane is Lane.FAST:
        state = state_with_instances(_state(values, dims, gpu.record, named), _instances(gpu.record))
        why = _why_uncounted(state, (*values.values(), *[dim.value for dim in dims]))
        if why is not None:  # a count of 0 proves nothing for a device that does not answer
            values |= {name: why for name in _COUNTED if isinstance(values.get(name), int)}
        values["gpu_state"] = state
    processes = processes_of(gpu.record) if lane is Lane.FAST and isinstance(values.get(PROCESSES), int) else None
    return Sample(view=gpu.view, reader=NAME, lane=lane, measured_at=at, values=values, dims=dims, processes=processes)


def _instances(record: DeviceRecord) -> list[tuple[MetricValues, tuple[DimValue, ...]]]:
    """Return the readings of the MIG devices and vGPU instances of a GPU."""
    migs = [(map_mig(one, record, Lane.FAST, None), map_mig_dims(one, record, Lane.FAST)) for one in record.mig]
    return [*migs, *[(map_vgpu(one, record, Lane.FAST), ()) for one in record.vgpus]]


def lost_sample(view: View, lane: Lane, requested: RequestedMetrics, modes: GpuModes, at: int, why: Absent) -> Sample:
    """Return the sample of a known GPU for which nvidia-smi printed only an error."""
    values, dims = absent_gpu(why, lane, requested, modes)
    if lane is Lane.FAST:
        values["gpu_state"] = STATE_OF_REASON.get(why.reason, UNREADABLE)
    return Sample(view=view, reader=NAME, lane=lane, measured_at=at, values=values, dims=dims)


def instance_samples(
    gpus: Iterable[Gpu], listing: Listing | None, lane: Lane, at: int
) -> tuple[list[Sample], list[str]]:
    """Return the samples of MIG devices and vGPU instances, and error messages about skipped ones."""
    whole = tuple(gpus)
    samples: list[Sample] = []
    vgpus, errors = vgpu_instances(whole)
    migs, mig_errors = mig_instances(whole, listing)
    for gpu, instance in migs:
        values = map_mig(instance.record, gpu.record, lane, instance.listed)
        counted = lane is Lane.FAST and isinstance(values.get(PROCESSES), int)
        processes = processes_of(gpu.record, instance.record) if counted else None
        dims = map_mig_dims(instance.record, gpu.record, lane)
        samples.append(_sample(instance.view, lane, at, values, processes, dims))
    errors = [*mig_errors, *errors]
    records = {gpu.view.key: gpu.record for gpu in whole}
    for vgpu in vgpus:
        values = map_vgpu(vgpu.record, records[str(vgpu.view.parent)], lane)
        samples.append(_sample(vgpu.view, lane, at, values))
    return [sample for sample in samples if sample.values], errors


def with_processes(gpus: Iterable[Gpu], apps: Sequence[dict[str, str]]) -> list[Gpu]:
    """Return the GPUs with their rows of `--query-compute-apps` as processes."""
    given: list[Gpu] = []
    for gpu in gpus:
        own = tuple({**app, "type": "C"} for app in apps if app.get("gpu_uuid") == gpu.view.uuid)
        given.append(Gpu(gpu.view, msgspec.structs.replace(gpu.record, processes=own)))
    return given


def modes_by_key(gpus: Iterable[Gpu], before: Mapping[str, GpuModes]) -> dict[str, GpuModes]:
    """Return modes by view key; `before` has the previous modes, for outputs that do not show them."""
    return {gpu.view.key: modes_of(gpu.record, before.get(gpu.view.key)) for gpu in gpus}


def _sample(
    view: View,
    lane: Lane,
    at: int,
    values: MetricValues,
    processes: tuple[Process, ...] | None = None,
    dims: tuple[DimValue, ...] = (),
) -> Sample:
    return Sample(view=view, reader=NAME, lane=lane, measured_at=at, values=values, dims=dims, processes=processes)


def printed_reason(record: DeviceRecord) -> Reason | None:
    """Return the worst reason about the whole device among the printed texts of a GPU and its instances, or None.

    Names that users choose, such as those of virtual machines and processes, are no evidence.
    """
    texts = itertools.chain(
        record.fields.values(),
        *(one.leaves.values() for one in (record, *record.mig)),
        *([text for name, text in one.leaves.items() if name not in VGPU_NAMES] for one in record.vgpus),
        *([text for name, text in one.items() if name in MEMORY] for one in record.processes or ()),
    )
    printed = {reason for text in texts if (reason := text_reason(text)) is not None}
    status = (record.leaves.get(RESET_STATUS, ""), record.fields.get(RESET_QUERY, ""))
    if any(text.strip().lower() == "yes" for text in status):
        printed.add(Reason.RESET_REQUIRED)
    return device_reason(printed)


def lost_reasons(gpus: Iterable[Gpu], known: Mapping[str, View], named: Mapping[str, Reason]) -> dict[str, Absent]:
    """Return the view keys of the GPUs that are lost or only named by errors, with the reason.

    Args:
        gpus: of the pass.
        known: GPUs of earlier passes by PCI address.
        named: PCI address to reason, as from `lost_by_elimination`.
    """
    printed = [(gpu.view.key, printed_reason(gpu.record)) for gpu in gpus]
    errors = [(view.key, named.get(address)) for address, view in known.items()]
    return {key: Absent(reason) for key, reason in (*errors, *printed) if reason is not None}


def lost_by_elimination(
    records: Iterable[DeviceRecord], gpus: Sequence[Gpu], known: Mapping[str, View], named: Mapping[str, Reason]
) -> dict[str, Reason]:
    """Return the lost GPUs of a pass: those that messages name, and those of records without UUID and address.

    Such records are about the missing GPUs if these are as many, and the records have the same reason.

    Args:
        records: of the pass.
        gpus: the GPUs that the records identify.
        known: GPUs of earlier passes by PCI address.
        named: PCI address to the reason in messages.

    Returns:
        PCI address to reason.
    """
    unnamed = [one for one in records if uuid_of(one) is None and address_of(one) is None]
    reasons = {printed_reason(one) for one in unnamed}
    keys = {gpu.view.key for gpu in gpus}
    addresses = {*named, *[gpu.view.pci_address for gpu in gpus]}
    missing = [address for address, view in known.items() if address not in addresses and view.key not in keys]
    lost = max(sum(bool(one.fields) for one in unnamed), sum(bool(one.leaves) for one in unnamed))  # CSV, XML
    why = reasons.pop() if len(reasons) == 1 else None
    return {**named, **dict.fromkeys(missing, why)} if why is not None and lost == len(missing) else dict(named)


def _state(values: MetricValues, dims: Iterable[DimValue], record: DeviceRecord, named: Reason | None) -> str | Absent:
    """Return the state of a device by its readings, by every printed text of the GPU, and by messages that name it."""
    why = device_reason(reason for reason in (printed_reason(record), named) if reason is not None)
    if why is not None:
        return STATE_OF_REASON[why]
    state = state_of({name: value for name, value in values.items() if name not in _COUNTED}, dims)
    return ERROR if named is not None and state == OK else state


def _why_uncounted(state: str | Absent, readings: Iterable[Value | Absent]) -> Absent | None:
    """Return the reason for which counts of list entries are no evidence, or None."""
    if isinstance(state, Absent):
        return state
    reason = next((reason for reason, name in STATE_OF_REASON.items() if name == state), None)
    if reason is not None:
        return Absent(reason)
    if state != UNREADABLE:
        return None
    return Absent(next(reading.reason for reading in readings if isinstance(reading, Absent)))
