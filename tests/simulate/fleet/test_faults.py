"""The schedule of faults as people write it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FAULTS, Fault, FaultError, FaultKind, Schedule, parse_faults

START = 1_795_000_000 * NANOS


def one(text: str) -> Fault:
    (found,) = parse_faults(text, START)
    return found


def test_a_fault_is_read() -> None:
    assert one("silent-cluster@+5m/10m:c2") == Fault(
        kind=FaultKind.SILENT_CLUSTER, begin=START + 300 * NANOS, end=START + 900 * NANOS, cluster=2
    )
    assert one("clock-step=-3600@+1h:c1/n7").amount == -3600
    assert one("gpu-lost@+0s/90s:c1/n2/g3").gpu == 3
    wiped = one("spool-wiped@+2m:c1/n2")
    assert (wiped.begin, wiped.end, wiped.amount) == (START + 120 * NANOS, START + 120 * NANOS, 3)


def test_several_are_read() -> None:
    assert [fault.kind for fault in parse_faults("xid=79@+1m, hot-gpu@+2m,silent-node@+3m", START)] == [
        FaultKind.XID, FaultKind.HOT_GPU, FaultKind.SILENT_NODE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("silent-cluster", "KIND"),
        ("silent-claster@+5m", "--faults list"),
        ("silent-cluster@5m", "KIND"),
        ("silent-cluster@+5w", "'5w' is not a span"),
        ("silent-cluster=3@+5m", "takes no amount"),
        ("xid@+5m/10m", "happens at an instant"),
        ("lost-batches=-5@+5m", "the batches must be a whole number from 1 to 100000"),
        ("spool-wiped=2.5@+5m", "must be a whole number from 1"),
        ("xid=-1@+5m", "the number of the XID must be a whole number from 1 to 9999"),
        ("xid=10000@+5m", "from 1 to 9999"),
        ("hot-gpu=51@+5m", "must be a number from 0 to 50"),
        ("silent-cluster@+5m:c0", "KIND"),
        ("silent-cluster@+5m:c1/n2", "of a whole cluster"),
        ("silent-node@+5m:c1/n2/g0", "of a whole node"),
    ],
)
def test_what_is_no_fault_is_said(text: str, words: str) -> None:
    with pytest.raises(FaultError, match=words.replace("[", r"\[")):
        parse_faults(text, START)


@given(st.text(max_size=60))
def test_nothing_else_comes_of_any_text(text: str) -> None:
    with contextlib.suppress(FaultError):
        parse_faults(text, START)


def test_each_kind_is_explained() -> None:
    assert set(FAULTS) == set(FaultKind)
    assert all(row.happens and row.expected for row in FAULTS.values())


def test_a_cluster_s_fault_is_its_nodes() -> None:
    schedule = Schedule(parse_faults("half-cluster@+1m:c2,silent-node@+0s:c2/n4", START))
    assert [fault.kind for fault in schedule.of_node(2, 4)] == [FaultKind.SILENT_NODE, FaultKind.HALF_CLUSTER]
    assert schedule.of_node(2, 3) == schedule.of_node(1, 4) == ()
