"""Gone instances, and device names."""

from gpufleet.fleet.devices import device_name, is_gone
from gpufleet.model.absence import Reason
from gpufleet.model.reading import Reading

FAST, SLOW = ("nvml", "fast"), ("nvml", "slow")


def test_device_missing_from_a_newer_pass_of_its_lane_is_gone() -> None:
    assert not is_gone({FAST: 10}, {FAST: 10})
    assert is_gone({FAST: 10}, {FAST: 11})
    assert not is_gone({FAST: 10}, {FAST: 9})
    assert is_gone({FAST: 10, SLOW: 5}, {FAST: 10, SLOW: 6})
    assert not is_gone({FAST: 10}, {FAST: 10, SLOW: 60})  # a lane that never listed the device does not count
    assert not is_gone({FAST: 10}, {})


def test_device_name_uses_the_best_known_reading() -> None:
    profile, type_ = Reading(value="1g.18gb"), Reading(value="NVIDIA L40S-12Q")
    assert device_name({"mig_profile": profile}) == "MIG 1g.18gb"
    assert device_name({"vgpu_type": type_}) == "NVIDIA L40S-12Q"
    assert device_name({"mig_profile": profile, "gpu_name": Reading(value="NVIDIA H200 MIG 1g.18gb")}) == (
        "NVIDIA H200 MIG 1g.18gb"
    )
    assert device_name({"gpu_name": Reading(absent=Reason.STALE)}) is None
