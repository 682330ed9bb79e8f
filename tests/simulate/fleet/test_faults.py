"""Fault schedules: syntax and their nodes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FAULTS, FaultError, FaultKind, FaultSchedule, FleetFault, parse_faults

START = 1_795_000_000 * NANOS


def one(text: str) -> FleetFault:
    (found,) = parse_faults(text, START)
    return found


def test_fault_is_parsed() -> None:
    assert one("cluster-off@+5m/10m:c2") == FleetFault(
        kind=FaultKind.CLUSTER_OFF, begin=START + 300 * NANOS, end=START + 900 * NANOS, cluster=2
    )
    assert one("clock-step=-3600@+1h:c1/n7").amount == -3600
    assert one("gpu-lost@+0s/90s:c1/n2/g3").gpu == 3
    wiped = one("spool-wiped@+2m:c1/n2")
    assert (wiped.begin, wiped.end, wiped.amount) == (START + 120 * NANOS, START + 120 * NANOS, 3)


def test_several_faults_are_parsed() -> None:
    assert [fault.kind for fault in parse_faults("xid=79@+1m, hot-gpu@+2m,node-off@+3m", START)] == [
        FaultKind.XID, FaultKind.HOT_GPU, FaultKind.NODE_OFF,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster-off", "KIND"),
        ("cluster-of@+5m", "--faults list"),
        ("cluster-off@5m", "KIND"),
        ("cluster-off@+5w", "5w"),
        ("cluster-off=3@+5m", "takes no amount"),
        ("xid@+5m/10m", "10m"),
        ("lost-batches=-5@+5m", "the batches must be a whole number from 1 to 100000"),
        ("spool-wiped=2.5@+5m", "must be a whole number from 1"),
        ("xid=-1@+5m", "the number of the XID must be a whole number from 1 to 9999"),
        ("xid=10000@+5m", "from 1 to 9999"),
        ("hot-gpu=51@+5m", "must be a number from 0 to 50"),
        ("cluster-off@+5m:c0", "KIND"),
        ("cluster-off@+5m:c1/n2", "c1/n2"),
        ("node-off@+5m:c1/n2/g0", "c1/n2/g0"),
    ],
)
def test_invalid_fault_is_rejected(text: str, message: str) -> None:
    with pytest.raises(FaultError, match=message.replace("[", r"\[")):
        assert all(fault.kind in FAULTS for fault in parse_faults(text, START))


@given(st.text(max_size=60))
def test_any_text_raises_at_most_a_fault_error(text: str) -> None:
    with contextlib.suppress(FaultError):
        parse_faults(text, START)


def test_every_kind_has_a_description() -> None:
    assert set(FAULTS) == set(FaultKind)
    assert all(row.effect and (row.expected or row.findings) for row in FAULTS.values())


def test_cluster_fault_applies_to_its_nodes() -> None:
    schedule = FaultSchedule(parse_faults("half-cluster@+1m:c2,node-off@+0s:c2/n4", START))
    assert [fault.kind for fault in schedule.of_node(2, 4)] == [FaultKind.NODE_OFF, FaultKind.HALF_CLUSTER]
    assert schedule.of_node(2, 3) == schedule.of_node(1, 4) == ()
    broken = FaultSchedule(parse_faults("collector-broken@+1m:c2", START))
    assert [len(broken.of_node(2, node)) for node in (3, 4)] == [1, 1]
