"""Answers for a virtual machine from inside it, as read by its host's agent. Pure.

Such an answer has only readings measured inside the machine that was dialled for the target's UUID: its GPUs, its
processor, memory and network. Beside them are the agent's timestamps of its progress. Nothing is of the host.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution import contract, visibility
from gpufleet.fleet.readings import Freshness, all_stale, devices, merge, merge_dimensions, stored_readings
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import aggregate
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord
from gpufleet.model.machine import OK, REMOVED, UNANSWERED_STATES, MachineKind
from gpufleet.model.reading import Provenance, Reading
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime, to_ns
from gpufleet.model.view import Side, ViewKind, normalise_uuid

AGENT_READER = "guests"
"""Reader of the samples in which the agent itself reports on the virtual machine."""

STAMPS = tuple(f"guest_{name}_timestamp_seconds" for name in ("seen", "channel_open", "first_answer", "driver_ready"))

OPERATOR_ONLY = frozenset({Reason.NOT_PERMITTED})
"""States whose problem text concerns the agent's own files and permissions: an answer omits the text."""


class MachineSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Machine with its samples and readers.

    Attributes:
        machine: the machine.
        stored: its newest samples.
        readers: status of its readers.
    """

    machine: MachineRecord
    stored: Sequence[StoredSample]
    readers: Sequence[ReaderStatus]


class _GuestReport(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's report of a guest. It is repeated until the next pass over the guest's GPUs ends.

    Attributes:
        state: of the access to the guest.
        problem: text of the state; empty without a problem.
        gpus: number of GPUs that the guest shows.
        judged_at: start of the pass that state, problem and number are from; 0 if that is not reported.
        measured_at: time of the report.
        received_at: when the hub received it.
    """

    state: str
    problem: str
    gpus: int | None
    judged_at: int
    measured_at: int
    received_at: int


def answer(
    allocation: Allocation, guests: Sequence[MachineSamples], now: int, *, stale_after_seconds: float
) -> AllocationAnswer | None:
    """Answer for the allocation of a virtual machine from inside it; None if no agent reads it.

    Args:
        allocation: of a virtual machine, in force.
        guests: machines of its cluster.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: age of the last report beyond which there are no current values.
    """
    read = [(one, report) for one, report in _known(allocation, guests) if report.state != REMOVED]
    if not read:
        return None
    freshness = Freshness(now, stale_after_seconds, ())
    live = [(one, report) for one, report in read if _is_live(report, freshness)]
    if len(live) > 1:
        ids = ", ".join(sorted(one.machine.id for one, _ in live))
        detail = f"several agents read a virtual machine with this UUID: {ids}"
        return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, detail)
    one, report = max(live or read, key=lambda each: each[1].received_at)
    return _answer(allocation, one, report, Freshness(now, stale_after_seconds, one.readers), stale_after_seconds)


class ReportedGuest(msgspec.Struct, frozen=True, kw_only=True):
    """Guest that an agent reads or read for an allocation.

    Attributes:
        machine: the guest.
        last: time of its last report, nanoseconds since 1970.
        is_live: whether it is reported now, and not from a backlog.
    """

    machine: MachineRecord
    last: int
    is_live: bool


def reported_guests(
    allocation: Allocation, guests: Sequence[MachineSamples], now: int, *, stale_after_seconds: float
) -> tuple[ReportedGuest, ...]:
    """Return the guests that are or were read for an allocation.

    A virtual machine that migrated was read by each of its hosts; a clone with its UUID was read, too. Which guest
    stands for the virtual machine at a time is decided by `fleet.usage.residence.succession`.

    Args:
        allocation: of a virtual machine.
        guests: machines of its cluster.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: age of the last report beyond which a guest is not reported any more.
    """
    freshness = Freshness(now, stale_after_seconds, ())
    recent = now - int(stale_after_seconds * NANOS) - MAX_CLOCK_SKEW_NS
    return tuple(
        ReportedGuest(
            machine=one.machine,
            last=report.measured_at,
            is_live=_is_live(report, freshness) and report.measured_at >= recent,
        )
        for one, report in _known(allocation, guests)
    )


