"""Reports of holder states: bounds, and when they are sent."""

from collections.abc import Mapping

from gpufleet.agent.collect.holder_states import HolderStateReport, HolderStateSchedule, holder_state_report
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import (
    MAX_DEVICE_STATES,
    MAX_STATE_TEXT,
    MAX_UNRESOLVED_NAMES,
    MAX_UNRESOLVED_SOURCES,
    REPEAT_SECONDS,
    DeviceHolders,
    HolderState,
)
from gpufleet.ports.holder import DeviceName, HolderReport, Naming
from tests.agent.collect.test_holders import GPU, HELD, OTHER, FakeSource, claim, collector
from tests.fakes.clock import FakeClock

NOTHING = HolderStateReport((), ())
FREE = DeviceHolders(state=HolderState.FREE)


def report(state: HolderState = HolderState.FREE, unresolved: Mapping[str, int] | None = None) -> HolderStateReport:
    return holder_state_report({"gpu/GPU-1": DeviceHolders(state=state)}, unresolved or {})


def delivered(schedule: HolderStateSchedule, now: float) -> HolderStateReport | None:
    due = schedule.due(now)
    schedule.note_delivered()
    return due


def test_report_is_bounded_and_has_no_control_characters() -> None:
    hostile = DeviceHolders(state=HolderState.UNKNOWN, detail="kubelet\x1b[2J\n\u202e" + "x" * 10_000)
    holders = {"gpu/0": hostile} | {f"gpu/{number:05d}": FREE for number in range(1, MAX_DEVICE_STATES + 10)}
    found = holder_state_report(holders, {f"{number}\x1b": number for number in range(100)})
    detail = next(one.detail for one in found.devices if one.view == "gpu/0")
    assert (len(found.devices), len(found.unresolved)) == (MAX_DEVICE_STATES, MAX_UNRESOLVED_SOURCES)
    assert (len(detail), detail.isprintable()) == (MAX_STATE_TEXT, True)
    assert all(one.source.isprintable() for one in found.unresolved)


def test_reported_unresolved_names_are_the_first_of_them() -> None:
    names = ["GPU-9\x1b", "y" * 10_000, "", *(f"GPU-{number}" for number in range(8)), "GPU-1"]
    reports = [holder_state_report({}, {"kubelet": 12}, {"kubelet": given}) for given in (names, names[::-1])]
    assert reports[0] == reports[1]  # another order is no change
    (one,) = reports[0].unresolved
    assert (one.names, one.examples) == (12, tuple(f"GPU-{number}" for number in range(8)))
    assert MAX_UNRESOLVED_NAMES == 8


def test_report_is_sent_once_then_on_change_and_on_schedule() -> None:
    schedule = HolderStateSchedule()
    assert delivered(schedule, 0) == NOTHING
    assert delivered(schedule, REPEAT_SECONDS) is None
    for now, found, is_due in (
        (0, report(), True),
        (10, report(), False),
        (20, report(HolderState.UNKNOWN), True),
        (30, report(HolderState.UNKNOWN, {"kubelet": 1}), True),
        (40, report(HolderState.UNKNOWN, {"kubelet": 1}), False),
        (30 + REPEAT_SECONDS, report(HolderState.UNKNOWN, {"kubelet": 1}), True),
    ):
        schedule.update(found)
        assert delivered(schedule, now) == (found if is_due else None), now


def test_report_that_was_not_queued_is_due_again() -> None:
    schedule = HolderStateSchedule()
    schedule.update(report())
    assert schedule.due(0) == schedule.due(1) == report()
    schedule.update(report(HolderState.HELD))  # a round between the encoding of a batch and its delivery
    schedule.note_delivered()
    assert schedule.due(2) == report(HolderState.HELD)


def test_states_are_not_repeated_if_the_rounds_stop() -> None:
    schedule = HolderStateSchedule()
    schedule.update(report())
    assert delivered(schedule, 0) is not None
    assert delivered(schedule, 10 * REPEAT_SECONDS) is None
    schedule.update(report())
    assert delivered(schedule, 10 * REPEAT_SECONDS) is not None


async def test_collector_reports_each_device_and_counts_unresolved_names() -> None:
    lost = claim("b", DeviceName(Naming.UUID, "GPU-9", "GPU-9"))
    source = FakeSource(HELD)
    holders = collector(source, FakeSource(HolderError(Reason.NOT_ENABLED, "no libvirt"), "libvirt"))
    assert holders.due_states() == NOTHING
    await holders.round([GPU, OTHER])
    found = holders.due_states()
    assert found is not None
    assert [(one.view, one.state) for one in found.devices] == [(GPU.key, "held"), (OTHER.key, "free")]
    assert [(one.source, one.names) for one in found.unresolved] == [("kubelet", 0)]
    holders.note_delivered()
    assert holders.due_states() is None

    source.answer = HolderReport(claims=(*HELD.claims, lost))
    await holders.round([GPU, OTHER])
    found = holders.due_states()
    assert found is not None
    assert [(one.view, one.state, bool(one.detail)) for one in found.devices] == [
        (GPU.key, "held", False),
        (OTHER.key, "unknown", True),
    ]
    assert [(one.source, one.names, one.examples) for one in found.unresolved] == [("kubelet", 1, ("GPU-9",))]


async def test_count_of_a_source_that_fails_is_unknown() -> None:
    kubelet = FakeSource(HolderReport(claims=(claim("b", DeviceName(Naming.UUID, "GPU-9", "GPU-9")),)))
    absent = FakeSource(HolderError(Reason.NOT_ENABLED, "no libvirt"), "libvirt")
    holders = collector(kubelet, FakeSource(HolderReport(), "processes"), absent)
    for answer, expected in (
        (kubelet.answer, {"kubelet": 1, "processes": 0}),
        (HolderError(Reason.NOT_PERMITTED, "socket: permission denied"), {"kubelet": None, "processes": 0}),
        (HolderError(Reason.NOT_ENABLED, "no socket"), {"kubelet": None, "processes": 0}),  # it was here before
    ):
        kubelet.answer = answer
        await holders.round([GPU])
        found = holders.due_states()
        assert found is not None
        assert {one.source: one.names for one in found.unresolved} == expected
        assert holders.unresolved_counts == {name: count for name, count in expected.items() if count is not None}


async def test_restarted_agent_withdraws_the_states_until_its_first_round() -> None:
    clock = FakeClock()
    first = collector(FakeSource(HolderReport()), clock=clock)
    await first.round([GPU])
    assert first.due_states() is not None
    source = FakeSource(HolderError(Reason.TIMEOUT, "no answer"))
    second = collector(source, clock=clock)
    assert second.due_states() == NOTHING
    second.note_delivered()
    await second.round([GPU])
    found = second.due_states()
    assert found is not None
    assert [one.state for one in found.devices] == [HolderState.UNKNOWN]
