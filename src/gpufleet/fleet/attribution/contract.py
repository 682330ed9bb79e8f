"""Allocation contract: the source and the readings that answer for an allocation. Pure.

A bare-metal machine answers for itself, and for the devices of it that an allocation lists. Any other part of a machine
is answered only by a source that observes that very part: the guest itself, the host for a guest's own vGPU instance
(`fleet.attribution.slices`), or attribution. Without such a source the answer is `unavailable` with a reason, and has
no host value: a host's GPU never speaks for a guest's.

`fleet.attribution.bindings` has the machine and the devices of an allocation.
"""

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from gpufleet.fleet.devices import independent_readings, with_parents
from gpufleet.fleet.readings import (
    PROBE_READER,
    Freshness,
    all_stale,
    devices,
    merge,
    merge_dimensions,
    stored_readings,
)
from gpufleet.model.absence import REASON_TEXTS, Absent, Reason
from gpufleet.model.aggregate import AGGREGATED, aggregate
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Binding
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice, MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import XID_ALL, XID_ERRORS, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.reading import DimReading, Provenance, Reading, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, View, ViewKind

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

_NOT_YET = Absent(Reason.NO_DATA, "not measured since the allocation began")
_NO_XID_YET = Absent(Reason.NO_DATA, "none since the allocation began")
_UNKNOWN_TIME = Absent(Reason.NO_DATA, "its time is not reported: it can be from before the allocation began")
_EARLIER_COUNT = Absent(Reason.NO_DATA, "the count began before the allocation: its events have its XIDs")


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
        stored: the newest samples of the machine that `current_machine` returns.
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


def newest_failure(readers: Sequence[ReaderStatus]) -> ReaderStatus | None:
    """Return the status with the newest error, or None."""
    failed = [one for one in readers if one.last_error]
    return max(failed, key=lambda one: (one.last_attempt or 0, one.reader, one.lane)) if failed else None


def failure_since(begin: int, readers: Sequence[ReaderStatus], *, whole_machine: bool) -> ReaderStatus | None:
    """Return the newest error of a failed pass that the tenant of a machine, or of some of its devices, may see.

    Args:
        begin, readers, whole_machine: as in `_visible_readers`.
    """
    found = _visible_readers(begin, readers, whole_machine=whole_machine)
    return newest_failure([one for one in found if one.state is not ReaderState.OK])


def _visible_readers(begin: int, readers: Sequence[ReaderStatus], *, whole_machine: bool) -> list[ReaderStatus]:
    """Return the readers whose error the tenant of a machine, or of some of its devices, may see.

    The tenant of some devices does not see that a pass failed for single devices: these can be another tenant's, and
    the readings of its own devices have their reasons.

    Args:
        begin: nanoseconds since 1970; errors of earlier passes are another tenant's.
        readers: of the machine.
        whole_machine: whether the tenant has the whole machine.
    """
    recent = [one for one in readers if (one.last_attempt or 0) >= begin]
    return [one for one in recent if whole_machine or one.state is not ReaderState.PARTIAL]


_DEVICE_NAME = re.compile(
    r"(?:GPU|MIG)-[\w/-]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?|[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
    r"|\b(?:v?GPU|MIG|GI|CI|VM|device|instance|domain)(?: device| instance)?[ :=#]*\d+\b(?!:[0-9a-f]{2}[:.])"
    r"|/dev/nvidia\d+|\bpids?\b|\bprocess(?:es)?\b",
    re.IGNORECASE,
)
"""UUIDs, PCI addresses and indexes of devices, virtual machines and processes in a text."""


CONSTANT_DETAILS = frozenset(
    {
        *(Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER, Reason.NOT_IN_MIG_MODE, Reason.NOT_IN_GUEST),
        *(Reason.NO_DATA, Reason.NOT_REPORTED, Reason.NOT_COLLECTED, Reason.BOUND_TO_VFIO, Reason.OTHER_DRIVER),
    }
)
"""Reasons whose details are constants of the readers: names of calls, fields, files and kernel drivers.

The details of all other reasons may have texts of drivers, commands and operating systems.
"""


def visible_error(status: ReaderStatus, *, whole_machine: bool) -> str:
    """Return the error of a reader as a tenant may see it.

    Only the tenant of a whole machine sees the reader's text. The tenant of some of its devices sees the kind of the
    reader, the reason and the fixed text of that reason: a text of a driver or a command can name another tenant's GPU,
    process or user in any form.

    Args:
        status: with an error.
        whole_machine: whether the tenant has the whole machine.
    """
    if whole_machine:
        return status.last_error
    kind, reason = status.reader.partition("/")[0], Reason(status.error_class)
    if reason is Reason.UNKNOWN:  # the name of an exception, or a reason of a newer build
        return f"{kind}: error"
    return f"{kind}: {reason}: {REASON_TEXTS[reason]}"


def without_foreign_details(stored: StoredSample) -> StoredSample:
    """Remove the details of absences that may be about another tenant's device or process.

    Only `CONSTANT_DETAILS` stay, and of these only details that name no device and no process.

    Args:
        stored: of the machine, of an own device or of a device that an own one is a part of.
    """

    def is_shown(absent: Absent) -> bool:
        return absent.reason in CONSTANT_DETAILS and _DEVICE_NAME.search(absent.detail) is None

    return _with_details(stored, is_shown)


