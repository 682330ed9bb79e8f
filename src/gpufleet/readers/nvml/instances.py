"""Views and readings of the MIG devices and vGPU instances of one round, also if their GPU does not answer."""

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
from gpufleet.readers.nvml.calls.vgpu import MAX_INSTANCES
from gpufleet.readers.nvml.context import FUNCTION_NOT_FOUND, NOT_SUPPORTED
from gpufleet.readers.nvml.mapping import Readings, absent_instance, map_instance
from gpufleet.readers.nvml.parse import absence_of, label_of
from gpufleet.readers.nvml.processes import ProcessLister
from gpufleet.readers.nvml.protocol import CallResult, GpuPassRecord, InstanceRecord

_SIDES = {"mig": Side.HOST, "vgpu": Side.VGPU_HOST}
_KIND_NAMES = {"mig": "MIG device", "vgpu": "vGPU instance"}
ITS_UUID = "its UUID"
"""Call in the detail of an instance that cannot be identified."""


class ViewReadings(NamedTuple):
    """A GPU or instance, its readings of this round, and its processes if the driver lists them."""

    view: View
    readings: Readings
    processes: tuple[Process, ...] | None = None


class InstanceTracker:
    """Known instances of each GPU. An instance that cannot be read now is absent with a reason, not gone."""

    def __init__(self, lister: ProcessLister) -> None:
        self._lister = lister
        self._known: dict[tuple[str, str], tuple[View, ...]] = {}  # by key of the GPU and kind

    def map(self, gpu: View, record: GpuPassRecord, lane: Lane) -> tuple[list[ViewReadings], list[str]]:
        """Return the instances of a GPU that answered, and error messages for the incomplete ones."""
        found: list[ViewReadings] = []
        errors: list[str] = []
        for kind in KINDS:
            total = record.totals.get(kind)
            if total is None:
                self._known.pop((gpu.key, kind), None)
                continue
            records = [instance for instance in record.instances if instance.kind == kind]
            identified = [self._map_instance(gpu, one, lane, record) for one in records if not one.code]
            unidentified = [instance for instance in records if instance.code]
            keys = {instance.view.key for instance in identified}
            absent = self._unidentified_known(gpu, kind, total, unidentified, keys, lane)
            self._known[gpu.key, kind] = tuple(instance.view for instance in (*identified, *absent))
            found += [*identified, *absent]
            errors += [_unidentified_error(gpu, instance) for instance in unidentified]
            if total.code not in (0, NOT_SUPPORTED, FUNCTION_NOT_FOUND) and not unidentified:
                why = _why(total)
                errors.append(f"{gpu.key}: {_KIND_NAMES[kind]}s cannot be listed: {why.detail} ({why.reason})")
            if isinstance(total.value, int) and total.value > MAX_INSTANCES:
                errors.append(
                    f"{gpu.key}: {total.value} {_KIND_NAMES[kind]}s exceed the limit: "
                    f"only the first {MAX_INSTANCES} are reported"
                )
        return found, errors

    def _unidentified_known(
        self,
        gpu: View,
        kind: str,
        total: CallResult,
        unidentified: list[InstanceRecord],
        identified: AbstractSet[str],
        lane: Lane,
    ) -> list[ViewReadings]:
        """Return the known instances that possibly still exist but were not identified in this pass.

        The instance in a slot that does not answer is unknown; a vGPU instance has its number.
        """
        if total.code:
            left = self._absent(gpu, kind, _why(total), lane)
        elif unidentified:
            numbers = {str(one.identity["instance"].value) for one in unidentified if "instance" in one.identity}
            left = self._absent(gpu, kind, absence_of(unidentified[0].code, ITS_UUID), lane)
            left = [instance for instance in left if not numbers or instance.view.instance in numbers]
        else:
            return []
        return [instance for instance in left if instance.view.key not in identified]

    def _map_instance(self, view: View, record: InstanceRecord, lane: Lane, gpu: GpuPassRecord) -> ViewReadings:
        processes = self._lister.list_instance(record) if lane is Lane.FAST else None
        return ViewReadings(_view(view, record), map_instance(record, lane, gpu), processes)

    def absent(self, gpu: View, why: Absent, lane: Lane) -> list[ViewReadings]:
        """Return the known instances of a GPU without an answer, absent for its reason."""
        return [instance for kind in KINDS for instance in self._absent(gpu, kind, why, lane)]

    def _absent(self, gpu: View, kind: str, why: Absent, lane: Lane) -> list[ViewReadings]:
        return [ViewReadings(view, absent_instance(kind, why, lane)) for view in self._known.get((gpu.key, kind), ())]


def separate_duplicates(samples: list[Sample]) -> tuple[list[Sample], list[str]]:
    """Identify instances that report the same UUID by their places instead; return the samples and error messages."""
    views = [sample.view for sample in samples if sample.view is not None]
    keys = [view.key for view in views]
    if len(set(keys)) == len(keys):
        return samples, []
    claims = Counter(keys)
    addresses = {view.key: view.pci_address for view in views if view.parent is None}
    found: list[Sample] = []
    errors: dict[str, None] = {}
    for sample in samples:
        view = sample.view
        if view is not None and view.parent is not None and claims[view.key] > 1:
            errors[f"several {_KIND_NAMES[view.kind]}s report the UUID {view.uuid}: it identifies none of them"] = None
            place = f"{view.instance}@{addresses.get(view.parent) or view.parent}"
            sample = msgspec.structs.replace(sample, view=msgspec.structs.replace(view, uuid=None, instance=place))
        found.append(sample)
    return found, list(errors)


def _view(gpu: View, record: InstanceRecord) -> View:
    identity = {name: str(answer.value) for name, answer in record.identity.items() if not answer.code}
    uuid = identity["uuid"]
    if record.kind == "mig":
        instance = f"{identity.get('gpu_instance', '?')}/{identity.get('compute_instance', '?')}"
    else:
        uuid, instance = normalise_uuid(uuid) or uuid, identity["instance"]
    return View(kind=ViewKind(record.kind), side=_SIDES[record.kind], uuid=uuid, instance=instance, parent=gpu.key)


def _why(total: CallResult) -> Absent:
    return absence_of(total.code, label_of(total.breadcrumb), total.value)


def _unidentified_error(gpu: View, record: InstanceRecord) -> str:
    place = " ".join(f"{name} {answer.value}" for name, answer in record.identity.items())
    why = absence_of(record.code, ITS_UUID)
    return f"{gpu.key}: the {_KIND_NAMES[record.kind]} in {place} cannot be named: {why.detail} ({why.reason})"
