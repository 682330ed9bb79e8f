"""Events that follow from the states of devices."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.fleet.device_events import MAX_DEVICES, DeviceStates
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind

GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
MIG = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1")


LOST = Absent(Reason.GPU_LOST)


def sample(view: View | None, state: Value | Absent, at: int = 1) -> Sample:
    return Sample(view=view, reader="x", lane=Lane.FAST, measured_at=at, values={"gpu_state": state})


def kinds(states: DeviceStates, state: Value | Absent) -> list[str]:
    return [event.kind for event in states.change_by_samples([sample(GPU, state)])]


def test_loss_and_recovery_are_one_event_each() -> None:
    states = DeviceStates("x")
    assert kinds(states, "ok") == []
    assert kinds(states, "lost") == ["gpu_lost"]
    assert kinds(states, "lost") == []
    assert kinds(states, "error") == []
    assert kinds(states, "ok") == ["gpu_recovered"]
    assert kinds(states, "reset_required") == ["gpu_reset_required"]


def test_errors_are_a_failure_with_a_recovery() -> None:
    states = DeviceStates("x")
    assert kinds(states, "error") == ["gpu_failed"]
    assert kinds(states, "unreadable") == []
    assert kinds(states, "lost") == ["gpu_lost"]
    assert kinds(states, "reset_required") == ["gpu_reset_required"]
    assert kinds(states, "ok") == ["gpu_recovered"]
    assert kinds(states, "unreadable") == ["gpu_failed"]


def test_gpu_known_by_its_address_recovers_under_its_uuid() -> None:
    states = DeviceStates("x")
    unnamed = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:64:00.0")
    named = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:64:00.0", uuid="GPU-1")
    assert [event.kind for event in states.change_by_samples([sample(unnamed, "lost")])] == ["gpu_lost"]
    assert [event.kind for event in states.change_by_samples([sample(named, "lost")])] == []
    assert [event.kind for event in states.change_by_samples([sample(named, "ok")])] == ["gpu_recovered"]


def at_slot(uuid: str | None = None) -> View:
    return View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:64:00.0", uuid=uuid)


def test_gpu_of_a_source_that_reports_failures_only_recovers_under_its_uuid() -> None:
    """nvidia-smi can print the address of a lost GPU without its UUID."""
    states = DeviceStates("x")
    unnamed = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:64:00.0")
    named = msgspec.structs.replace(unnamed, uuid="GPU-1")
    works = msgspec.structs.replace(sample(named, "ok"), values={"gpu_power_watts": 300.0})
    found = [states.change_by_samples([one]) for one in (works, sample(unnamed, "lost"), works) * 2]
    assert [[event.kind for event in one] for one in found] == [[], ["gpu_lost"], ["gpu_recovered"]] * 2


def test_failed_gpu_that_is_known_by_its_address_later_has_one_failure() -> None:
    states = DeviceStates("x")
    found = [
        [event.kind for event in states.change_by_samples([sample(view, state)])]
        for view, state in (
            (at_slot("GPU-1"), "lost"),
            (at_slot(), "lost"),
            (at_slot(), "ok"),
            (at_slot("GPU-1"), "ok"),
        )
    ]
    assert found == [["gpu_lost"], [], [], ["gpu_recovered"]]


def test_loss_of_another_gpu_at_the_address_is_a_failure_of_its_own() -> None:
    states = DeviceStates("x")
    states.change_by_samples([sample(at_slot("GPU-1"), "lost")])
    assert states.change_by_samples([sample(at_slot("GPU-2"), "ok")]) == []
    (event,) = states.change_by_samples([sample(at_slot(), "lost")])
    assert (event.kind, event.view) == ("gpu_lost", at_slot())


@pytest.mark.parametrize(
    ("replacement", "expected"),
    [(at_slot("GPU-1"), ["gpu_recovered"]), (at_slot("GPU-2"), [])],
    ids=["the same GPU", "another GPU"],
)
def test_replacement_of_an_unnamed_gpu_is_no_recovery(replacement: View, expected: list[str]) -> None:
    """The source was started again after the first reading, while the GPU was lost."""
    states = DeviceStates("x")
    assert states.change_by_samples([sample(at_slot("GPU-1"), "ok")]) == []
    assert [event.kind for event in states.change_by_samples([sample(at_slot(), "lost")])] == ["gpu_lost"]
    assert [event.kind for event in states.change_by_samples([sample(replacement, "ok")])] == expected


def fast(view: View, reader: str = "x", at: int = 1, **values: Value | Absent) -> Sample:
    return Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=at, values=values)


def test_recovery_by_readings_needs_those_of_the_working_device() -> None:
    """A source without states omits readings that fail."""
    states = DeviceStates("x")
    works = fast(GPU, gpu_power_watts=300.0, gpu_temperature_celsius=40, gpu_memory_used_bytes=1, gpu_sm_clock_hertz=1)
    used, lost = fast(GPU, gpu_memory_used_bytes=1), sample(GPU, "lost")
    passes = [works, lost, used, used, works, used, lost, used, works]
    found = [[event.kind for event in states.change_by_samples([one])] for one in passes]
    assert found == [[], ["gpu_lost"], [], [], ["gpu_recovered"], [], ["gpu_lost"], [], ["gpu_recovered"]]


@pytest.mark.parametrize(("hours", "expected"), [(0, []), (2, ["gpu_recovered"])])
def test_reading_that_a_gpu_has_not_had_for_an_hour_is_not_needed(hours: int, expected: list[str]) -> None:
    """A new driver or exporter can lack it."""
    states = DeviceStates("x")
    states.change_by_samples([fast(GPU, gpu_power_watts=300.0, gpu_temperature_celsius=40)])
    states.change_by_samples([fast(GPU, at=hours * 3600 * 10**9 + 2, gpu_temperature_celsius=40)])
    assert kinds(states, "lost") == ["gpu_lost"]
    assert [event.kind for event in states.change_by_samples([fast(GPU, gpu_temperature_celsius=40)])] == expected


def test_total_memory_alone_proves_no_recovery() -> None:
    """The source was started while the GPU was lost."""
    states = DeviceStates("x")
    total = fast(GPU, gpu_memory_total_bytes=1)
    works = fast(GPU, gpu_memory_total_bytes=1, gpu_temperature_celsius=40)
    found = [[event.kind for event in states.change_by_samples([one])] for one in (sample(GPU, "lost"), total, works)]
    assert found == [["gpu_lost"], [], ["gpu_recovered"]]


def test_gpu_that_is_lost_under_its_uuid_and_then_its_address_is_lost_once() -> None:
    """Passes of slow lanes lie between those of the fast one."""
    states = DeviceStates("x")
    slow = Sample(view=at_slot(), reader="x", lane=Lane.SLOW, measured_at=1, values={"gpu_row_remap_pending": LOST})
    works = fast(at_slot("GPU-1"), gpu_power_watts=300.0)
    passes = [works, sample(at_slot("GPU-1"), "lost"), slow, sample(at_slot(), "lost"), slow, works]
    found = [[event.kind for event in states.change_by_samples([one])] for one in passes]
    assert found == [[], ["gpu_lost"], [], [], [], ["gpu_recovered"]]


def test_readings_of_another_reader_prove_no_recovery() -> None:
    """An exporter can repeat the values of a lost GPU."""
    states = DeviceStates("x")
    works = fast(GPU, "exporter", gpu_power_watts=300.0)
    lost, ok = sample(GPU, "lost"), sample(GPU, "ok")
    found = [[event.kind for event in states.change_by_samples([one])] for one in (ok, lost, works, ok)]
    assert found == [[], ["gpu_lost"], [], ["gpu_recovered"]]


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        (("error",), 0),
        (("unreadable", "error"), 0),
        (("lost",), 60),
        (("lost", "lost"), 60),
        (("lost", "error"), 60),
        (("error", "reset_required", "unreadable", "hung"), 60),
    ],
)
def test_recovery_names_the_time_since_it_last_failed(failures: Sequence[str], code: int) -> None:
    """The reset was within it. After errors alone, a GPU can work again without a reset."""
    states, minutes = DeviceStates("x"), range(60 * NANOS, 600 * NANOS, 60 * NANOS)
    for at, state in zip(minutes, failures, strict=False):
        states.change_by_samples([sample(GPU, state, at)])
    *_, recovered = states.change_by_samples([sample(GPU, "ok", minutes[len(failures)])])
    assert (recovered.kind, recovered.code) == ("gpu_recovered", code)


@pytest.mark.parametrize(("failed", "kind"), [("lost", "gpu_lost"), ("reset_required", "gpu_reset_required")])
def test_card_in_place_of_a_failed_one_fails_and_recovers(failed: str, kind: str) -> None:
    """A source without states names neither card while it is lost."""
    states = DeviceStates("x")
    first, second = (fast(at_slot(uuid), gpu_power_watts=300.0) for uuid in ("GPU-1", "GPU-2"))
    passes = [first, sample(at_slot("GPU-1"), failed), second, sample(at_slot(), "lost"), second]
    found = [[event.kind for event in states.change_by_samples([one])] for one in passes]
    assert found == [[], [kind], [], ["gpu_lost"], ["gpu_recovered"]]


@pytest.mark.parametrize(("state", "kind"), [("error", "gpu_failed"), ("lost", "gpu_lost")])
def test_device_that_answers_without_proof_keeps_its_failure(state: str, kind: str) -> None:
    states = DeviceStates("x")
    changes = [states.change(GPU, one, 1) for one in (state, "hung")]
    changes.append(states.change(GPU, states.unproven_state(GPU), 1))
    assert [[event.kind for event in one] for one in changes] == [[kind], ["hang_started"], ["hang_ended"]]
    assert states.unproven_state(GPU) == state
    assert states.unproven_state(MIG) == "ok"


def test_device_that_is_named_without_proof_keeps_its_failure() -> None:
    states = DeviceStates("x")
    states.change(at_slot(), "lost", 1)
    assert states.unproven_state(at_slot("GPU-1")) == "lost"
    assert states.change(at_slot("GPU-1"), "lost", 1) == []
    states.change(at_slot("GPU-2"), "ok", 1)
    states.change(at_slot(), "lost", 1)
    assert states.unproven_state(at_slot("GPU-3")) == "ok"  # it has replaced the lost one


def test_number_of_failed_devices_is_bounded() -> None:
    states = DeviceStates("x")
    views = [View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}") for number in range(MAX_DEVICES + 1)]
    states.change_by_samples(sample(view, "lost") for view in views)
    assert (states.state_of(views[0]), states.state_of(views[1])) == ("ok", "lost")


def test_dropped_device_has_never_failed() -> None:
    states = DeviceStates("x")
    assert kinds(states, "lost") == ["gpu_lost"]
    states.drop(GPU.key)
    assert kinds(states, "ok") == []
    assert kinds(states, "lost") == ["gpu_lost"]


def test_hang_has_a_start_and_an_end() -> None:
    states = DeviceStates("x")
    assert kinds(states, "hung") == ["hang_started"]
    assert kinds(states, "lost") == ["hang_ended", "gpu_lost"]


def test_absent_state_is_no_change() -> None:
    states = DeviceStates("x")
    assert kinds(states, "lost") == ["gpu_lost"]
    assert kinds(states, Absent(Reason.STALE)) == []
    assert kinds(states, "ok") == ["gpu_recovered"]


def test_state_in_another_sample_of_the_pass_counts() -> None:
    states = DeviceStates("x")
    part = Sample(view=GPU, reader="x", lane=Lane.FAST, measured_at=1, values={"gpu_power_watts": 1.0})
    assert kinds(states, "lost") == ["gpu_lost"]
    assert states.change_by_samples([part, sample(GPU, "lost"), part]) == []
    assert [event.kind for event in states.change_by_samples([part, part])] == ["gpu_recovered"]


def test_event_has_device_time_and_source() -> None:
    (event,) = DeviceStates("x").change_by_samples([sample(GPU, "lost", 7), sample(MIG, "lost"), sample(None, "lost")])
    assert (event.view, event.at, event.attributes) == (GPU, 7, {"sources": "x"})