_PEER = "peer_pci_address"
"""Dimension with the PCI address of another GPU."""


def without_foreign_peers(found: Iterable[AnswerDevice]) -> tuple[AnswerDevice, ...]:
    """Remove the NVLinks to GPUs that are not among the devices: such a GPU may be another tenant's.

    A link without value names the GPU, too: a stale one, or that of a lost GPU.

    Args:
        found: the devices of one machine in an answer.
    """
    found = tuple(found)
    own = {None, *(one.pci_address for one in found)}

    def is_shown(dim: DimReading) -> bool:  # an absence that is about no single link has the label "unknown"
        return pci_address(dim.labels.get(_PEER, "")) in own

    return tuple(msgspec.structs.replace(one, dimensions=tuple(filter(is_shown, one.dimensions))) for one in found)


def _is_probe(stored: StoredSample) -> bool:
    """Return whether a sample has the facts of the performance probe: some name every GPU, and files of claims."""
    return stored.sample.reader == PROBE_READER


def _with_details(stored: StoredSample, keep: Callable[[Absent], bool]) -> StoredSample:
    """Remove the details of absences that are not to be kept."""
    sample = stored.sample

    def cut(value: Value | Absent) -> Value | Absent:
        return Absent(value.reason) if isinstance(value, Absent) and not keep(value) else value

    values = {name: cut(value) for name, value in sample.values.items()}
    dims = tuple(msgspec.structs.replace(dim, value=cut(dim.value)) for dim in sample.dims)
    return msgspec.structs.replace(stored, sample=msgspec.structs.replace(sample, values=values, dims=dims))


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
    binding = binding_at(allocation, now) or bind(allocation.spec, machine, stored)
    begin = max([at for at in (allocation.spec.valid_from, binding.since) if at is not None], default=None)
    whole_machine = allocation.spec.devices is None
    clipped = [clip_to_allocation(one, begin, own_xids) for one in samples]
    own = clipped if whole_machine else [without_foreign_details(one) for one in clipped if not _is_probe(one)]
    since = 0 if begin is None else to_ns(begin)
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
        visible = _visible_readers(since, readers, whole_machine=whole_machine)
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


def clip_to_allocation(
    stored: StoredSample,
    begin: dt.datetime | None,
    own_xids: Mapping[str, int] = {},
    xids_begin: dt.datetime | None = None,
) -> StoredSample:
    """Remove values measured before the allocation began: they belong to another tenant.

    The static lane stays, since it describes the machine and not its use, except the performance probe: its tenant
    installs services and reserves huge pages. Absences stay without their details, which
    may name another tenant's processes. XIDs that can be from before are removed from later samples, too: the newest
    one if it occurred earlier or has no time, and counts that began earlier.

    Args:
        stored: of any view and reader.
        begin: when the allocation began; None if that is not known.
        own_xids: view key to its newest XID without time, as far as that is known to have occurred since `begin`.
        xids_begin: instant from which on XIDs are of the allocation, if that is known to be before `begin`.
    """
    sample = stored.sample
    if begin is None:
        return stored
    if sample.measured_at >= to_ns(begin):
        return _without_earlier_xids(stored, xids_begin or begin, own_xids)
    if sample.lane is Lane.STATIC and not _is_probe(stored):
        return _without_earlier_xids(_with_details(stored, lambda _: False), begin, {})
    values = {
        name: Absent(value.reason) if isinstance(value, Absent) else _NOT_YET for name, value in sample.values.items()
    }
    return msgspec.structs.replace(stored, sample=msgspec.structs.replace(sample, values=values, dims=()))


def untimed_xid(values: Mapping[str, Value | Absent]) -> int | None:
    """Return the newest XID of a sample that has no time of it; None if it has no XID, or its time."""
    code = values.get(XID_LAST)
    return code if isinstance(code, int) and not isinstance(values.get(XID_LAST_AT), int | float) else None


def _without_earlier_xids(stored: StoredSample, begin: dt.datetime, own_xids: Mapping[str, int]) -> StoredSample:
    """Remove XIDs that occurred before the allocation began, or may have."""
    sample = stored.sample
    values, dims = sample.values, sample.dims
    at, since, untimed = values.get(XID_LAST_AT), values.get(XID_SINCE), untimed_xid(values)
    removed: dict[str, Absent] = {}
    if isinstance(at, int | float) and at < begin.timestamp():
        removed = dict.fromkeys((name for name in (XID_LAST, XID_LAST_AT) if name in values), _NO_XID_YET)
    elif untimed is not None and (sample.view is None or own_xids.get(sample.view.key) != untimed):
        removed = {XID_LAST: _UNKNOWN_TIME}
    if not isinstance(since, int | float) or since < begin.timestamp():
        dims = tuple([one for one in dims if one.metric != XID_ERRORS])
        if isinstance(values.get(XID_ALL), int):
            removed[XID_ALL] = _EARLIER_COUNT
    if not removed and len(dims) == len(sample.dims):
        return stored
    kept = msgspec.structs.replace(sample, values={**values, **removed}, dims=dims)
    return msgspec.structs.replace(stored, sample=kept)


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
        for one in fits or [unreported_device(_listed_view(name), machine, "listed by the allocation")]:
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