def _known(allocation: Allocation, guests: Sequence[MachineSamples]) -> list[tuple[MachineSamples, _GuestReport]]:
    """Return the guests with the target's UUID that an agent reads or read, with its report."""
    wanted = normalise_uuid(allocation.spec.target.vm_uuid or "")
    return [(one, report) for one in guests if _is(one.machine, wanted) and (report := _report(one)) is not None]


def _is_live(report: _GuestReport, freshness: Freshness) -> bool:
    """Return whether the guest is reported now: two such guests with one UUID are ambiguous."""
    return report.state != REMOVED and freshness.is_live(report.received_at)


def is_inside(stored: StoredSample) -> bool:
    """Return whether a sample was measured inside a guest, about the guest."""
    sample = stored.sample
    if sample.provenance is not Provenance.SLICE_GUEST or sample.reader == AGENT_READER:
        return False
    return sample.view is None or (sample.view.side is Side.GUEST and sample.view.kind is not ViewKind.VGPU)


def _is(machine: MachineRecord, wanted: str | None) -> bool:
    evidence = machine.machine
    return evidence.kind is MachineKind.GUEST and wanted is not None and evidence.system_uuid == wanted


def _report(one: MachineSamples) -> _GuestReport | None:
    for stored in one.stored:
        sample = stored.sample
        state, problem = sample.values.get("guest_state"), sample.values.get("guest_problem")
        if sample.reader == AGENT_READER and sample.view is None and isinstance(state, str):
            gpus, judged_at = sample.values.get("guest_gpus"), sample.values.get("guest_state_timestamp_seconds")
            return _GuestReport(
                state=state,
                problem=problem if isinstance(problem, str) else "",
                gpus=gpus if isinstance(gpus, int) else None,
                judged_at=int(judged_at * NANOS) if isinstance(judged_at, int | float) else 0,
                measured_at=sample.measured_at,
                received_at=stored.received_at,
            )
    return None


def _answer(
    allocation: Allocation, one: MachineSamples, report: _GuestReport, freshness: Freshness, stale_after_seconds: float
) -> AllocationAnswer:
    begin = 0 if allocation.spec.valid_from is None else to_ns(allocation.spec.valid_from)
    if report.judged_at < begin:  # text and number are about the time of another tenant
        report = msgspec.structs.replace(report, problem="", gpus=None)
    every = [stored for stored in one.stored if is_inside(stored)]
    has_no_gpu = report.judged_at >= begin and (report.state != OK or report.gpus == 0)
    is_read = any(stored.sample.view is not None and stored.sample.measured_at >= begin for stored in every)
    present = visibility.without_departed(every, one.readers, begin, is_read_since=is_read or has_no_gpu)
    inside = [visibility.clip_to_allocation(stored, allocation.spec.valid_from) for stored in present]
    of_gpus = [stored for stored in inside if stored.sample.view is not None]
    found = tuple(
        msgspec.structs.replace(device, source=Provenance.SLICE_GUEST)
        for device in devices(one.machine.cluster, one.machine.id, inside, freshness)
    )
    current = [stored for stored in of_gpus if freshness.is_live(stored.received_at)]
    recent = [stored for stored in of_gpus if stored.sample.measured_at >= begin]
    gpus = [device for device in found if device.kind is ViewKind.GPU]
    why = _why_not(allocation.spec, report, freshness, len(gpus), current, recent, stale_after_seconds)
    of_machine = [stored for stored in inside if stored.sample.view is None]
    host_sources = stored_readings(of_machine, freshness)
    host, dims = merge(host_sources), merge_dimensions(host_sources)
    if why is not None:
        host, dims = last_known(host, of_machine), ()
        by_key = {device.id: [s for s in of_gpus if _id(one.machine, s) == device.id] for device in found}
        found = tuple(
            msgspec.structs.replace(
                device,
                source=Provenance.UNAVAILABLE,
                readings=last_known(device.readings, by_key[device.id]),
                dimensions=(),
            )
            for device in found
        )
    received_at = max((stored.received_at for stored in inside), default=None)
    measured_at = max((stored.sample.measured_at for stored in inside), default=None)
    return AllocationAnswer(
        allocation=allocation,
        source=Provenance.SLICE_GUEST if why is None else Provenance.UNAVAILABLE,
        reason=None if why is None else why.reason,
        detail="" if why is None else why.detail,
        measured_at=None if measured_at is None else to_datetime(measured_at),
        received_at=None if received_at is None else to_datetime(received_at),
        age_seconds=None if received_at is None else freshness.age_seconds(received_at),
        last_error=None if report.state in OPERATOR_ONLY else report.problem or None,
        aggregate=aggregate(
            [device.readings for device in found if device.kind is ViewKind.GPU], _expected(allocation.spec)
        ),
        machine=one.machine.id,
        devices=found,
        host={**host, **_stamps(one, allocation.spec, freshness)},
        host_dimensions=dims,
    )


