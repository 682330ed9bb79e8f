"""Answers for pods and jobs: the readings of the devices that holdings name. Pure.

The devices may be on several machines. Each machine answers for its devices as for a bare-metal allocation that lists
them: with the same precedence, freshness and texts, and with nothing measured before the holding began. Readings of the
machine itself are never part of the answer, because other pods and jobs use it, too.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution import contract, visibility
from gpufleet.fleet.attribution.bindings import last_occupants
from gpufleet.fleet.attribution.guests import MachineSamples, last_known
from gpufleet.fleet.attribution.holder_targets import names_holder
from gpufleet.fleet.attribution.holding_intervals import HeldInterval
from gpufleet.fleet.attribution.reported import is_certain, known_until
from gpufleet.fleet.devices import independent_readings, with_parents
from gpufleet.fleet.readings import Freshness, all_stale, devices, known_views
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import AGGREGATED, aggregate
from gpufleet.model.allocation import Allocation, AllocationKind
from gpufleet.model.api.answer import AllocatedHolding, AllocationAnswer, AnswerDevice, MachineRecord
from gpufleet.model.holdings import Holding, HoldingVerdict
from gpufleet.model.reading import Provenance, Reading
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Scope, View, ViewKind, view_of_key

_UNCERTAIN = {
    HoldingVerdict.CONFLICT: (Reason.AMBIGUOUS_TARGET, "its machine reports another holder of the same device"),
    HoldingVerdict.UNKNOWN: (Reason.NOT_ATTRIBUTED, "the source of the holding does not confirm it now"),
    HoldingVerdict.NONE: (Reason.NOT_ATTRIBUTED, "no source confirms the holding"),
}
"""Why a holding is not certain, by its verdict."""

AMBIGUOUS_JOB = "several SLURM clusters have a job with this id: name its cluster in target.job_id, as CLUSTER/ID"

_SOURCES = (Provenance.HOST_LOCAL_PROBE, Provenance.HOST_NETDATA, Provenance.IMPORTED)


class _MachineAnswer(msgspec.Struct, frozen=True):
    """Answer of one machine: its devices, their samples by id, and the newest error of its readers."""

    devices: tuple[AnswerDevice, ...]
    samples: Mapping[str, Sequence[StoredSample]]
    source: Provenance
    live: bool
    failed: ReaderStatus | None
    error: str | None


def answer(
    allocation: Allocation,
    held: Sequence[HeldInterval],
    stored: Sequence[StoredHolding],
    machines: Iterable[MachineSamples],
    now: int,
    *,
    stale_after_seconds: float,
    any_holder: bool,
    own_xids: Mapping[str, Mapping[str, int]] = {},
    xids_since: Mapping[tuple[str, str], int] = {},
    is_ambiguous: bool = False,
) -> AllocationAnswer:
    """Answer for the allocation of a pod or job.

    Args:
        allocation: of one of `WORKLOAD_KINDS`.
        held: its devices, by `held_intervals`.
        stored: holdings of its target, with any verdict, also past ones.
        machines: the machines that have the devices.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: age of the last report beyond which a machine has no current values.
        any_holder: whether any machine of the cluster reports a holder.
        own_xids: machine id to XIDs since the newest of its holdings began, as in `visibility.clip_to_allocation`.
        xids_since: machine and view key to the time since which XIDs are of the holding, if `held` begins later.
        is_ambiguous: whether several SLURM clusters have jobs of the target's id; `held` then has no present device.
    """
    inactive = contract.inactive_reason(allocation, now)
    if inactive is not None:
        return contract.unavailable(allocation, *inactive)
    own = [one for one in stored if names_holder(allocation.spec, one.holding.holder)]
    present = [one for one in own if known_until(one, now) is None and one.holding.since <= now]
    current = [one for one in held if one.start <= now < one.end]
    named = {(one.machine, one.holding.view) for one in present}
    if not current:
        why = not_held_reason(allocation, own, now, any_holder=any_holder, is_ambiguous=is_ambiguous)
        found = contract.unavailable(allocation, *why)
        expected = max(found.aggregate.devices, len(named))
        return msgspec.structs.replace(found, aggregate=aggregate([], expected))
    by_machine: dict[str, list[HeldInterval]] = {}
    for one in current:
        by_machine.setdefault(one.machine, []).append(one)
    records = {one.machine.id: one for one in machines}
    answers = {
        id_: _machine_answer(
            intervals, present, records[id_], now, stale_after_seconds, own_xids.get(id_, {}), xids_since
        )
        for id_, intervals in sorted(by_machine.items())
        if id_ in records
    }
    if not answers:
        detail = f"machine {current[0].machine} reports it, and is not in the registry"
        return contract.unavailable(allocation, Reason.TARGET_UNKNOWN, detail)
    found = _answer(allocation, answers, len(named), now, stale_after_seconds)
    if len(named) > len(current) and not found.detail:
        return msgspec.structs.replace(found, detail=_uncertain_detail(present, current))
    return found


def not_held_reason(
    allocation: Allocation,
    own: Sequence[StoredHolding],
    now: int,
    *,
    any_holder: bool,
    is_ambiguous: bool = False,
) -> tuple[Reason, str]:
    """Return why a pod or job has no device.

    Args:
        allocation: the allocation.
        own: holdings of its target.
        now: nanoseconds since 1970 by the hub's clock.
        any_holder: whether any machine of the cluster reports a holder.
        is_ambiguous: whether several SLURM clusters have jobs of the target's id.
    """
    if is_ambiguous:
        return Reason.AMBIGUOUS_TARGET, AMBIGUOUS_JOB
    noun = "pod" if allocation.spec.kind is AllocationKind.KUBERNETES_POD else "job"
    present = [one.holding for one in own if known_until(one, now) is None]
    for verdict, why in _UNCERTAIN.items():
        if any(one.verdict is verdict for one in present):
            return why
    if present:
        return Reason.AMBIGUOUS_TARGET, "another holder of the same device is reported at the same time"
    if own:
        last = max(own, key=lambda one: (known_until(one, now) or 0, one.reported_at))
        at = to_datetime(known_until(last, now) or 0).isoformat(timespec="seconds")
        if last.holding.until is not None:
            return Reason.NOT_ATTRIBUTED, f"the {noun} released its last device at {at}"
        return Reason.NOT_ATTRIBUTED, f"its machine has not reported the {noun} since {at}"
    if not any_holder:
        return Reason.NOT_ATTRIBUTED, f"no source in this cluster reports the devices of a {noun}"
    return Reason.NOT_ATTRIBUTED, f"no machine has reported the {noun} as the holder of a device"


def with_held_devices(
    found: AllocationAnswer, held: Iterable[HeldInterval], machines: Iterable[MachineRecord], now: int
) -> AllocationAnswer:
    """Add the devices that a hypervisor reports to an answer of a virtual machine without devices; without values."""
    if found.devices or found.reason is None:
        return found
    known = {one.id: one for one in machines}
    added = [
        _without_values(contract.unreported_device(view_of_key(one.view), known[one.machine], ""), found.reason, "")
        for one in held
        if one.start <= now < one.end and one.machine in known
    ]
    return msgspec.structs.replace(found, devices=tuple(added))


def _machine_answer(
    held: Sequence[HeldInterval],
    present: Sequence[StoredHolding],
    found: MachineSamples,
    now: int,
    stale_after_seconds: float,
    own_xids: Mapping[str, int],
    xids_since: Mapping[tuple[str, str], int],
) -> _MachineAnswer:
    """Return the devices of one machine."""
    machine = found.machine
    freshness = Freshness(now, stale_after_seconds, found.readers)
    samples, source = contract.host_samples(found.stored, freshness)
    live = any(freshness.is_live(one.received_at) for one in samples)
    views, occupants = known_views(samples), last_occupants(samples)
    holdings: dict[str, list[Holding]] = {}
    for stored in present:
        if stored.machine == machine.id and is_certain(stored.holding):
            holdings.setdefault(stored.holding.view, []).append(stored.holding)
    chosen: list[AnswerDevice] = []
    of_device: dict[str, Sequence[StoredSample]] = {}
    begins = {id(one): (one.start, xids_since.get((one.machine, one.view), one.start)) for one in held}
    for begin in sorted(set(begins.values())):
        own = [visibility.clip_to_allocation(one, _begin(begin[0]), own_xids, _begin(begin[1])) for one in samples]
        clipped = [visibility.without_foreign_details(one) for one in own]
        every = devices(machine.cluster, machine.id, clipped, freshness)
        for one in held:
            if begins[id(one)] == begin:
                device = _device(one, machine, every, views, occupants)
                device = msgspec.structs.replace(device, holding=_holding(holdings.get(one.view, ())))
                of_device[device.id] = [stored for stored in clipped if _is_of(stored, device)]
                (with_parent,) = with_parents([device], every)
                chosen.append(_shared(with_parent) if one.scope is Scope.SHARED_DEVICE else with_parent)
    if not live:
        chosen = [_stale(one) for one in chosen]
    since = max(one.start for one in held)
    failed = visibility.failure_since(since, found.readers, whole_machine=False)
    error = None if failed is None else visibility.visible_error(failed, whole_machine=False)
    ordered = sorted({one.id: one for one in chosen}.values(), key=lambda one: (one.pci_address or "~", one.id))
    return _MachineAnswer(visibility.without_foreign_peers(ordered), of_device, source, live, failed, error)


def _device(
    held: HeldInterval,
    machine: MachineRecord,
    every: Sequence[AnswerDevice],
    views: Mapping[str, View],
    occupants: Mapping[str, str],
) -> AnswerDevice:
    """Return a held device.

    A UUID that no driver shows any more stands for the unnamed GPU at its address if it is the last of `occupants`.
    """
    by_id = {one.id: one for one in every}
    view = views.get(held.view) or view_of_key(held.view)
    known = by_id.get(f"{machine.cluster}/{machine.id}/{held.view}")
    if known is None and view.pci_address and occupants.get(view.pci_address) == held.view:
        known = contract.unnamed_gpus(every).get(view.pci_address)
    return known or contract.unreported_device(view, machine, "held")


def _holding(holdings: Sequence[Holding]) -> AllocatedHolding | None:
    """Return the holding of a device, joined over the containers that have it."""
    if not holdings:
        return None
    first = min(holdings, key=lambda one: one.since)
    return AllocatedHolding(
        share=first.share,
        replicas=sum(one.replicas for one in holdings),
        total_replicas=max(one.total_replicas for one in holdings),
        containers=tuple(sorted({one.container for one in holdings} - {""})),
        claim=next((one.claim for one in holdings if one.claim), ""),
        since=to_datetime(first.since),
    )


def _answer(
    allocation: Allocation,
    answers: Mapping[str, _MachineAnswer],
    named: int,
    now: int,
    stale_after_seconds: float,
) -> AllocationAnswer:
    freshness = Freshness(now, stale_after_seconds, ())
    found = tuple(device for one in answers.values() for device in one.devices)
    live = [one for one in answers.values() if one.live]
    why = None
    if not live:
        why = Absent(Reason.STALE, f"nothing was received for more than {stale_after_seconds:g} s")
    elif all(one.source is Provenance.UNAVAILABLE for one in found):
        why = Absent(Reason.NOT_REPORTED, "its machine reports none of its devices")
    spec = allocation.spec
    expected = sum(spec.expected.values()) or len(spec.devices or ())
    if why is None and expected and named != expected and all(one.kind is ViewKind.GPU for one in found):
        detail = f"the allocation has {expected} GPUs, and machines report {named}"
        why = Absent(Reason.GPU_COUNT_DIFFERS, detail)
        samples = {id_: own for one in answers.values() for id_, own in one.samples.items()}
        found = tuple(_last_known(one, samples.get(one.id, ())) for one in found)
    times = [stored for one in answers.values() for own in one.samples.values() for stored in own]
    received_at = max((one.received_at for one in times), default=None)
    measured_at = max((one.sample.measured_at for one in times), default=None)
    failures = [one for one in answers.values() if one.failed is not None]
    newest = max(failures, key=lambda one: (one.failed and one.failed.last_attempt) or 0, default=None)
    sources = {one.source for one in live}
    return AllocationAnswer(
        allocation=allocation,
        source=next((one for one in _SOURCES if why is None and one in sources), Provenance.UNAVAILABLE),
        reason=None if why is None else why.reason,
        detail="" if why is None else why.detail,
        measured_at=None if measured_at is None else to_datetime(measured_at),
        received_at=None if received_at is None else to_datetime(received_at),
        age_seconds=None if received_at is None else freshness.age_seconds(received_at),
        last_error=None if newest is None else newest.error,
        aggregate=aggregate(independent_readings(found), max(expected, named)),
        machine=next(iter(answers)) if len(answers) == 1 else None,
        devices=found,
        host={},
        host_dimensions=(),
    )


def _uncertain_detail(present: Sequence[StoredHolding], current: Sequence[HeldInterval]) -> str:
    """Return why some devices of an allocation are not shown."""
    shown = {(one.machine, one.view) for one in current}
    missing = {(one.machine, one.holding.view): one.holding.verdict for one in present}
    verdicts = [verdict for place, verdict in missing.items() if place not in shown]
    _, why = _UNCERTAIN.get(verdicts[0], (None, "another holder of the same device is reported at the same time"))
    return f"{len(verdicts)} of {len(missing)} devices are not shown: {why}"


def _begin(start: int) -> dt.datetime:
    """Return the first microsecond of an interval, not earlier than its start."""
    return to_datetime(-(-start // 1000) * 1000)


def _is_of(stored: StoredSample, device: AnswerDevice) -> bool:
    view = stored.sample.view
    return view is not None and device.id.split("/", 2)[2] == view.key


def _shared(device: AnswerDevice) -> AnswerDevice:
    """Return a device that others share: its readings are those of the whole device."""
    scope = Scope.SHARED_DEVICE
    return msgspec.structs.replace(
        device,
        readings={
            name: msgspec.structs.replace(one, scope=scope) if one.scope is Scope.OWN else one
            for name, one in device.readings.items()
        },
        dimensions=tuple(msgspec.structs.replace(one, scope=scope) for one in device.dimensions),
    )


def _stale(device: AnswerDevice) -> AnswerDevice:
    return msgspec.structs.replace(
        device, source=Provenance.UNAVAILABLE, readings=all_stale(device.readings), dimensions=()
    )


def _last_known(device: AnswerDevice, stored: Sequence[StoredSample]) -> AnswerDevice:
    return msgspec.structs.replace(
        device, source=Provenance.UNAVAILABLE, readings=last_known(device.readings, stored), dimensions=()
    )


def _without_values(device: AnswerDevice, reason: Reason, detail: str) -> AnswerDevice:
    readings = dict.fromkeys(AGGREGATED, Reading(absent=reason, detail=detail))
    return msgspec.structs.replace(device, readings=readings)
