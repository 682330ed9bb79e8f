"""Aggregates over devices."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.absence import Reason
from gpufleet.model.aggregate import AGGREGATED, aggregate
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.reading import Reading
from gpufleet.model.view import Scope

ABSENT = Reading(absent=Reason.TIMEOUT, detail="nvmlDeviceGetPowerUsage")


def test_every_total_is_a_catalogue_metric_of_a_gpu() -> None:
    for metric in AGGREGATED:
        assert Subject.GPU in CATALOGUE[metric].subjects


def test_no_devices_give_no_values() -> None:
    total = aggregate([])
    assert (total.coverage, total.metrics) == ("0 of 0 devices", {})


def test_expected_devices_are_counted() -> None:
    one = [{"gpu_power_watts": Reading(value=100.5)}]
    assert aggregate([], expected=8).coverage == "0 of 8 devices"
    assert aggregate(one, expected=8).metrics["gpu_power_watts"].devices == 8
    assert aggregate(one * 8, expected=2).coverage == "8 of 8 devices"


def test_lost_device_gives_no_value() -> None:
    """Its memory is a constant, and its power from before the loss."""
    readings = {"gpu_power_watts": Reading(value=100.5), "gpu_memory_total_bytes": Reading(value=1 << 30)}
    lost, other = Reading(value="lost"), Reading(value="unreadable")
    total = aggregate([readings, {**readings, "gpu_state": lost}, {**readings, "gpu_state": other}])
    assert (total.coverage, total.reporting, total.devices) == ("2 of 3 devices", 2, 3)
    assert {(total.metrics[name].value, total.metrics[name].reporting) for name in readings} == {
        (201.0, 2),
        (2 << 30, 2),
    }


def test_each_metric_counts_its_reporting_devices() -> None:
    devices = [
        {"gpu_power_watts": Reading(value=100.5), "gpu_utilization_ratio": Reading(value=0.0)},
        {"gpu_power_watts": ABSENT, "gpu_utilization_ratio": Reading(value=1.0)},
        {"gpu_power_watts": ABSENT, "gpu_utilization_ratio": ABSENT},
    ]
    total = aggregate(devices)
    assert (total.coverage, total.reporting, total.devices) == ("2 of 3 devices", 2, 3)
    power = total.metrics["gpu_power_watts"]
    assert (power.value, power.operation, power.reporting, power.devices) == (100.5, "sum", 1, 3)
    utilisation = total.metrics["gpu_utilization_ratio"]
    assert (utilisation.value, utilisation.reporting) == (0.5, 2)


def test_integers_stay_integers() -> None:
    devices = [{"gpu_memory_total_bytes": Reading(value=2**53 + 1)}, {"gpu_memory_total_bytes": Reading(value=2**53)}]
    assert aggregate(devices).metrics["gpu_memory_total_bytes"].value == 2**54 + 1


def test_temperature_is_the_maximum() -> None:
    devices = [{"gpu_temperature_celsius": Reading(value=float(t))} for t in (31, 88, 40)]
    assert aggregate(devices).metrics["gpu_temperature_celsius"].value == 88.0


def test_reading_of_the_parent_is_not_counted() -> None:
    devices = [{"gpu_power_watts": Reading(value=700.0, scope=Scope.PARENT)}]
    assert aggregate(devices).coverage == "0 of 1 devices"


def test_device_with_only_a_text_does_not_report() -> None:
    assert aggregate([{"gpu_state": Reading(value="lost")}]).coverage == "0 of 1 devices"


@given(st.lists(st.one_of(st.none(), st.floats(0, 5000)), min_size=1, max_size=20))
def test_sum_covers_the_reporting_devices(powers: list[float | None]) -> None:
    devices = [{"gpu_power_watts": ABSENT if power is None else Reading(value=power)} for power in powers]
    total = aggregate(devices).metrics["gpu_power_watts"]
    reported = [power for power in powers if power is not None]
    assert total.reporting == len(reported)
    assert total.devices == len(powers)
    if reported:
        assert total.value is not None
        assert math.isclose(float(total.value), math.fsum(reported))
    else:
        assert total.value is None
