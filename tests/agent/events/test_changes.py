"""Events detected from changed readings."""

import msgspec
import pytest

from gpufleet.agent.events.changes import ChangeDetector
from gpufleet.agent.events.occupants import Occupants
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.reading import Sample, Value
from tests.support.passes import function, gpu

SECOND = 10**9


def sample(values: dict[str, Value | Absent], at: int = 0, session: int = 1) -> Sample:
    return Sample(view=gpu(0), reader="nvml", lane=Lane.FAST, measured_at=at, values=values, driver_session=session)


def machine(values: dict[str, Value | Absent], session: int = 1, at: int = 5 * SECOND) -> Sample:
    return Sample(view=None, reader="nvml", lane=Lane.FAST, measured_at=at, values=values, driver_session=session)


def summaries(events: list[Event]) -> list[tuple[str, int, dict[str, str]]]:
    return [(event.kind, event.code, event.attributes) for event in events]


@pytest.mark.parametrize(
    ("metric", "before", "after", "expected"),
    [
        ("gpu_row_remap_pending", 0, 1, ("row_remap_pending", 0, {})),
        ("gpu_row_remap_failed", 0, 1, ("row_remap_failed", 0, {})),
        ("gpu_ecc_uncorrected_errors_total", 2, 5, ("ecc_uncorrected", 3, {})),
        ("gpu_mig_mode", "disabled", "enabled", ("mig_changed", 0, {"from": "disabled", "to": "enabled"})),
        (
            "gpu_recovery_action", "none", "gpu_reset",
            ("recovery_action_changed", 0, {"from": "none", "to": "gpu_reset"}),
        ),
        (
            "gpu_energy_joules_total", 500.0, 3.0,
            ("gpu_reset", 5, {"evidence": "the energy counter restarted"}),
        ),
    ],
)  # fmt: skip
def test_change_is_reported_once_and_first_sample_is_no_change(
    metric: str, before: Value, after: Value, expected: tuple[str, int, dict[str, str]]
) -> None:
    changes = ChangeDetector(Occupants())
    assert changes.of_device(sample({metric: before}, at=5 * SECOND)) == []
    assert changes.of_device(sample({metric: Absent(Reason.TIMEOUT)}, at=10 * SECOND)) == []
    assert summaries(changes.of_device(sample({metric: after}, at=15 * SECOND))) == [expected]
    assert changes.of_device(sample({metric: after}, at=20 * SECOND)) == []


@pytest.mark.parametrize(
    ("metric", "before", "after"),
    [
        ("gpu_row_remap_pending", 1, 0),
        ("gpu_ecc_uncorrected_errors_total", 5, 0),
        ("gpu_energy_joules_total", 3.0, 500.0),
    ],
)
def test_harmless_changes_are_no_events(metric: str, before: Value, after: Value) -> None:
    changes = ChangeDetector(Occupants())
    changes.of_device(sample({metric: before}))
    assert changes.of_device(sample({metric: after})) == []


def test_counter_restart_after_driver_reload_is_no_gpu_reset() -> None:
    changes = ChangeDetector(Occupants())
    changes.of_device(sample({"gpu_energy_joules_total": 500.0}, session=1))
    assert changes.of_device(sample({"gpu_energy_joules_total": 3.0}, session=2)) == []


@pytest.mark.parametrize(
    ("reason", "code"), [(Reason.TIMEOUT, 60), (Reason.DRIVER_ERROR, 60), (Reason.NOT_COLLECTED, 600)]
)
def test_reset_was_after_the_last_pass_that_failed(reason: Reason, code: int) -> None:
    """While the GPUs are released, no pass reads them."""
    changes = ChangeDetector(Occupants())
    changes.of_device(sample({"gpu_energy_joules_total": 500.0}, at=100 * SECOND))
    changes.of_device(sample({"gpu_energy_joules_total": Absent(reason)}, at=640 * SECOND))
    reset = changes.of_device(sample({"gpu_energy_joules_total": 3.0}, at=700 * SECOND))
    assert [(event.kind, event.code) for event in reset] == [("gpu_reset", code)]


@pytest.mark.parametrize("blank", [{"gpu_energy_joules_total": Absent(Reason.NO_DATA)}, {}])
@pytest.mark.parametrize(("state", "code"), [("unreadable", 60), ("hung", 60), ("ok", 600), (None, 600)])
def test_reset_was_after_the_last_pass_with_a_failed_state(
    state: str | None, code: int, blank: dict[str, Value | Absent]
) -> None:
    """DCGM sends blanks for a GPU that does not answer. One that was started again has no data yet."""
    changes = ChangeDetector(Occupants())
    changes.of_device(sample({"gpu_energy_joules_total": 500.0}, at=100 * SECOND))
    shown: dict[str, Value | Absent] = {} if state is None else {"gpu_state": state}
    changes.of_device(sample(blank | shown, at=640 * SECOND))
    reset = changes.of_device(sample({"gpu_energy_joules_total": 3.0}, at=700 * SECOND))
    assert [(event.kind, event.code) for event in reset] == [("gpu_reset", code)]


