"""MIG devices and vGPU instances of one round: their views and readings, also when their GPU says nothing."""

from typing import NamedTuple

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.process import Process
from gpufleet.model.view import Side, View, ViewKind, normalise_uuid
from gpufleet.readers.nvml.calls import KINDS
from gpufleet.readers.nvml.calls.vgpu import MOST_INSTANCES
from gpufleet.readers.nvml.context import FUNCTION_NOT_FOUND, NOT_SUPPORTED
from gpufleet.readers.nvml.mapping import Readings, absent_instance, map_instance
from gpufleet.readers.nvml.parse import absence_of, label_of
from gpufleet.readers.nvml.processes import ProcessLister
from gpufleet.readers.nvml.protocol import DeviceRecord, InstanceRecord

_SIDES = {"mig": Side.HOST, "vgpu": Side.VGPU_HOST}
_WORDS = {"mig": "MIG device", "vgpu": "vGPU instance"}


class Instance(NamedTuple):
    """One part of a GPU, its readings of this round, and its own processes where the driver lists them."""

    view: View
    readings: Readings
    processes: tuple[Process, ...] | None = None


class Instances:
    """Memory of which parts each GPU had: one that falls silent cannot list them."""

    def __init__(self, lister: ProcessLister) -> None:
        """Take what lists their processes."""
        self._lister = lister
        self._known: dict[tuple[str, str], tuple[View, ...]] = {}  # by key of the GPU and kind

    def of(self, gpu: View, record: DeviceRecord, lane: Lane) -> tuple[list[Instance], list[str]]:
        """Return the parts of a GPU that answered, and words for what could not be told of them."""
        found: list[Instance] = []
        errors: list[str] = []
        for kind in KINDS:
            total = record.found.get(kind)
            if total is None:
                self._known.pop((gpu.key, kind), None)
            elif total.code:
                call = label_of(total.asked)
                why = absence_of(total.code, call, total.value)
                found += self._silent(gpu, kind, why, lane)
                if total.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                    errors.append(f"{gpu.key}: {_WORDS[kind]}s cannot be listed: {why.detail} ({why.reason})")
            else:
                parts = [one for one in record.instances if one.kind == kind]
                named = [self._instance(gpu, one, lane) for one in parts if not one.code]
                self._known[gpu.key, kind] = tuple(one.view for one in named)
                found += named
                errors += [_unnamed(gpu, one) for one in parts if one.code]
                if isinstance(total.value, int) and total.value > MOST_INSTANCES:
                    errors.append(f"{gpu.key}: {total.value} {_WORDS[kind]}s, the first {MOST_INSTANCES} are told of")
        return found, errors

    def _instance(self, gpu: View, record: InstanceRecord, lane: Lane) -> Instance:
        processes = self._lister.of_part(record) if lane is Lane.FAST else None
        return Instance(_view(gpu, record), map_instance(record, lane), processes)

    def silent(self, gpu: View, why: Absent, lane: Lane) -> list[Instance]:
        """Return the parts that a GPU had that says nothing now: absent for its reason."""
        return [one for kind in KINDS for one in self._silent(gpu, kind, why, lane)]

    def _silent(self, gpu: View, kind: str, why: Absent, lane: Lane) -> list[Instance]:
        return [Instance(view, absent_instance(kind, why, lane)) for view in self._known.get((gpu.key, kind), ())]


def _view(gpu: View, record: InstanceRecord) -> View:
    identity = {name: str(answer.value) for name, answer in record.identity.items() if not answer.code}
    uuid = identity["uuid"]
    if record.kind == "mig":
        instance = f"{identity.get('gpu_instance', '?')}/{identity.get('compute_instance', '?')}"
    else:
        uuid, instance = normalise_uuid(uuid) or uuid, identity["instance"]
    return View(kind=ViewKind(record.kind), side=_SIDES[record.kind], uuid=uuid, instance=instance, parent=gpu.key)


def _unnamed(gpu: View, record: InstanceRecord) -> str:
    which = " ".join(f"{name} {answer.value}" for name, answer in record.identity.items())
    why = absence_of(record.code, "its UUID")
    return f"{gpu.key}: the {_WORDS[record.kind]} in {which} cannot be named: {why.detail} ({why.reason})"
