"""State of a GPU by the evidence of its readings."""

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.device_state import CORE_READINGS, state_of, state_with_instances, worst_state
from gpufleet.model.reading import DimValue, Value

CORE: dict[str, Value | Absent] = dict.fromkeys(CORE_READINGS, 1)


def absent(reason: Reason) -> dict[str, Value | Absent]:
    return dict.fromkeys(CORE, Absent(reason))


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "ok"),
        ({"gpu_power_watts": Absent(Reason.NOT_SUPPORTED)}, "ok"),
        ({"gpu_fan_speed_rpm": Absent(Reason.DRIVER_ERROR)}, "ok"),
        ({"gpu_power_watts": Absent(Reason.DRIVER_ERROR)}, "error"),
        ({"gpu_power_watts": Absent(Reason.RESET_REQUIRED)}, "reset_required"),
        ({"gpu_power_watts": Absent(Reason.RESET_REQUIRED), "gpu_serial": Absent(Reason.GPU_LOST)}, "lost"),
        (absent(Reason.DRIVER_ERROR) | {"gpu_performance_state": 0}, "error"),
        (absent(Reason.GPU_LOST) | {"gpu_performance_state": 0}, "lost"),
        ({"gpu_temperature_celsius": Absent(Reason.TIMEOUT)}, "error"),
        (absent(Reason.NO_DRIVER) | {"gpu_performance_state": 0}, "error"),
        (absent(Reason.NO_DATA) | {"gpu_performance_state": 0}, "unreadable"),
        (absent(Reason.NOT_REPORTED) | {"gpu_performance_state": 0}, Absent(Reason.NOT_REPORTED)),
        (absent(Reason.DRIVER_ERROR), "unreadable"),
        (absent(Reason.NOT_PERMITTED), "unreadable"),
        (absent(Reason.NOT_REPORTED), Absent(Reason.NOT_REPORTED)),
        (absent(Reason.NOT_SUPPORTED), Absent(Reason.NOT_REPORTED)),
        (absent(Reason.NOT_IN_GUEST) | {"gpu_performance_state": 0}, Absent(Reason.NOT_REPORTED)),
        (absent(Reason.STALE), Absent(Reason.STALE)),
    ],
)
def test_state_follows_from_the_worst_reading(changed: dict[str, Value | Absent], state: str | Absent) -> None:
    assert state_of(CORE | changed) == state


@pytest.mark.parametrize(
    ("others", "state"),
    [
        ({"gpu_bar1_used_bytes": 1}, "error"),
        ({"gpu_compute_processes": 0, "mig_profile": "1g.18gb"}, "ok"),
        ({"mig_multiprocessors": 16}, "ok"),  # a constant, of the slow lane
        ({"gpu_compute_processes": Absent(Reason.GPU_LOST)}, "lost"),
    ],
)
def test_failed_mig_device_is_evidence_if_it_was_measured(others: dict[str, Value | Absent], state: str) -> None:
    readings = {"gpu_memory_used_bytes": Absent(Reason.TIMEOUT), **others}
    assert state_with_instances("ok", [(readings, ())]) == state


def test_reading_with_dimensions_is_evidence() -> None:
    assert state_of(CORE, [DimValue("gpu_fan_speed_ratio", ("0",), Absent(Reason.GPU_LOST))]) == "lost"


def test_readings_without_a_core_reading_prove_nothing() -> None:
    assert state_of({"gpu_fan_speed_rpm": 1}) == Absent(Reason.NOT_REPORTED)


def test_state_without_readings_is_not_reported() -> None:
    assert state_of({}) == Absent(Reason.NOT_REPORTED)


def test_core_readings_are_fast_readings_of_a_gpu() -> None:
    assert {str(CATALOGUE[name].lane) for name in CORE_READINGS} == {"fast"}


def test_worst_state() -> None:
    assert worst_state(("ok", "error")) == "error"
    assert worst_state(("hung", "lost", "ok")) == "lost"
    assert worst_state(("a_newer_state", "error")) == "error"