def test_reset_was_after_the_last_pass_without_a_driver_that_works() -> None:
    changes = ChangeDetector(Occupants())
    changes.of_device(sample({"gpu_energy_joules_total": 500.0}, at=100 * SECOND))
    changes.of_machine(machine({"nvidia_driver_state": "hung"}, session=0, at=640 * SECOND))
    reset = changes.of_device(sample({"gpu_energy_joules_total": 3.0}, at=700 * SECOND))
    assert [(event.kind, event.code) for event in reset] == [("gpu_reset", 60)]


RESTARTED = [("gpu_reset", 600)]


@pytest.mark.parametrize(
    ("session", "readings", "expected"),
    [
        (1, [("nvml", 3.0)], RESTARTED),
        (1, [("nvml", 501.0)], []),
        (2, [("nvml", 3.0)], []),
        (1, [("dcgm", 3.0)], RESTARTED),
        (1, [("dcgm", 3.0), ("nvml", 3.0), ("dcgm", 3.0)], RESTARTED),
        (1, [("nvml", 3.0), ("dcgm", 3.0)], RESTARTED),
        (1, [("exporter", 3.0)], []),
        (1, [("exporter", 3.0), ("nvml", 3.0)], RESTARTED),
    ],
)
def test_reset_before_the_start_is_an_event_whichever_reader_is_first(
    session: int, readings: list[tuple[str, float]], expected: list[tuple[str, int]]
) -> None:
    """Each reader is compared with itself: their values differ by moments."""
    first = ChangeDetector(Occupants())
    for reader in ("nvml", "dcgm"):
        one = sample({"gpu_energy_joules_total": 500.0}, at=100 * SECOND)
        first.of_device(msgspec.structs.replace(one, reader=reader))
    second = ChangeDetector(Occupants(), energies=first.energies.last)
    found: list[Event] = []
    for reader, joules in readings:
        one = sample({"gpu_energy_joules_total": joules}, at=700 * SECOND, session=session)
        found += second.of_device(msgspec.structs.replace(one, reader=reader))
    assert [(event.kind, event.code) for event in found] == expected


def test_driver_that_failed_before_the_start_was_not_reset_yet() -> None:
    first = ChangeDetector(Occupants())
    first.of_machine(machine({"nvidia_driver_state": "ok"}, at=100 * SECOND))
    first.of_device(sample({"gpu_energy_joules_total": 500.0}, at=100 * SECOND))
    first.of_machine(machine({"nvidia_driver_state": "hung"}, session=0, at=640 * SECOND))
    second = ChangeDetector(
        Occupants(), session=1, session_at=first.session_at, failed_at=first.failed_at, energies=first.energies.last
    )
    reset = second.of_device(sample({"gpu_energy_joules_total": 3.0}, at=700 * SECOND))
    reloaded = second.of_machine(machine({"nvidia_driver_state": "ok"}, session=2, at=700 * SECOND))
    assert [(event.kind, event.code) for event in (*reset, *reloaded)] == [("gpu_reset", 60), ("driver_reloaded", 60)]


def test_throttle_has_cause_start_and_duration() -> None:
    changes = ChangeDetector(Occupants())
    mask = "gpu_clock_event_reasons_mask"
    assert changes.of_device(sample({mask: 0x4}, at=0)) == []  # the power cap is no throttle
    started = changes.of_device(sample({mask: 0x48}, at=10 * SECOND))  # hw_thermal implies hw_slowdown
    assert summaries(started) == [("throttle_started", 0, {"cause": "hw_thermal"})]
    assert changes.of_device(sample({mask: 0x48}, at=20 * SECOND)) == []
    ended = changes.of_device(sample({mask: 0x80}, at=30 * SECOND))
    assert summaries(ended) == [
        ("throttle_ended", 0, {"cause": "hw_thermal", "seconds": "20.0"}),
        ("throttle_started", 0, {"cause": "power_brake"}),
    ]
    assert summaries(changes.of_device(sample({mask: 0x8}, at=40 * SECOND)))[1][2] == {"cause": "hw_slowdown"}


def test_throttle_seen_at_the_first_pass_has_no_duration() -> None:
    changes = ChangeDetector(Occupants())
    mask = "gpu_clock_event_reasons_mask"
    started = changes.of_device(sample({mask: 0x20}))
    assert summaries(started) == [("throttle_started", 0, {"cause": "sw_thermal", "began": "before the first sample"})]
    assert summaries(changes.of_device(sample({mask: 0}))) == [("throttle_ended", 0, {"cause": "sw_thermal"})]


