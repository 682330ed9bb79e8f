"""Conversion of devices to samples of one lane, one per device. Pure; shared with `gpufleet decode`."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.process import Process
from gpufleet.model.reading import Sample
from gpufleet.model.view import View
from gpufleet.readers.nvidia_smi.machine import NAME
from gpufleet.readers.nvidia_smi.mapping.devices import (
    GpuModes,
    MetricValues,
    RequestedMetrics,
    absent_gpu,
    map_gpu,
    map_mig,
    map_vgpu,
    modes_of,
    processes_of,
)
from gpufleet.readers.nvidia_smi.mapping.rows import MIG_DEVICES, PROCESSES
from gpufleet.readers.nvidia_smi.views import Gpu, mig_instances, vgpu_instances

OK, LOST, RESET_REQUIRED, UNREADABLE = "ok", "lost", "reset_required", "unreadable"
"""States of the metric `gpu_state` that nvidia-smi can show."""

_COUNTED = (PROCESSES, MIG_DEVICES)
"""Metrics that count list entries: they are 0 also if the device reports nothing."""

_WITHOUT_STATE = frozenset({Reason.NOT_REPORTED, Reason.NOT_IN_MIG_MODE})
"""Reasons that occur without any output of the device."""

_STATES = {Reason.GPU_LOST: LOST, Reason.RESET_REQUIRED: RESET_REQUIRED}


def gpu_sample(
    gpu: Gpu, lane: Lane, requested: RequestedMetrics, modes: GpuModes, at: int, replaced: MetricValues | None = None
) -> Sample:
    """Return a GPU's sample; `replaced` replaces readings whose own command failed."""
    values, dims = map_gpu(gpu.record, lane, requested, modes)
    values |= replaced or {}
    if lane is Lane.FAST:
        state, why = _state(values)
        values["gpu_state"] = state
        if why is not None:  # a count of 0 proves nothing for a device without readings
            values |= {name: why for name in _COUNTED if isinstance(values.get(name), int)}
    processes = processes_of(gpu.record) if lane is Lane.FAST and isinstance(values.get(PROCESSES), int) else None
    return Sample(view=gpu.view, reader=NAME, lane=lane, measured_at=at, values=values, dims=dims, processes=processes)


def lost_sample(view: View, lane: Lane, requested: RequestedMetrics, modes: GpuModes, at: int, why: Absent) -> Sample:
    """Return the sample of a known GPU for which nvidia-smi printed only an error."""
    values, dims = absent_gpu(why, lane, requested, modes)
    if lane is Lane.FAST:
        values["gpu_state"] = _STATES.get(why.reason, UNREADABLE)
    return Sample(view=view, reader=NAME, lane=lane, measured_at=at, values=values, dims=dims)


def instance_samples(
    gpus: Iterable[Gpu], listing: Listing | None, lane: Lane, at: int
) -> tuple[list[Sample], list[str]]:
    """Return the samples of MIG devices and vGPU instances, and error messages about skipped ones."""
    whole = tuple(gpus)
    samples: list[Sample] = []
    vgpus, errors = vgpu_instances(whole)
    for gpu in whole:
        instances = mig_instances(gpu, listing)
        if instances is None:
            errors.append(f"{gpu.view.key}: nvidia-smi -L and -q list different MIG devices: none is read")
            continue
        for instance in instances:
            values = map_mig(instance.record, gpu.record, lane, instance.listed)
            counted = lane is Lane.FAST and isinstance(values.get(PROCESSES), int)
            processes = processes_of(gpu.record, instance.record) if counted else None
            samples.append(_sample(instance.view, lane, at, values, processes))
    samples += [_sample(instance.view, lane, at, map_vgpu(instance.record, lane)) for instance in vgpus]
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
    return {gpu.view.key: modes_of(gpu.record, before.get(gpu.view.key, GpuModes())) for gpu in gpus}


def _sample(
    view: View, lane: Lane, at: int, values: MetricValues, processes: tuple[Process, ...] | None = None
) -> Sample:
    return Sample(view=view, reader=NAME, lane=lane, measured_at=at, values=values, processes=processes)


def _state(values: MetricValues) -> tuple[str | Absent, Absent | None]:
    """Return the state of a device by its readings, and the reason if it is not `ok`.

    A device is lost if every reading is absent. Without any output, as after a truncation, the state is absent.
    """
    readings = [value for name, value in values.items() if name not in _COUNTED]
    reasons = [value.reason for value in readings if isinstance(value, Absent)]
    if len(reasons) < len(readings) or not readings:
        return OK, None
    for reason, state in _STATES.items():
        if reason in reasons:
            return state, Absent(reason)
    if Reason.NOT_REPORTED in reasons and _WITHOUT_STATE.issuperset(reasons):
        return Absent(Reason.NOT_REPORTED), Absent(Reason.NOT_REPORTED)
    return UNREADABLE, Absent(reasons[0])
