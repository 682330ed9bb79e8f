"""Boot and readiness times from the properties of systemd."""

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.probe.measurements import MeasurementList
from gpufleet.probe.runner import CommandRunner
from gpufleet.probe.systemd import boot_times, parse_properties, probe_systemd, ready_times
from tests.fakes.clock import FakeClock
from tests.fakes.commands import FakeCommands, printed

MANAGER = """FirmwareTimestampMonotonic=9000000
LoaderTimestampMonotonic=2500000
InitRDTimestampMonotonic=1500000
UserspaceTimestampMonotonic=4000000
FinishTimestampMonotonic=21000000
"""
UNITS = """Id=ssh.service
ActiveState=active
ActiveEnterTimestampMonotonic=8250000

Id=docker.service
ActiveState=inactive
ActiveEnterTimestampMonotonic=0

Id=containerd.service
ActiveState=active
ActiveEnterTimestampMonotonic=7000000
"""


def test_phases_of_the_boot_are_durations() -> None:
    (properties,) = parse_properties(MANAGER.encode())
    assert boot_times(properties) == {
        "boot_firmware": 6.5,
        "boot_loader": 2.5,
        "boot_kernel": 1.5,
        "boot_initrd": 2.5,
        "boot_userspace": 17.0,
    }


def test_phase_without_a_timestamp_is_absent() -> None:
    times = boot_times({"UserspaceTimestampMonotonic": "900000", "FirmwareTimestampMonotonic": "0"})
    assert times["boot_kernel"] == 0.9
    assert [name for name, value in times.items() if isinstance(value, Absent)] == [
        "boot_firmware", "boot_loader", "boot_initrd", "boot_userspace",
    ]  # fmt: skip


OWN_KERNEL = "SecurityStartTimestampMonotonic=4100000\nSoftRebootStartTimestampMonotonic=0\n"
CONTAINER = """FirmwareTimestampMonotonic=0
LoaderTimestampMonotonic=0
InitRDTimestampMonotonic=0
UserspaceTimestampMonotonic=864000000000
FinishTimestampMonotonic=864004000000
SecurityStartTimestampMonotonic=0
"""
"""A system container that was started ten days after its host."""
SOFT_REBOOT = MANAGER.replace("=4000000", "=864000000000").replace("=21000000", "=864004000000") + (
    "SecurityStartTimestampMonotonic=864000100000\nSoftRebootStartTimestampMonotonic=863999000000\n"
)


@pytest.mark.parametrize("manager", [CONTAINER, SOFT_REBOOT])
async def test_userspace_alone_is_timed_without_a_kernel_start(manager: str) -> None:
    channel, measurements = FakeCommands(systemctl=printed(manager)), MeasurementList()
    await probe_systemd(CommandRunner(channel, FakeClock()), measurements)
    found = {one.name: one for one in measurements.measurements()}
    assert found.pop("boot_userspace").values == (4.0,)
    assert {one.absent for one in found.values()} == {Reason.NOT_REPORTED}


def test_boot_by_an_own_kernel_has_every_phase() -> None:
    (properties,) = parse_properties((MANAGER + OWN_KERNEL).encode())
    assert not any(isinstance(value, Absent) for value in boot_times(properties).values())


def test_first_active_unit_of_a_group_counts() -> None:
    ready = ready_times(parse_properties(UNITS.encode()))
    assert (ready["ready_ssh"], ready["ready_containers"]) == (8.25, 7.0)
    assert isinstance(ready["ready_driver"], Absent)


@pytest.mark.parametrize("content", [b"Startup finished", b"Id=" + b"x" * 300, b"Id=a\n\n" * 65, b"\xff=1"])
def test_malformed_properties_are_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        parse_properties(content)


async def test_failure_of_systemctl_is_not_a_missing_systemd() -> None:
    channel, measurements = FakeCommands(systemctl=printed("", code=1, stderr="timed out")), MeasurementList()
    await probe_systemd(CommandRunner(channel, FakeClock()), measurements)
    assert {one.absent for one in measurements.measurements()} == {Reason.READER_FAILED}


async def test_machine_without_systemd_has_the_message_as_reason() -> None:
    message = "System has not been booted with systemd as init system (PID 1). Can't operate."
    channel, measurements = FakeCommands(systemctl=printed("", code=1, stderr=message)), MeasurementList()
    await probe_systemd(CommandRunner(channel, FakeClock()), measurements)
    found = measurements.measurements()
    assert {one.absent for one in found} == {Reason.NOT_ENABLED}
    assert all(message in one.detail for one in found)