def _why_not(
    spec: AllocationSpec,
    report: _GuestReport,
    freshness: Freshness,
    gpus: int,
    current: Sequence[StoredSample],
    ever: Sequence[StoredSample],
    stale_after_seconds: float,
) -> Absent | None:
    """Return why there is no answer from inside, or None if there is one."""
    if not freshness.is_live(report.received_at):
        return Absent(
            Reason.STALE, f"nothing was received from the agent that reads it for more than {stale_after_seconds:g} s"
        )
    if report.state == OK or (report.state in UNANSWERED_STATES and current):
        expected = _expected(spec)
        if not current:
            reason = Reason.STALE if ever else Reason.NOT_COLLECTED
            return Absent(reason, "its agent reads its GPUs, but no recent sample of them was received")
        shown = gpus if report.gpus is None else report.gpus  # the agent counts a lost GPU, too
        if expected and ever and shown != expected:
            return Absent(Reason.GPU_COUNT_DIFFERS, f"the allocation has {expected} GPUs, and the guest shows {shown}")
        return None
    reason = Reason(report.state)
    if reason in OPERATOR_ONLY:
        return Absent(reason, "the agent is not permitted to use its channel into the guest: see the agent's log")
    since = ""
    if report.state in UNANSWERED_STATES and ever:
        last = max(stored.received_at for stored in ever)
        since = f"last seen at {to_datetime(last).isoformat(timespec='seconds')}"
    return Absent(reason, "; ".join(text for text in (report.problem, since) if text))


def last_known(readings: Mapping[str, Reading], stored: Sequence[StoredSample]) -> dict[str, Reading]:
    """Return the readings without current values, but with the last known ones."""
    newest: dict[str, StoredSample] = {}
    for one in stored:
        for name, value in one.sample.values.items():
            if not isinstance(value, Absent) and (name not in newest or one.received_at > newest[name].received_at):
                newest[name] = one
    found = all_stale(readings)
    for name, one in newest.items():
        value = one.sample.values[name]
        if name in found and not isinstance(value, Absent):
            found[name] = msgspec.structs.replace(found[name], last_known=value)
    return found


def _expected(spec: AllocationSpec) -> int:
    return sum(spec.expected.values()) or len(spec.devices or ())


def _id(machine: MachineRecord, stored: StoredSample) -> str:
    assert stored.sample.view is not None
    return f"{machine.cluster}/{machine.id}/{stored.sample.view.key}"


def _stamps(one: MachineSamples, spec: AllocationSpec, freshness: Freshness) -> dict[str, Reading]:
    own = [
        visibility.clip_to_allocation(stored, spec.valid_from)
        for stored in one.stored
        if stored.sample.reader == AGENT_READER and stored.sample.view is None
    ]
    return {name: reading for name, reading in merge(stored_readings(own, freshness)).items() if name in STAMPS}
