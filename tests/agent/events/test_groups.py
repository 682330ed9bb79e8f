"""Event groups: one event from the reports of several sources."""

import msgspec
import pytest

from gpufleet.agent.events.groups import HOLD_SECONDS, SAME_SECONDS, EventGroups
from gpufleet.model.event import Event
from tests.support.passes import gpu

AT = 1_700_000_000 * 10**9


def xid(source: str, *, code: int = 79, device: int = 0, seconds: float = 0, **attributes: str) -> Event:
    at = AT + int(seconds * 1e9)
    return Event(view=gpu(device), kind="xid", code=code, at=at, attributes={"sources": source, **attributes})


def test_xid_of_two_sources_is_one_event_with_both_sources() -> None:
    groups = EventGroups()
    groups.take(xid("nvml", seconds=1, gpu_instance="3"), 0.0)
    groups.take(xid("kmsg", message="fell", pid="7"), 0.5)
    assert groups.emit_pending(HOLD_SECONDS - 0.1) == []
    (event,) = groups.emit_pending(HOLD_SECONDS)
    assert event.at == AT  # timestamp of the kernel
    assert event.attributes == {"sources": "kmsg,nvml", "message": "fell", "pid": "7", "gpu_instance": "3"}
    assert groups.emit_pending(1000.0) == []


@pytest.mark.parametrize(
    "other",
    [xid("kmsg", code=31), xid("kmsg", device=1), xid("kmsg", seconds=SAME_SECONDS + 1), xid("kmsg", seconds=-6)],
)
def test_other_code_device_or_time_is_a_separate_event(other: Event) -> None:
    groups = EventGroups()
    groups.take(xid("nvml"), 0.0)
    groups.take(other, 0.1)
    assert len(groups.emit_pending(10.0)) == 2


def test_each_gpu_instance_has_its_own_event_of_both_sources() -> None:
    groups = EventGroups()
    groups.take(xid("kmsg", code=43, gpu_instance="5", pid="50"), 0.0)
    groups.take(xid("kmsg", code=43, gpu_instance="3", pid="30", seconds=0.1), 0.0)
    groups.take(xid("nvml", code=43, gpu_instance="5", seconds=0.2), 0.1)
    groups.take(xid("nvml", code=43, gpu_instance="3", seconds=0.2), 0.1)
    events = [(event.attributes["pid"], event.attributes["gpu_instance"]) for event in groups.emit_pending(10.0)]
    assert events == [("50", "5"), ("30", "3")]


def test_source_without_gpu_instance_joins_a_named_event() -> None:
    groups = EventGroups()
    groups.take(xid("nvml"), 0.0)
    groups.take(xid("kmsg", gpu_instance="5"), 0.1)
    groups.take(xid("kmsg", gpu_instance="3"), 0.2)
    assert [event.attributes.get("gpu_instance") for event in groups.emit_pending(10.0)] == ["5", "3"]


def test_storm_is_one_event_per_window_and_expires() -> None:
    groups = EventGroups()
    events = []
    for second in range(60):
        for source in ("kmsg", "nvml"):
            groups.take(xid(source, seconds=second), float(second))
        events += groups.emit_pending(float(second))
    events += groups.emit_pending(100.0)
    assert sum(int(event.attributes.get("count", "1")) for event in events) == 60
    assert groups.emit_pending(10_000.0) == []
    groups.take(xid("nvml", seconds=30), 10_000.0)
    assert len(groups.emit_pending(20_000.0)) == 1  # the earlier group has expired


def test_event_count_is_the_largest_of_its_sources() -> None:
    groups = EventGroups()
    for _ in range(3):
        groups.take(xid("kmsg"), 0.0)
    groups.take(xid("nvml"), 0.0)
    (event,) = groups.emit_pending(10.0)
    assert event.attributes["count"] == "3"


def test_late_source_adds_only_what_others_did_not_count() -> None:
    groups = EventGroups()
    groups.take(xid("kmsg"), 0.0)
    assert len(groups.emit_pending(3.0)) == 1
    groups.take(xid("nvml", seconds=1), 60.0)
    assert groups.emit_pending(70.0) == []
    groups.take(xid("nvml", seconds=2), 71.0)
    assert [event.attributes["sources"] for event in groups.emit_pending(80.0)] == ["nvml"]


def test_single_source_events_are_sent_at_once_in_order() -> None:
    groups = EventGroups()
    assert groups.due_in(0.0) is None
    groups.take(xid("kmsg"), 5.0)
    assert groups.due_in(5.5) == pytest.approx(HOLD_SECONDS - 0.5)
    bound = Event(view=gpu(1), kind="driver_bound", at=AT + 9)
    later = msgspec.structs.replace(bound, at=AT + 10)
    groups.take(later, 5.0)
    groups.take(bound, 5.0)
    assert groups.due_in(5.5) == 0.0
    assert groups.emit_pending(5.5) == [bound, later]
    assert len(groups.emit_pending(5.5, everything=True)) == 1


def test_version_mismatch_is_reported_once_an_hour() -> None:
    groups = EventGroups()
    events = 0
    for minute in range(130):
        at = AT + minute * 60 * 10**9
        groups.take(Event(view=None, kind="driver_mismatch", at=at, attributes={"sources": "kmsg"}), minute * 60.0)
        events += len(groups.emit_pending(minute * 60.0 + 5))
    assert events == 3


def test_pending_events_keep_the_log_position_to_reread() -> None:
    groups = EventGroups()
    assert groups.held_log_seq() is None
    groups.take(xid("kmsg", log_seq="7"), 0.0)
    groups.take(xid("kmsg", log_seq="8", code=31), 0.0)
    assert groups.held_log_seq() == 7
    groups.emit_pending(10.0)
    assert groups.held_log_seq() is None


@pytest.mark.parametrize("kind", ["gpu_lost", "gpu_reset_required", "gpu_recovered"])
def test_readers_observe_one_state_in_their_own_passes(kind: str) -> None:
    groups = EventGroups()
    emitted = []
    for source, second in (("nvml", 0), ("dcgm", 9), ("nvml", 40)):
        at = AT + second * 10**9
        groups.take(Event(view=gpu(0), kind=kind, at=at, attributes={"sources": source}), float(second))
        emitted.append(len(groups.emit_pending(second + 3.0)))
    assert emitted == [1, 0, 1]
