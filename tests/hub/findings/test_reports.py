"""Reports in columns equal the judgements of each sender and machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.hub.findings.reports import (
    NO_MACHINE,
    machine_columns,
    nearest_report,
    only_machines,
    retired_senders,
    sender_columns,
)
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.liveness import State
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import MachineFreshness
from gpufleet.model.time import NANOS, to_datetime
from tests.hub.liveness.test_tally import CLUSTER, SENDER_CASES, SenderCase, fleet_of
from tests.support.profiles import examples


def record(one: MachineFreshness, first_seen: int = NANOS) -> MachineRecord:
    return MachineRecord(
        id=one.id,
        cluster=one.cluster,
        machine=Machine(name=one.id),
        sender=one.sender,
        first_seen=to_datetime(first_seen),
        last_seen=to_datetime(one.last_seen),
        conflict="a clone" if one.conflict else None,
        retired_at=None if one.retired_at is None else to_datetime(one.retired_at),
        named_only=one.named_only,
    )


def seconds(value: float | None) -> object:
    return pytest.approx(np.nan if value is None else value, abs=1e-3, nan_ok=True)


@settings(max_examples=examples(60, 1000), deadline=None)
@given(st.lists(SENDER_CASES, min_size=1, max_size=6))
def test_reports_equal_individual_judgements(cases: list[SenderCase]) -> None:
    instant, marks = fleet_of(cases)
    senders = sender_columns(instant, CLUSTER)
    machines = machine_columns(instant, [record(one) for one in marks], senders)
    for place, name in enumerate(senders.names):
        freshness = instant.find_freshness(CLUSTER, name)
        assert freshness is not None
        liveness = instant.sender(freshness)
        assert senders.unseen[place] == seconds(liveness.unseen_seconds)
        assert bool(senders.is_current[place]) is liveness.is_current
        assert senders.ahead[place] == seconds(freshness.clock_ahead_seconds)
    for place, one in enumerate(marks):
        liveness = instant.machine(one)
        assert machines.unseen[place] == seconds(liveness.unseen_seconds)
        assert bool(machines.retired[place]) is (liveness.state is State.RETIRED)
        assert bool(machines.is_current[place]) is liveness.is_current
    gone = retired_senders(senders, machines)
    retired = {one.sender for one in marks if one.is_retired}
    assert {name for name, one in zip(senders.names, gone, strict=True) if one} == retired
    expected = [
        one.unseen_seconds for one in instant.list_freshness() if one.sender not in retired and not one.never_answered
    ]
    nearest = nearest_report(senders, gone)
    assert (nearest and nearest.unseen_seconds) == (seconds(min(expected)) if expected else None)


def case(ago: int = 0) -> SenderCase:
    return SenderCase(
        ago=ago, since_start=True, ahead=0.0, interval=30.0, unsent_ago=None, queued=0, dropped=0, answered_ago=None,
        conflict=False, machine_behind=0, retired=False, cloned=False,
    )  # fmt: skip


def with_machines(*ids_of: tuple[str, str, bool]) -> tuple[LivenessSnapshot, list[MachineRecord]]:
    """Return two senders, and machines given by id, sender and whether they are only listed."""
    instant, marks = fleet_of([case(), case(10)])
    seen = marks[0].last_seen
    found = [
        MachineFreshness(
            id=id_, cluster=CLUSTER, sender=sender, last_seen=seen, retired_at=None, conflict=False, named_only=named
        )
        for id_, sender, named in ids_of
    ]
    return instant, [record(one, seen - 500 * NANOS) for one in found]


def test_machine_that_never_reported_counts_since_it_is_listed() -> None:
    instant, records = with_machines(("listed", "s00", True), ("unknown", "nothing", False))
    machines = machine_columns(instant, records, sender_columns(instant, CLUSTER))
    assert machines.unseen[0] == pytest.approx(500)
    assert np.isnan(machines.unseen[1])
    assert machines.interval.tolist() == [30, 30]


def test_sender_has_a_machine_only_if_it_is_the_only_one() -> None:
    instant, records = with_machines(("a", "s00", False), ("b", "s01", False), ("c", "s01", False))
    senders = sender_columns(instant, CLUSTER)
    machines = machine_columns(instant, records, senders)
    places = dict(zip(senders.names, only_machines(senders, machines).tolist(), strict=True))
    assert places == {"s00": 0, "s01": NO_MACHINE}


def test_cluster_without_senders_has_no_report() -> None:
    instant, _ = fleet_of([])
    senders = sender_columns(instant, "empty")
    assert nearest_report(senders, np.zeros(0, bool)) is None
    assert len(machine_columns(instant, [], senders).unseen) == 0