def test_driver_failure_upgrade_and_reload_are_events() -> None:
    changes = ChangeDetector(Occupants(), driver="570.1", session=1)
    assert changes.of_machine(machine({"nvidia_driver_version": "570.1", "nvidia_driver_state": "ok"})) == []
    gone = changes.of_machine(machine({"nvidia_driver_state": "no_driver"}, session=0, at=10 * SECOND))
    assert summaries(gone) == [("driver_failed", 0, {"state": "no_driver", "before": "ok"})]
    works: dict[str, Value | Absent] = {"nvidia_driver_state": "ok", "nvidia_driver_version": "580.2"}
    back = changes.of_machine(machine(works, session=2, at=15 * SECOND))
    assert summaries(back) == [
        ("driver_upgraded", 0, {"from": "570.1", "to": "580.2"}),
        ("driver_reloaded", 5, {}),
        ("driver_works", 0, {"before": "no_driver"}),
    ]
    mismatch = changes.of_machine(machine({"nvidia_driver_state": "mismatch"}, session=0))
    assert [event.kind for event in mismatch] == ["driver_mismatch"]


@pytest.mark.parametrize(("read_at", "code"), [(100 * SECOND, 600), (0, 0)])
def test_reload_before_the_start_was_after_the_last_reading(read_at: int, code: int) -> None:
    """Without the time of that reading, the event does not show when the driver was reloaded."""
    changes = ChangeDetector(Occupants(), driver="570.1", session=1, session_at=read_at)
    values: dict[str, Value | Absent] = {"nvidia_driver_version": "570.1", "nvidia_driver_state": "ok"}
    reloaded = changes.of_machine(machine(values, session=2, at=700 * SECOND))
    assert summaries(reloaded) == [("driver_reloaded", code, {})]


def test_added_removed_and_rebound_gpus_are_events() -> None:
    changes = ChangeDetector(Occupants())
    assert changes.of_bus((function(0, "nvidia"), function(1, "nvidia")), 1) == []
    rebound = changes.of_bus((function(0, "vfio-pci"), function(2, None)), 2)
    assert [(event.view.pci_address if event.view else "", event.kind, event.attributes) for event in rebound] == [
        ("0000:10:00.0", "driver_bound", {"driver": "vfio-pci", "before": "nvidia"}),
        ("0000:11:00.0", "gpu_removed", {"driver": "nvidia"}),
        ("0000:12:00.0", "gpu_added", {}),
    ]
    assert summaries(changes.of_bus((function(0, None), function(2, None)), 3)) == [
        ("driver_unbound", 0, {"before": "vfio-pci"})
    ]


def of_dcgm(values: dict[str, Value | Absent], at: int) -> Sample:
    return Sample(view=gpu(0), reader="dcgm", lane=Lane.FAST, measured_at=at, values=values, driver_session=77)


def test_readings_of_two_readers_are_not_compared() -> None:
    changes = ChangeDetector(Occupants())
    throttled = {"gpu_clock_event_reasons_mask": 0x40, "gpu_energy_joules_total": 100.5}
    found = changes.of_device(sample({**throttled, "gpu_ecc_uncorrected_errors_total": 1}, at=SECOND))
    assert [event.kind for event in found] == ["throttle_started"]
    behind: dict[str, Value | Absent] = {"gpu_clock_event_reasons_mask": 0, "gpu_energy_joules_total": 100.25}
    assert changes.of_device(of_dcgm({**behind, "gpu_ecc_uncorrected_errors_total": 2}, 2 * SECOND)) == []
    found = changes.of_device(sample({**throttled, "gpu_ecc_uncorrected_errors_total": 2}, at=3 * SECOND))
    assert summaries(found) == [("ecc_uncorrected", 1, {})]  # once, by the preferred reader


def test_second_reader_continues_where_the_first_stopped() -> None:
    changes = ChangeDetector(Occupants())
    changes.of_device(sample({"gpu_ecc_uncorrected_errors_total": 9}, at=SECOND))
    later = SECOND * 1000
    assert (
        changes.of_device(of_dcgm({"gpu_ecc_uncorrected_errors_total": 2}, later)) == []
    )  # first sample of this reader
    found = changes.of_device(of_dcgm({"gpu_ecc_uncorrected_errors_total": 4}, later + SECOND))
    assert summaries(found) == [("ecc_uncorrected", 2, {})]
    assert changes.of_device(sample({"gpu_ecc_uncorrected_errors_total": 11}, at=later + 2 * SECOND)) == []


def test_driver_version_of_another_reader_is_no_upgrade() -> None:
    changes = ChangeDetector(Occupants())
    changes.of_machine(machine({"nvidia_driver_version": "580.65"}))
    for at in range(0, 1000, 10):
        state = Sample(
            view=None, reader="nvml", lane=Lane.FAST, measured_at=at * SECOND, values={"nvidia_driver_state": "ok"}
        )
        assert changes.of_machine(state) == []
    values: dict[str, Value | Absent] = {"nvidia_driver_version": "570.1"}
    old = Sample(view=None, reader="dcgm", lane=Lane.STATIC, measured_at=1000 * SECOND, values=values)
    assert changes.of_machine(old) == []
    assert changes.of_machine(machine({"nvidia_driver_version": "580.65"})) == []
