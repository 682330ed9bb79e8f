"""Allocation contract: the source and the readings that answer for an allocation. Pure.

A bare-metal machine answers for itself, and for the devices of it that an allocation lists. Any other part of a machine
is answered only by a source that observes that very part: the guest itself, the host for a guest's own vGPU instance
(`fleet.attribution.slices`), or attribution. Without such a source the answer is `unavailable` with a reason, and has
no host value: a host's GPU never speaks for a guest's.

`fleet.attribution.bindings` has the machine and the devices of an allocation.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution.bindings import (
    LocatedMachine,
    bind,
    binding_at,
    is_of_host,
    last_occupants,
    locate,
    pci_address,
)
from gpufleet.fleet.attribution.visibility import (
    clip_to_allocation,
    failure_since,
    is_probe,
    newest_failure,
    visible_error,
    visible_readers,
    without_departed,
    without_foreign_details,
    without_foreign_peers,
)
from gpufleet.fleet.devices import independent_readings, with_parents
from gpufleet.fleet.readings import (
    Freshness,
    all_stale,
    devices,
    merge,
    merge_dimensions,
    stored_readings,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import AGGREGATED, aggregate
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Binding
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice, MachineRecord
from gpufleet.model.catalogue.probe import PROBE_READER
from gpufleet.model.reading import Provenance, Reading
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, View, ViewKind, view_of_key

NO_ANSWERER = {
    AllocationKind.GPU_SLICE: (
        Reason.GUEST_NOT_COLLECTED,
        "nothing collects from inside this virtual machine, and the host's readings are not the guest's",
    ),
    AllocationKind.KUBEVIRT_VMI: (
        Reason.GUEST_NOT_COLLECTED,
        "nothing collects from inside this virtual machine, and the host's readings are not the guest's",
    ),
    AllocationKind.KUBERNETES_POD: (Reason.NOT_ATTRIBUTED, "no source reports the devices of this pod"),
    AllocationKind.SLURM_JOB: (Reason.NOT_ATTRIBUTED, "no source reports the devices of this job"),
}
"""Kinds without reader and attribution, with the reason in their answers."""


_ON_THE_HOST = (Provenance.HOST_LOCAL_PROBE, Provenance.HOST_NETDATA)
_NEAREST_FIRST = (*_ON_THE_HOST, Provenance.IMPORTED)

_READ_NO_GPU = frozenset({"host", "kmsg", PROBE_READER})
"""Readers whose errors are no reason for a missing GPU."""


def current_machine(allocation: Allocation, machines: Sequence[MachineRecord], now: int) -> LocatedMachine:
    """Return the machine whose host-side readings are the allocation's own now.

    Args:
        allocation: the allocation.
        machines: the machines that it is bound to; for an allocation without binding, every machine of its cluster.
        now: nanoseconds since 1970.
    """
    no_answerer = NO_ANSWERER.get(allocation.spec.kind)
    if no_answerer is not None:
        return LocatedMachine(None, *no_answerer)
    binding = binding_at(allocation, now)
    if binding is None:
        return locate(allocation.spec, machines)
    for one in machines:
        if one.id == binding.machine:
            return LocatedMachine(one)
    detail = f"the allocation is bound to machine {binding.machine}, which is not in the registry"
    return LocatedMachine(None, Reason.TARGET_UNKNOWN, detail)


def inactive_reason(allocation: Allocation, now: int) -> tuple[Reason, str] | None:
    """Return why the allocation is not in force at this instant, or None if it is."""
    spec = allocation.spec
    if allocation.closed_at is not None and now >= to_ns(allocation.closed_at):
        return Reason.ENDED, f"closed at {allocation.closed_at.isoformat()}"
    if spec.valid_to is not None and now >= to_ns(spec.valid_to):
        return Reason.ENDED, f"valid until {spec.valid_to.isoformat()}"
    if spec.valid_from is not None and now < to_ns(spec.valid_from):
        return Reason.NOT_STARTED, f"valid from {spec.valid_from.isoformat()}"
    return None


def answer(
    allocation: Allocation,
    machines: Sequence[MachineRecord],
    stored: Sequence[StoredSample],
    readers: Sequence[ReaderStatus],
    now: int,
    *,
    stale_after_seconds: float,
    own_xids: Mapping[str, int] = {},
) -> AllocationAnswer:
    """Answer for an allocation of a whole machine or listed devices.

    Args:
        allocation: the queried allocation.
        machines: as in `current_machine`.
        stored: the newest samples of the machine that `current_machine` returns, without those of a GPU that left an
            unread slot (`bindings.without_occupants`).
        readers: status of that machine's readers.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: age of the last report beyond which a machine has no current values.
        own_xids: as in `clip_to_allocation`.
    """
    inactive = inactive_reason(allocation, now)
    if inactive is not None:
        return unavailable(allocation, *inactive)
    located = current_machine(allocation, machines, now)
    if located.machine is None:
        assert located.reason is not None
        return unavailable(allocation, located.reason, located.detail)
    return _host_answer(allocation, located.machine, stored, readers, now, stale_after_seconds, own_xids)


def last_error(readers: Sequence[ReaderStatus]) -> str | None:
    """Return the newest error of the readers that do not work, verbatim."""
    failed = newest_failure([one for one in readers if one.state is not ReaderState.OK])
    return None if failed is None else failed.last_error


def _host_answer(
    allocation: Allocation,
    machine: MachineRecord,
    stored: Sequence[StoredSample],
    readers: Sequence[ReaderStatus],
    now: int,
    stale_after_seconds: float,
    own_xids: Mapping[str, int],
) -> AllocationAnswer:
    freshness = Freshness(now, stale_after_seconds, readers)
    samples, source = host_samples(stored, freshness)
    binding = binding_at(allocation, now) or bind(allocation.spec, machine, stored, readers)
    begin = max([at for at in (allocation.spec.valid_from, binding.since) if at is not None], default=None)
    since = 0 if begin is None else to_ns(begin)
    whole_machine = allocation.spec.devices is None
    if whole_machine:
        passes = [(one.sample.reader, one.sample.measured_at) for one in samples]
        passes += [(one.reader, one.last_attempt or 0) for one in readers]
        is_read = any(at >= since for reader, at in passes if reader not in _READ_NO_GPU)
        samples = without_departed(samples, readers, since, is_read_since=is_read)
    clipped = [clip_to_allocation(one, begin, own_xids) for one in samples]
    own = clipped if whole_machine else [without_foreign_details(one) for one in clipped if not is_probe(one)]
    failed = failure_since(since, readers, whole_machine=whole_machine)
    error = None if failed is None else visible_error(failed, whole_machine=whole_machine)
    if not own:
        detail = "no sample of this machine has been stored yet"
        bare = unavailable(allocation, Reason.NOT_COLLECTED, detail)
        return msgspec.structs.replace(bare, machine=machine.id, last_error=error)
    live = [one.received_at for one in own if freshness.is_live(one.received_at)]
    received_at = max(live or [one.received_at for one in own])
    homes = {key: address for address, key in last_occupants(own).items()}
    every = devices(machine.cluster, machine.id, own, freshness)
    found = _allocated(every, machine, binding, allocation.spec, homes)
    if not whole_machine:
        found = without_foreign_peers(found)
    host_sources = stored_readings([one for one in own if one.sample.view is None], freshness)
    host = merge(host_sources)
    # Mounts and interfaces can name another tenant of the machine.
    host_dimensions = merge_dimensions(host_sources) if whole_machine else ()
    if not live:
        found = tuple(msgspec.structs.replace(one, readings=all_stale(one.readings), dimensions=()) for one in found)
        host, host_dimensions = all_stale(host), ()
    why = None if live else Absent(Reason.STALE, f"nothing was received for more than {stale_after_seconds:g} s")
    expected = sum(allocation.spec.expected.values())
    if live and (expected or allocation.spec.devices) and all(one.source is Provenance.UNAVAILABLE for one in found):
        visible = visible_readers(since, readers, whole_machine=whole_machine)
        failed = newest_failure([one for one in visible if one.reader not in _READ_NO_GPU])
        why = _no_gpu(failed)
        error = error if failed is None else visible_error(failed, whole_machine=whole_machine)
    return AllocationAnswer(
        allocation=allocation,
        source=source if why is None else Provenance.UNAVAILABLE,
        reason=None if why is None else why.reason,
        detail="" if why is None else why.detail,
        measured_at=to_datetime(max(one.sample.measured_at for one in own)),
        received_at=to_datetime(received_at),
        age_seconds=freshness.age_seconds(received_at),
        last_error=error,
        aggregate=aggregate(independent_readings(found), expected),
        machine=machine.id,
        devices=found,
        host=host,
        host_dimensions=host_dimensions,
    )


def _no_gpu(failed: ReaderStatus | None) -> Absent:
    """Return why a machine shows none of the expected GPUs: the error of its readers of GPUs, if there is one.

    The detail does not name the machine, which can have a later name by now.
    """
    detail = "the machine reports none of the allocation's GPUs"
    if failed is None:
        return Absent(Reason.NOT_REPORTED, detail)
    reason = Reason(failed.error_class)  # the name of an exception is no reason
    return Absent(Reason.READER_FAILED if reason is Reason.UNKNOWN else reason, detail)


def host_samples(stored: Sequence[StoredSample], freshness: Freshness) -> tuple[list[StoredSample], Provenance]:
    """Return the usable samples of a host, and their source: the closest one to the host that reports.

    That is the probe on the host, together with its operator's Netdata; or Netdata alone; or imported samples. Imported
    samples are never mixed with the others, since they may name the same GPUs differently. If no source reports, the
    closest one is returned.
    """
    by_source: dict[Provenance, list[StoredSample]] = {}
    for one in stored:
        if is_of_host(one):
            by_source.setdefault(one.sample.provenance, []).append(one)
    known = [source for source in _NEAREST_FIRST if source in by_source]
    live = [source for source in known if any(freshness.is_live(one.received_at) for one in by_source[source])]
    nearest = next(iter(live or known), Provenance.UNAVAILABLE)
    if nearest is Provenance.IMPORTED:
        return by_source[nearest], nearest
    return [one for source in _ON_THE_HOST for one in by_source.get(source, ())], nearest


def _allocated(
    found: tuple[AnswerDevice, ...],
    machine: MachineRecord,
    binding: Binding,
    spec: AllocationSpec,
    homes: Mapping[str, str],
) -> tuple[AnswerDevice, ...]:
    """Return the bound devices, or all if none are listed. A listed device that is not present has no values.

    It has the id of the bound device: another card can be at a listed address.
    A UUID that no driver shows any more stands for the unnamed GPU at its address (`homes`, by view key) if no other
    UUID was read there since: otherwise the unnamed GPU is the one that replaced it.
    """
    if spec.devices is None:
        return found
    by_id = {one.id: one for one in found}
    by_address = unnamed_gpus(found)
    listed: dict[str, AnswerDevice] = {}
    for name in spec.devices:
        keys = (binding.devices or {}).get(name, ())
        ids = [f"{machine.cluster}/{machine.id}/{key}" for key in keys]
        fits = [by_id[id_] for id_ in ids if id_ in by_id]
        fits = fits or [by_address[home] for key in keys if (home := homes.get(key, "")) in by_address]
        view = view_of_key(keys[0]) if keys else _listed_view(name)
        for one in fits or [unreported_device(view, machine, "listed by the allocation")]:
            listed.setdefault(one.id, one)
    return with_parents(listed.values(), found)


def unnamed_gpus(found: Iterable[AnswerDevice]) -> dict[str, AnswerDevice]:
    """Return the GPUs that only their PCI address identifies, by address: the bus lists them, or the driver lost them.

    They have a state or a reason, and no measurement. `last_occupants` shows which GPU such a slot had last.
    """
    return {
        one.pci_address: one
        for one in found
        if one.kind is ViewKind.GPU
        and one.pci_address
        and one.uuid is None
        and all(one.readings[name].value is None for name in AGGREGATED if name in one.readings)
    }


def _listed_view(name: str) -> View:
    address = pci_address(name)
    kind = ViewKind.MIG if name.startswith("MIG-") else ViewKind.GPU
    return View(kind=kind, side=Side.HOST, uuid=None if address else name, pci_address=address)


def unreported_device(
    view: View, machine: MachineRecord, why: str, reason: Reason = Reason.NOT_REPORTED
) -> AnswerDevice:
    """Return a device without values that its machine does not report; `why` is the reason that it is listed."""
    absent = Reading(absent=reason, detail=f"{why}, but not reported by this machine")
    return AnswerDevice(
        id=f"{machine.cluster}/{machine.id}/{view.key}",
        machine=machine.id,
        kind=view.kind,
        side=view.side,
        uuid=view.uuid,
        pci_address=view.pci_address,
        source=Provenance.UNAVAILABLE,
        readings=dict.fromkeys(AGGREGATED, absent),
    )


def unavailable(allocation: Allocation, reason: Reason, detail: str) -> AllocationAnswer:
    """Return an answer without values, for a reason."""
    listed = sum(not name.startswith("MIG-") for name in allocation.spec.devices or ())
    return AllocationAnswer(
        allocation=allocation,
        source=Provenance.UNAVAILABLE,
        reason=reason,
        detail=detail,
        measured_at=None,
        received_at=None,
        age_seconds=None,
        last_error=None,
        aggregate=aggregate([], max(listed, sum(allocation.spec.expected.values()))),
        machine=None,
        devices=(),
        host={},
        host_dimensions=(),
    )
