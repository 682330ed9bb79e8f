"""Records of holders: which holdings are the present holders of a device, and the rows of a list."""

import datetime as dt
from typing import Any

import msgspec
import pytest

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.hub.query.holder_records import holder_record, node_holders, present_holders
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.holdings import (
    MAX_STATE_TEXT,
    DeviceState,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Share,
)
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.machine import Machine
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS, to_datetime

NOW = 1_800_000_000 * NANOS
POD = Holder(kind=HolderKind.POD, id="uid-1", name="train-0", namespace="ml")
JOB = Holder(kind=HolderKind.JOB, id="4711")
CURRENT = (State.LIVE, State.LATE)


def holding(holder: Holder = POD, verdict: HoldingVerdict = HoldingVerdict.AGREED, **changes: Any) -> Holding:
    fields = {"view": "gpu/GPU-0", "since": NOW - 60 * NANOS, "methods": ("kubelet",), **changes}
    return Holding(holder=holder, verdict=verdict, **fields)


def liveness(state: State) -> Liveness:
    return Liveness(state=state, unseen_seconds=1.0)


def machine(state: State = State.LIVE) -> MachineRecord:
    at = to_datetime(NOW)
    return MachineRecord(
        id="m-1",
        cluster="local",
        machine=Machine(name="node-a"),
        sender="s",
        first_seen=at,
        last_seen=at,
        liveness=liveness(state),
    )


@pytest.mark.parametrize("state", State)
def test_only_a_live_or_late_machine_has_present_holders(state: State) -> None:
    holders = present_holders([holding()], None, liveness(state))
    expected = HolderState.HELD if state in CURRENT else HolderState.UNKNOWN
    assert (holders.state, bool(holders.holdings)) == (expected, state in CURRENT)
    assert bool(holders.detail) == (state not in CURRENT)
    assert bool(node_holders([holding()], liveness(state))) == (state in CURRENT)


def test_machine_without_liveness_has_no_present_holders() -> None:
    assert present_holders([holding()], None, None).state is HolderState.UNKNOWN
    assert node_holders([holding()], None) == ()


def test_device_without_holdings_is_unknown_and_not_free() -> None:
    found = present_holders([], None, liveness(State.LIVE))
    assert (found.state, found.holdings, bool(found.detail)) == (HolderState.UNKNOWN, (), True)


def reported(state: HolderState, detail: str = "") -> DeviceState:
    return DeviceState(view="gpu/GPU-0", state=state, detail=detail)


@pytest.mark.parametrize("state", State)
def test_device_is_free_only_on_a_live_or_late_machine(state: State) -> None:
    found = present_holders([], reported(HolderState.FREE), liveness(state))
    assert found.state is (HolderState.FREE if state in CURRENT else HolderState.UNKNOWN)
    assert bool(found.detail) == (state not in CURRENT)
    unverified = msgspec.structs.replace(liveness(state), unverified=True)
    assert present_holders([], reported(HolderState.FREE), unverified).state is HolderState.UNKNOWN
    assert present_holders([], reported(HolderState.FREE), None).state is HolderState.UNKNOWN


def test_present_holding_contradicts_a_reported_free_state() -> None:
    found = present_holders([holding()], reported(HolderState.FREE), liveness(State.LIVE))
    assert (found.state, len(found.holdings)) == (HolderState.HELD, 1)


def test_reported_reason_of_an_unknown_state_is_shown_without_control_characters() -> None:
    found = present_holders([], reported(HolderState.UNKNOWN, "kubelet:\x1b[2J timeout"), liveness(State.LIVE))
    assert (found.state, found.detail) == (HolderState.UNKNOWN, "kubelet:[2J timeout")


def test_reported_reason_is_bounded_and_has_no_direction_marks() -> None:
    reason = "\u202ekubelet\u2066" + "y" * 4000
    found = present_holders([], reported(HolderState.UNKNOWN, reason), liveness(State.LIVE))
    assert (found.detail[:9], len(found.detail)) == ("?kubelet?", MAX_STATE_TEXT)


def test_held_device_without_a_holding_is_unknown() -> None:
    found = present_holders([], reported(HolderState.HELD), liveness(State.LIVE))
    assert (found.state, found.holdings, bool(found.detail)) == (HolderState.UNKNOWN, (), True)


def test_shared_device_is_unknown_while_other_holders_can_be_missing() -> None:
    shared = holding(share=Share.TIMESLICE)
    found = present_holders([shared], reported(HolderState.UNKNOWN, "kubelet: timeout"), liveness(State.LIVE))
    assert (found.state, found.detail, found.holdings) == (HolderState.UNKNOWN, "kubelet: timeout", (shared,))
    alone = present_holders([holding()], reported(HolderState.UNKNOWN, "kubelet: timeout"), liveness(State.LIVE))
    assert alone.state is HolderState.HELD


def test_device_is_held_if_one_of_its_holders_is_confirmed() -> None:
    pair = [holding(POD, HoldingVerdict.UNKNOWN), holding(JOB, HoldingVerdict.DECLARED_ONLY)]
    assert present_holders(pair, None, liveness(State.LIVE)).state is HolderState.HELD
    alone = present_holders(pair[:1], None, liveness(State.LIVE))
    assert (alone.state, alone.holdings) == (HolderState.UNKNOWN, (pair[0],))


def test_holder_of_a_node_has_its_least_certain_verdict() -> None:
    verdicts = [HoldingVerdict.AGREED, HoldingVerdict.CONFLICT, HoldingVerdict.DECLARED_ONLY]
    own = [holding(POD, verdict, view=f"gpu/GPU-{n}") for n, verdict in enumerate(verdicts)]
    pod, job = node_holders([*own, holding(POD, container="b"), holding(JOB)], liveness(State.LIVE))
    assert (pod.holder.id, pod.devices, pod.verdict) == ("uid-1", 3, HoldingVerdict.CONFLICT)
    assert (job.holder.id, job.devices, job.verdict) == ("4711", 1, HoldingVerdict.AGREED)


@pytest.mark.parametrize(
    ("until", "age", "state", "current"),
    [
        (None, 0, State.LIVE, True),
        (None, 0, State.LATE, True),
        (None, 0, State.STALE, False),
        (None, 0, State.LOST, False),
        (NOW - NANOS, 0, State.LIVE, False),
        (None, HOLDING_TTL_NS + NANOS, State.LIVE, False),
    ],
)
def test_row_is_current_while_the_holding_lasts_and_its_machine_reports(
    until: int | None, age: int, state: State, current: bool
) -> None:
    one = holding(share=Share.TIMESLICE, replicas=2, until=until, since=NOW - 2 * HOLDING_TTL_NS)
    stored = StoredHolding(cluster="local", machine="m-1", holding=one, reported_at=NOW - age)
    row = holder_record(stored, machine(state), None, (), NOW)
    assert (row.current, row.node, row.device) == (current, "node-a", "local/m-1/gpu/GPU-0")
    assert (row.share, row.replicas, row.age_seconds) == (Share.TIMESLICE, 2, age / NANOS)
    ends = until is not None or age > HOLDING_TTL_NS
    assert row.until == (to_datetime(until if until is not None else stored.reported_at) if ends else None)
    assert row.since == dt.datetime.fromtimestamp(one.since / NANOS, dt.UTC)


def test_row_of_an_unknown_machine_is_not_current() -> None:
    stored = StoredHolding(cluster="local", machine="m-9", holding=holding(), reported_at=NOW)
    row = holder_record(stored, None, None, (), NOW)
    assert (row.node, row.liveness, row.current) == ("", None, False)
