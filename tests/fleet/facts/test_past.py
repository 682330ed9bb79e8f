"""Late readings: conditions that have passed give findings with their own times, others give none."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from gpufleet.fleet.facts.past import PAST_METRICS, PAST_RULES, STEP_SECONDS, PastInterval, Points, past_findings
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.model.event import EventKind
from gpufleet.model.reading import Value
from gpufleet.model.stored.findings import TransitionKind
from gpufleet.model.stored.samples import StoredEvent
from gpufleet.model.time import NANOS

START, STEP = 1_795_000_000 * NANOS, STEP_SECONDS * NANOS
MINUTES = 120
INTERVAL = PastInterval("east", "m1", START, START + MINUTES * STEP)
GPU, OTHER = "gpu/GPU-1", "gpu/GPU-2"
THRESHOLDS = Thresholds(RULES)
PAGE = Path(__file__).parents[3] / "docs" / "findings.md"


def series(
    view: str | None, metric: str, values: Iterable[Value | None]
) -> dict[tuple[str | None, str], list[tuple[int, Value]]]:
    """Return the points of values of successive minutes; None for no measurement."""
    return {(view, metric): [(START + at * STEP, one) for at, one in enumerate(values) if one is not None]}


def found(points: Points) -> list[tuple[str, str, TransitionKind, int]]:
    """Return rule, subject, kind and minute of each transition."""
    transitions = past_findings(INTERVAL, points, THRESHOLDS, ())
    return [(one.finding.rule, one.finding.scope, one.kind, (one.at - START) // STEP) for one in transitions]


def states(*spans: tuple[str, int]) -> list[str]:
    return [state for state, minutes in spans for _ in range(minutes)]


def test_passed_condition_has_a_finding_with_its_own_times() -> None:
    points = series(GPU, "gpu_state", states(("ok", 30), ("hung", 20), ("ok", 70)))
    points |= series(OTHER, "gpu_state", states(("ok", MINUTES)))
    subject = f"east/m1/{GPU}"
    assert found(points) == [
        ("gpu.hung", subject, TransitionKind.OPENED, 32),  # after the pending time
        ("gpu.hung", subject, TransitionKind.CLOSED, 52),
    ]
    (opened, closed) = past_findings(INTERVAL, points, THRESHOLDS, ())
    assert (opened.finding.id, opened.finding.evidence) == (closed.finding.id, {"hung": "1"})
    assert past_findings(INTERVAL, points, THRESHOLDS, ()) == [opened, closed]  # the same ids again


def test_shorter_condition_has_no_finding() -> None:
    assert found(series(GPU, "gpu_state", states(("ok", 30), ("hung", 2), ("ok", 88)))) == []


def test_condition_at_an_edge_of_the_interval_has_no_finding_if_it_does_not_close() -> None:
    assert found(series(GPU, "gpu_state", states(("ok", 30), ("hung", 90)))) == []


@pytest.mark.parametrize(
    ("boot", "after", "closed"),
    [
        (50, {"gpu/GPU-new": "ok", OTHER: "ok"}, [53]),
        (50, {OTHER: "ok"}, [53]),
        (50, {}, []),
        (None, {"gpu/GPU-new": "ok", OTHER: "ok"}, []),
    ],
    ids=["card swapped", "card removed", "no GPU is read", "no boot"],
)
@pytest.mark.parametrize("lost", [GPU, "gpu/pci/0000:1b:00.0"])
def test_condition_of_a_gpu_ends_with_the_boot_after_which_it_is_gone(
    lost: str, boot: int | None, after: dict[str, str], closed: list[int]
) -> None:
    points = series(lost, "gpu_state", states(("ok", 30), ("lost", 18)))
    points |= series(OTHER, "gpu_state", states(("ok", 48)))
    booted = [-500] * 48 + [-500 if boot is None else boot] * (MINUTES - 48)
    points |= series(None, "host_boot_timestamp_seconds", [START / NANOS + 60 * minute for minute in booted])
    for view, state in after.items():
        points[view, "gpu_state"] = [
            *points.get((view, "gpu_state"), ()),
            *((START + minute * STEP, state) for minute in range(53, MINUTES)),
        ]
    assert found(points) == [
        (rule, f"east/m1/{lost}", kind, minute)
        for end in closed
        for rule, kind, minute in (("gpu.lost", TransitionKind.OPENED, 30), ("gpu.lost", TransitionKind.CLOSED, end))
    ]


def test_time_without_readings_counts_for_nothing() -> None:
    gap: list[Value | None] = [*states(("unreadable", 3)), *[None] * 57, *states(("unreadable", 3), ("ok", 57))]
    assert found(series(GPU, "gpu_state", gap)) == []


def test_pair_of_values_is_judged_at_each_instant() -> None:
    limit = series(GPU, "gpu_power_limit_watts", [700.0] * MINUTES)
    power = series(GPU, "gpu_power_watts", [300.0] * 20 + [2000.0] * 10 + [300.0] * 90)
    rules = {(rule, kind) for rule, _, kind, _ in found({**limit, **power})}
    assert rules == {(("gpu.impossible_value"), kind) for kind in (TransitionKind.OPENED, TransitionKind.CLOSED)}


def test_judged_rules_need_no_history_and_no_holders() -> None:
    judged = {one.id for one in PAST_RULES}
    assert all(f"`{one}`" in PAGE.read_text() for one in judged)
    assert {"gpu.lost", "gpu.hung", "gpu.row_remap_failed", "gpu.fabric_unhealthy", "gpu.pcie_degraded"} <= judged
    assert not judged & {"gpu.frozen", "gpu.allocated_idle", "gpu.counter_reset", "gpu.throttled"}
    assert all("{" not in one for one in PAST_METRICS)


def event(kind: EventKind, minute: float, view: str | None = GPU, code: int = 0) -> StoredEvent:
    at = START + int(minute * STEP)
    return StoredEvent(
        id=at, cluster="east", machine="m1", view=view, at=at, kind=kind, code=code, attributes={}, received_at=at
    )


def of_events(
    *events: StoredEvent, boots: Iterable[float | None] = (), shown: Sequence[str] = ("ok",) * MINUTES
) -> list[tuple[str, str, TransitionKind, int]]:
    """Return rule, subject, kind and minute of each transition, for two GPUs; the first has the shown states."""
    points: dict[tuple[str | None, str], list[tuple[int, Value]]] = {}
    for view, of_view in ((GPU, shown), (OTHER, ("ok",) * MINUTES)):
        points |= series(view, "gpu_state", of_view)
    points[None, "host_boot_timestamp_seconds"] = [
        (START + at * STEP, START / NANOS + 60 * one) for at, one in enumerate(boots) if one is not None
    ]
    transitions = past_findings(INTERVAL, points, THRESHOLDS, events)
    return [(one.finding.rule, one.finding.scope, one.kind, (one.at - START) // STEP) for one in transitions]


def test_xid_until_a_reset_has_a_finding_with_its_code() -> None:
    events = [event(EventKind.XID, 9.5, code=119), event(EventKind.GPU_RESET, 20.5, code=10)]
    subject = f"east/m1/{GPU}"
    assert of_events(*events) == [
        ("gpu.xid.reset", subject, TransitionKind.OPENED, 10),
        ("gpu.xid.reset", subject, TransitionKind.CLOSED, 23),
    ]
    points = series(GPU, "gpu_power_watts", [300.0] * MINUTES)
    opened = past_findings(INTERVAL, points, THRESHOLDS, events)[0]
    assert opened.finding.evidence == {"xid_codes": "119", "xids_reset": "1"}


def test_boot_and_driver_of_the_machine_end_xids() -> None:
    xids = [event(EventKind.XID, 9.5, code=119), event(EventKind.XID, 9.5, OTHER, 119)]
    assert len(of_events(*xids, event(EventKind.DRIVER_LOADED, 20.5, None))) == 4
    assert len(of_events(*xids, event(EventKind.GPU_RESET, 20.5, code=10))) == 2
    assert len(of_events(*xids, boots=[-500.0] * 20 + [20.0] * 100)) == 4


def test_xid_without_a_reset_is_left_to_the_present() -> None:
    assert of_events(event(EventKind.XID, 9.5, code=119)) == []
    assert of_events(event(EventKind.XID, 9.5, code=119), boots=[-500.0] * MINUTES) == []


@pytest.mark.parametrize("reset", [[event(EventKind.DRIVER_LOADED, 20.5, None)], []])
def test_xid_of_a_lost_gpu_is_a_lost_gpu_until_it_works(reset: list[StoredEvent]) -> None:
    """Without an event of its reset, no agent ran then."""
    xids = [event(EventKind.XID, 9.4, code=119), event(EventKind.XID, 9.5, code=79), event(EventKind.GPU_LOST, 9.6)]
    found = of_events(*xids, *reset, shown=states(("ok", 10), ("lost", 10), ("ok", MINUTES - 20)))
    assert {(kind, minute) for rule, _, kind, minute in found if rule == "gpu.lost"} == {
        (TransitionKind.OPENED, 10),
        (TransitionKind.CLOSED, 23),
    }
    assert {rule for rule, *_ in found} == {"gpu.lost"}


def test_machine_without_gpus_has_no_finding() -> None:
    assert past_findings(INTERVAL, {(None, "gpu_state"): [(START, "hung")]}, THRESHOLDS, ()) == []
