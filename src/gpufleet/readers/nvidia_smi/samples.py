"""Devices to samples of one lane, one a device. Pure; the reader and `gpufleet decode` share it."""

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
    Asked,
    Modes,
    Reads,
    absent_gpu,
    map_gpu,
    map_mig,
    map_vgpu,
    modes_of,
    processes_of,
)
from gpufleet.readers.nvidia_smi.mapping.rows import MIG_DEVICES, PROCESSES
from gpufleet.readers.nvidia_smi.views import Gpu, mig_parts, vgpu_parts

OK, LOST, RESET_REQUIRED, UNREADABLE = "ok", "lost", "reset_required", "unreadable"
"""States of the catalogue's row `gpu_state` that nvidia-smi tells."""

_COUNTED = (PROCESSES, MIG_DEVICES)
"""Metrics that count what is listed beside the device: they are 0 also where it says nothing."""

_SILENT = frozenset({Reason.NOT_REPORTED, Reason.NOT_IN_MIG_MODE})
"""Reasons that need no word of the device."""

_STATES = {Reason.GPU_LOST: LOST, Reason.RESET_REQUIRED: RESET_REQUIRED}


def gpu_sample(gpu: Gpu, lane: Lane, asked: Asked, modes: Modes, at: int, instead: Reads | None = None) -> Sample:
    """Return a GPU's sample; `instead` replaces readings whose own output could not be had."""
    values, dims = map_gpu(gpu.record, lane, asked, modes)
    values |= instead or {}
    if lane is Lane.FAST:
        state, why = _state(values)
        values["gpu_state"] = state
        if why is not None:  # that it is in no list says nothing of a device that does not answer
            values |= {name: why for name in _COUNTED if isinstance(values.get(name), int)}
    processes = processes_of(gpu.record) if lane is Lane.FAST and isinstance(values.get(PROCESSES), int) else None
    return Sample(view=gpu.view, reader=NAME, lane=lane, measured_at=at, values=values, dims=dims, processes=processes)


def lost_sample(view: View, lane: Lane, asked: Asked, modes: Modes, at: int, why: Absent) -> Sample:
    """Return the sample of a GPU that was known before, and of which only an error was printed."""
    values, dims = absent_gpu(why, lane, asked, modes)
    if lane is Lane.FAST:
        values["gpu_state"] = _STATES.get(why.reason, UNREADABLE)
    return Sample(view=view, reader=NAME, lane=lane, measured_at=at, values=values, dims=dims)


def part_samples(gpus: Iterable[Gpu], listing: Listing | None, lane: Lane, at: int) -> tuple[list[Sample], list[str]]:
    """Return the samples of MIG devices and vGPU instances, and words about those that are not read."""
    whole = tuple(gpus)
    samples: list[Sample] = []
    vgpus, errors = vgpu_parts(whole)
    for gpu in whole:
        parts = mig_parts(gpu, listing)
        if parts is None:
            errors.append(f"{gpu.view.key}: nvidia-smi -L and -q disagree about its MIG devices: none is read")
            continue
        for part in parts:
            values = map_mig(part.record, gpu.record, lane, part.listed)
            told = lane is Lane.FAST and isinstance(values.get(PROCESSES), int)
            processes = processes_of(gpu.record, part.record) if told else None
            samples.append(_sample(part.view, lane, at, values, processes))
    samples += [_sample(part.view, lane, at, map_vgpu(part.record, lane)) for part in vgpus]
    return [sample for sample in samples if sample.values], errors


def with_processes(gpus: Iterable[Gpu], apps: Sequence[dict[str, str]]) -> list[Gpu]:
    """Give each GPU its rows of `--query-compute-apps`."""
    given: list[Gpu] = []
    for gpu in gpus:
        own = tuple({**app, "type": "C"} for app in apps if app.get("gpu_uuid") == gpu.view.uuid)
        given.append(Gpu(gpu.view, msgspec.structs.replace(gpu.record, processes=own)))
    return given


def modes_by_key(gpus: Iterable[Gpu], before: Mapping[str, Modes]) -> dict[str, Modes]:
    """Return view key to modes, with what was known before where this output does not tell."""
    return {gpu.view.key: modes_of(gpu.record, before.get(gpu.view.key, Modes())) for gpu in gpus}


def _sample(view: View, lane: Lane, at: int, values: Reads, processes: tuple[Process, ...] | None = None) -> Sample:
    return Sample(view=view, reader=NAME, lane=lane, measured_at=at, values=values, processes=processes)


def _state(values: Reads) -> tuple[str | Absent, Absent | None]:
    """Judge by what was printed: a device is lost when that is all that it says. Returns the state, and why.

    Of a device of which nothing was printed, as where an output was cut off, there is no state.
    """
    said = [value for name, value in values.items() if name not in _COUNTED]
    reasons = [value.reason for value in said if isinstance(value, Absent)]
    if len(reasons) < len(said) or not said:
        return OK, None
    for reason, state in _STATES.items():
        if reason in reasons:
            return state, Absent(reason)
    if Reason.NOT_REPORTED in reasons and _SILENT.issuperset(reasons):
        return Absent(Reason.NOT_REPORTED), Absent(Reason.NOT_REPORTED)
    return UNREADABLE, Absent(reasons[0])
