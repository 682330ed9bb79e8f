"""Due objects of a resource: random histories against a model, repetition, and standby."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpufleet.cluster.tracker import HANDOVER_SECONDS, ObjectTracker
from gpufleet.model.holdings import REPEAT_SECONDS
from gpufleet.model.kubernetes import CopyState, CopyStatus


class Value(NamedTuple):
    version: int


def status(state: CopyState = CopyState.SYNCED, *, is_complete: bool = True) -> CopyStatus:
    return CopyStatus(resource="pods", state=state, since=1, is_complete=is_complete)


class Receiver:
    """Objects as a hub has them, from what a tracker reports."""

    def __init__(self) -> None:
        self.tracker: ObjectTracker[Value] = ObjectTracker()
        self.objects: dict[str, Value] = {}
        self.reported_at: dict[str, float] = {}
        self.unseen: set[str] = set()  # objects that the present tracker has not reported
        self.now = 0.0

    def restart(self) -> None:
        """Replace the tracker by a new one."""
        self.tracker = ObjectTracker()
        self.unseen |= self.objects.keys()

    def cycle(self, copy: Mapping[str, Value], state: CopyStatus, *, accepts: int = 1_000_000) -> int:
        """Report what is due; the queue accepts only `accepts` objects. Return the number of due objects."""
        due = self.tracker.due(copy, state, now=self.now, now_ns=int(self.now))
        for uid, record in list(due.present.items())[:accepts]:
            self.objects[uid] = record
            self.reported_at[uid] = self.now
            self.unseen.discard(uid)
            self.tracker.confirm(uid, record, self.now)
        for one in due.removed[:accepts]:
            self.objects.pop(one.uid, None)
            self.tracker.confirm_removed(one.uid)
        return len(due.present) + len(due.removed)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("outage"), st.sampled_from(["stale", "forbidden", "not_served"]), st.just(0)),
        st.tuples(st.just("recover"), st.just(0), st.just(0)),
        st.tuples(st.just("full queue"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([1, 40, 700]), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(ACTIONS)
@example([("put", 0, 0), ("restart", 0, 0), ("put", 0, 0), ("delete", 0, 0)])
def test_random_histories_end_in_the_state_of_the_server(actions: list[tuple[str, object, int]]) -> None:
    """Except for removals during a restart, which the hub sees because the objects are not repeated."""
    receiver, server, copy = Receiver(), dict[str, Value](), dict[str, Value]()
    state = CopyState.SYNCED
    for action, what, version in actions:
        accepts = 1_000_000
        match action:
            case "put":
                server[f"uid-{what}"] = Value(version)
            case "delete":
                server.pop(f"uid-{what}", None)
            case "outage":
                state = CopyState(str(what))
            case "recover":
                state = CopyState.SYNCED
            case "full queue":
                accepts = int(str(what))
            case "wait":
                receiver.now += int(str(what))
            case "restart":
                receiver.restart()
                copy, state = {}, CopyState.STARTING
        before = dict(receiver.objects)
        if state is CopyState.SYNCED:
            copy = dict(server)
        receiver.cycle(copy, status(state), accepts=accepts)
        if state is not CopyState.SYNCED:
            assert receiver.objects.keys() >= before.keys()  # nothing is removed
        receiver.now += 1
    receiver.cycle(dict(server), status())
    left = {uid: value for uid, value in receiver.objects.items() if uid not in receiver.unseen - server.keys()}
    assert left == server


def test_unchanged_objects_are_repeated_in_groups() -> None:
    receiver = Receiver()
    copy = {f"uid-{number}": Value(number) for number in range(1000)}
    assert receiver.cycle(copy, status()) == 1000
    most, last = 0, dict(receiver.reported_at)
    gaps: list[float] = []
    while receiver.now < 3 * REPEAT_SECONDS:
        receiver.now += 1
        most = max(most, receiver.cycle(copy, status()))
        gaps += [at - last[uid] for uid, at in receiver.reported_at.items() if at != last[uid]]
        last = dict(receiver.reported_at)
    assert most <= 100
    assert max(gaps) <= REPEAT_SECONDS + 1
    assert len(gaps) >= 2 * len(copy)


@pytest.mark.parametrize(
    ("state", "is_repeated"),
    [(CopyState.STALE, True), (CopyState.FORBIDDEN, False), (CopyState.NOT_SERVED, False)],
)
def test_objects_of_a_stale_copy_are_repeated(state: CopyState, is_repeated: bool) -> None:
    receiver = Receiver()
    receiver.cycle({"a": Value(1)}, status())
    receiver.now += 2 * REPEAT_SECONDS
    assert receiver.cycle({"a": Value(1)}, status(state)) == is_repeated
    assert receiver.cycle({}, status(state)) == 0


def test_incomplete_copy_removes_nothing() -> None:
    receiver = Receiver()
    receiver.cycle({"a": Value(1)}, status())
    assert receiver.cycle({}, status(is_complete=False)) == 0
    assert receiver.cycle({}, status()) == 1


def test_object_that_cannot_be_decoded_is_not_removed() -> None:
    tracker: ObjectTracker[Value] = ObjectTracker()
    tracker.confirm("a", Value(1), 0.0)
    assert not tracker.due({}, status(), now=1.0, now_ns=1, rejected={"a"}).removed
    (removed,) = tracker.due({}, status(), now=2.0, now_ns=2).removed
    assert (removed.uid, removed.record, removed.at) == ("a", Value(1), 2)


def test_new_leader_reports_all_objects_and_recent_removals() -> None:
    standby: ObjectTracker[Value] = ObjectTracker()
    copy = {"a": Value(1), "b": Value(1), "c": Value(1)}
    standby.follow(copy, status(), now=0.0, now_ns=10)
    del copy["a"]
    standby.follow(copy, status(), now=1.0, now_ns=11)
    del copy["b"]
    late = 1.0 + HANDOVER_SECONDS + 1
    standby.follow(copy, status(), now=late, now_ns=12)
    due = standby.due(copy, status(), now=late + 1, now_ns=13)
    assert due.present == {"c": Value(1)}
    assert [(one.uid, one.record, one.at) for one in due.removed] == [("b", None, 12)]


def test_earlier_leader_reports_everything_again() -> None:
    tracker: ObjectTracker[Value] = ObjectTracker()
    tracker.confirm("a", Value(1), 0.0)
    assert not tracker.due({"a": Value(1)}, status(), now=1.0, now_ns=1).present
    tracker.follow({"a": Value(1)}, status(), now=2.0, now_ns=2)
    assert tracker.due({"a": Value(1)}, status(), now=3.0, now_ns=3).present == {"a": Value(1)}
