"""What a virtual machine tells of itself, read from inside through its host's agent. Pure.

In such an answer is only what was measured inside the machine that was dialled for the target's UUID: its GPUs, its
own processor, memory and network. Beside it stand the agent's stamps of when it got how far. Nothing of the host.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution import contract
from gpufleet.fleet.readings import Freshness, all_stale, devices, merge, merge_dimensions
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import aggregate
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord
from gpufleet.model.machine import OK, REMOVED, SILENT, MachineKind
from gpufleet.model.reading import Provenance, Reading
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side, ViewKind, normalise_uuid

AGENTS_WORD = "guests"
"""Reader whose samples are the agent's own word of the virtual machine."""

STAMPS = tuple(f"guest_{name}_timestamp_seconds" for name in ("seen", "channel_open", "first_answer", "driver_ready"))

OPERATORS_OWN = frozenset({Reason.NOT_PERMITTED})
"""States whose words are about the agent's own files and rights: an answer says only that."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and what is known of it.

    Attributes:
        machine: which.
        stored: its newest samples.
        readers: how its readers are doing.
    """

    machine: MachineRecord
    stored: Sequence[StoredSample]
    readers: Sequence[ReaderStatus]


class _Word(msgspec.Struct, frozen=True):
    """The agent's word of a guest: the state, what is wrong, GPUs that it shows now, and when the hub received it."""

    state: str
    problem: str
    gpus: int | None
    received_at: int


def answer(
    allocation: Allocation, guests: Sequence[Told], now: int, *, stale_after_seconds: float
) -> AllocationAnswer | None:
    """Answer for the allocation of a virtual machine from inside it; None if nobody reads it.

    Args:
        allocation: of a virtual machine, in force.
        guests: machines of its cluster.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: what was not heard of for longer has no current values.
    """
    wanted = normalise_uuid(allocation.spec.target.vm_uuid or "")
    known = [(one, word) for one in guests if _is(one.machine, wanted) and (word := _word(one)) is not None]
    read = [(one, word) for one, word in known if word.state != REMOVED]
    if not read:
        return None
    freshness = Freshness(now, stale_after_seconds, ())
    heard = [(one, word) for one, word in read if freshness.is_heard(word.received_at)]
    if len(heard) > 1:
        ids = ", ".join(sorted(one.machine.id for one, _ in heard))
        words = f"several agents read a virtual machine of this UUID: {ids}"
        return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, words)
    one, word = max(heard or read, key=lambda each: each[1].received_at)
    return _answer(allocation, one, word, Freshness(now, stale_after_seconds, one.readers), stale_after_seconds)


def home(allocation: Allocation, guests: Sequence[Told]) -> MachineRecord | None:
    """Return the machine that is, or was lastly, read from inside for an allocation."""
    wanted = normalise_uuid(allocation.spec.target.vm_uuid or "")
    known = [(one, word) for one in guests if _is(one.machine, wanted) and (word := _word(one)) is not None]
    return max(known, key=lambda each: each[1].received_at)[0].machine if known else None


def is_inside(stored: StoredSample) -> bool:
    """Tell whether it was measured inside a guest, of the guest."""
    sample = stored.sample
    if sample.provenance is not Provenance.SLICE_GUEST or sample.reader == AGENTS_WORD:
        return False
    return sample.view is None or (sample.view.side is Side.GUEST and sample.view.kind is not ViewKind.VGPU)


def _is(machine: MachineRecord, wanted: str | None) -> bool:
    evidence = machine.machine
    return evidence.kind is MachineKind.GUEST and wanted is not None and evidence.system_uuid == wanted


def _word(one: Told) -> _Word | None:
    for stored in one.stored:
        sample = stored.sample
        state, problem = sample.values.get("guest_state"), sample.values.get("guest_problem")
        if sample.reader == AGENTS_WORD and sample.view is None and isinstance(state, str):
            gpus = sample.values.get("guest_gpus")
            words = problem if isinstance(problem, str) else ""
            return _Word(state, words, gpus if isinstance(gpus, int) else None, stored.received_at)
    return None


def _answer(
    allocation: Allocation, one: Told, word: _Word, freshness: Freshness, stale_after_seconds: float
) -> AllocationAnswer:
    inside = [contract.since(stored, allocation.spec.valid_from) for stored in one.stored if is_inside(stored)]
    of_gpus = [stored for stored in inside if stored.sample.view is not None]
    found = tuple(
        msgspec.structs.replace(device, source=Provenance.SLICE_GUEST)
        for device in devices(one.machine.cluster, one.machine.id, inside, freshness)
    )
    current = [stored for stored in of_gpus if freshness.is_heard(stored.received_at)]
    gpus = [device for device in found if device.kind is ViewKind.GPU]
    why = _why_not(allocation.spec, word, freshness, len(gpus), current, of_gpus, stale_after_seconds)
    of_machine = [stored for stored in inside if stored.sample.view is None]
    host, dims = merge(of_machine, freshness), merge_dimensions(of_machine, freshness)
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
        last_error=None if word.state in OPERATORS_OWN else word.problem or None,
        aggregate=aggregate(
            [device.readings for device in found if device.kind is ViewKind.GPU], _expected(allocation.spec)
        ),
        machine=one.machine.id,
        devices=found,
        host={**host, **_stamps(one, freshness)},
        host_dimensions=dims,
    )


def _why_not(
    spec: AllocationSpec,
    word: _Word,
    freshness: Freshness,
    gpus: int,
    current: Sequence[StoredSample],
    ever: Sequence[StoredSample],
    stale_after_seconds: float,
) -> Absent | None:
    """Return why there is no answer from inside, or None."""
    if not freshness.is_heard(word.received_at):
        return Absent(
            Reason.STALE, f"nothing was received from the agent that reads it for more than {stale_after_seconds:g} s"
        )
    if word.state == OK or (word.state in SILENT and current):
        expected = _expected(spec)
        if not current:
            reason = Reason.STALE if ever else Reason.NOT_COLLECTED
            return Absent(reason, "its agent reads its GPUs, and no sample of them has come lately")
        shown = gpus if word.gpus is None else word.gpus  # the agent knows of one that is gone
        if expected and shown != expected:
            return Absent(Reason.GPU_COUNT_DIFFERS, f"the allocation has {expected} GPUs, and the guest shows {shown}")
        return None
    reason = Reason(word.state)
    if reason in OPERATORS_OWN:
        return Absent(reason, "the agent may not use the way into it: its operator must look")
    since = ""
    if word.state in SILENT and ever:
        last = max(stored.received_at for stored in ever)
        since = f"; last heard at {to_datetime(last).isoformat(timespec='seconds')}"
    return Absent(reason, f"{word.problem}{since}")


def last_known(readings: Mapping[str, Reading], stored: Sequence[StoredSample]) -> dict[str, Reading]:
    """Return the readings without a value, and with what was known last: that is not what is."""
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


def _stamps(one: Told, freshness: Freshness) -> dict[str, Reading]:
    own = [stored for stored in one.stored if stored.sample.reader == AGENTS_WORD and stored.sample.view is None]
    return {name: reading for name, reading in merge(own, freshness).items() if name in STAMPS}
