"""MIG devices and vGPU instances of one round: their views and readings, also when their GPU says nothing."""

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.process import Process
from gpufleet.model.reading import Sample
from gpufleet.model.view import Side, View, ViewKind, normalise_uuid
from gpufleet.readers.nvml.calls import KINDS
from gpufleet.readers.nvml.calls.vgpu import MOST_INSTANCES
from gpufleet.readers.nvml.context import FUNCTION_NOT_FOUND, NOT_SUPPORTED
from gpufleet.readers.nvml.mapping import Readings, absent_instance, map_instance
from gpufleet.readers.nvml.parse import absence_of, label_of
from gpufleet.readers.nvml.processes import ProcessLister
from gpufleet.readers.nvml.protocol import Answer, DeviceRecord, InstanceRecord

_SIDES = {"mig": Side.HOST, "vgpu": Side.VGPU_HOST}
ITS_UUID = "its UUID"
_WORDS = {"mig": "MIG device", "vgpu": "vGPU instance"}


class Instance(NamedTuple):
    """One part of a GPU, its readings of this round, and its own processes where the driver lists them."""

    view: View
    readings: Readings
    processes: tuple[Process, ...] | None = None


class Instances:
    """Memory of which parts each GPU had: one that falls silent, or that cannot be read now, is not gone for it."""

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
                continue
            parts = [one for one in record.instances if one.kind == kind]
            named = [self._instance(gpu, one, lane) for one in parts if not one.code]
            unnamed = [one for one in parts if one.code]
            silent = self._not_named(gpu, kind, total, unnamed, {one.view.key for one in named}, lane)
            self._known[gpu.key, kind] = tuple(one.view for one in (*named, *silent))
            found += [*named, *silent]
            errors += [_unnamed(gpu, one) for one in unnamed]
            if total.code not in (0, NOT_SUPPORTED, FUNCTION_NOT_FOUND) and not unnamed:
                why = _why(total)
                errors.append(f"{gpu.key}: {_WORDS[kind]}s cannot be listed: {why.detail} ({why.reason})")
            if isinstance(total.value, int) and total.value > MOST_INSTANCES:
                errors.append(f"{gpu.key}: {total.value} {_WORDS[kind]}s, the first {MOST_INSTANCES} are told of")
        return found, errors

    def _not_named(
        self,
        gpu: View,
        kind: str,
        total: Answer,
        unnamed: list[InstanceRecord],
        named: AbstractSet[str],
        lane: Lane,
    ) -> list[Instance]:
        """Return the known parts that may be there and could not be named in this pass: that is not that they are gone.

        Which one is in a slot that does not answer cannot be told; a vGPU instance has its number.
        """
        if total.code:
            left = self._silent(gpu, kind, _why(total), lane)
        elif unnamed:
            numbers = {str(one.identity["instance"].value) for one in unnamed if "instance" in one.identity}
            left = self._silent(gpu, kind, absence_of(unnamed[0].code, ITS_UUID), lane)
            left = [one for one in left if not numbers or one.view.instance in numbers]
        else:
            return []
        return [one for one in left if one.view.key not in named]

    def _instance(self, gpu: View, record: InstanceRecord, lane: Lane) -> Instance:
        processes = self._lister.of_part(record) if lane is Lane.FAST else None
        return Instance(_view(gpu, record), map_instance(record, lane), processes)

    def silent(self, gpu: View, why: Absent, lane: Lane) -> list[Instance]:
        """Return the parts that a GPU had that says nothing now: absent for its reason."""
        return [one for kind in KINDS for one in self._silent(gpu, kind, why, lane)]

    def _silent(self, gpu: View, kind: str, why: Absent, lane: Lane) -> list[Instance]:
        return [Instance(view, absent_instance(kind, why, lane)) for view in self._known.get((gpu.key, kind), ())]


def told_apart(samples: list[Sample]) -> tuple[list[Sample], list[str]]:
    """Return a round's samples, parts of GPUs that claim one UUID named by their places; and words for that."""
    views = [one.view for one in samples if one.view is not None]
    keys = [view.key for view in views]
    if len(set(keys)) == len(keys):
        return samples, []
    claims = Counter(keys)
    addresses = {view.key: view.pci_address for view in views if view.parent is None}
    found: list[Sample] = []
    words: dict[str, None] = {}
    for one in samples:
        view = one.view
        if view is not None and view.parent is not None and claims[view.key] > 1:
            words[f"several {_WORDS[view.kind]}s say that they are {view.uuid}: it names none of them"] = None
            place = f"{view.instance}@{addresses.get(view.parent) or view.parent}"
            one = msgspec.structs.replace(one, view=msgspec.structs.replace(view, uuid=None, instance=place))
        found.append(one)
    return found, list(words)


def _view(gpu: View, record: InstanceRecord) -> View:
    identity = {name: str(answer.value) for name, answer in record.identity.items() if not answer.code}
    uuid = identity["uuid"]
    if record.kind == "mig":
        instance = f"{identity.get('gpu_instance', '?')}/{identity.get('compute_instance', '?')}"
    else:
        uuid, instance = normalise_uuid(uuid) or uuid, identity["instance"]
    return View(kind=ViewKind(record.kind), side=_SIDES[record.kind], uuid=uuid, instance=instance, parent=gpu.key)


def _why(total: Answer) -> Absent:
    return absence_of(total.code, label_of(total.asked), total.value)


def _unnamed(gpu: View, record: InstanceRecord) -> str:
    which = " ".join(f"{name} {answer.value}" for name, answer in record.identity.items())
    why = absence_of(record.code, ITS_UUID)
    return f"{gpu.key}: the {_WORDS[record.kind]} in {which} cannot be named: {why.detail} ({why.reason})"
