"""Readings of a board by the driver's answers."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from tests.fakes.nvml.driver import FakeNvml
from tests.readers.nvml.rig import Start, device

RACK = ("gpu_chassis_serial", "gpu_chassis_slot", "gpu_tray_index", "gpu_host_id", "gpu_fabric_guid")


async def test_board_outside_a_rack_has_no_place(fake: FakeNvml, start: Start) -> None:
    """Drivers answer for an H200 in a server: slot 0, tray 0, host 1, module 1, without serial number and GUID."""
    fake.scenario.devices[1].rows["nvmlDeviceGetPlatformInfo"] = [(0, 0, 1, 1, 1)]
    fake.scenario.devices[1].texts["nvmlDeviceGetPlatformInfo_serial"] = ""
    fake.apply()
    values = device(await start(fake).read(Lane.STATIC), 1).values
    reasons = {name: value.reason if isinstance(value, Absent) else value for name in RACK if (value := values[name])}
    assert reasons == dict.fromkeys(RACK, Reason.NOT_SUPPORTED)
    assert values["gpu_platform_module_id"] == "1"
