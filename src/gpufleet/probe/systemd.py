"""Boot and readiness times from systemd: one call of `systemctl show` for the manager, one for units."""

import re

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.probe.measurements import MeasurementKind, MeasurementList
from gpufleet.probe.records import Better, MeasuredUnit
from gpufleet.probe.runner import CommandRunner, FixedCommand, failure_of

PHASE_PROPERTIES = (
    "FirmwareTimestampMonotonic",
    "LoaderTimestampMonotonic",
    "InitRDTimestampMonotonic",
    "UserspaceTimestampMonotonic",
    "FinishTimestampMonotonic",
)
SECURITY_START, SOFT_REBOOT = "SecurityStartTimestampMonotonic", "SoftRebootStartTimestampMonotonic"
MANAGER_PROPERTIES = (*PHASE_PROPERTIES, SECURITY_START, SOFT_REBOOT)
UNIT_PROPERTIES = ("Id", "ActiveState", "ActiveEnterTimestampMonotonic")
"""The guest script permits these lists of properties and no others: the environment of a unit can have secrets."""

UNITS = {
    "ready_network": ("network-online.target",),
    "ready_ssh": ("ssh.service", "sshd.service"),
    "ready_driver": ("nvidia-persistenced.service",),
    "ready_containers": ("containerd.service", "docker.service", "crio.service"),
    "ready_kubelet": ("kubelet.service",),
}
"""Measurement to its units. The one that was active first counts."""

_MAX_UNITS = 64


def _kind(name: str, text: str) -> MeasurementKind:
    return MeasurementKind(name=name, help=text, unit=MeasuredUnit.SECONDS, better=Better.LOWER, tool="systemctl")


BOOT = {
    "boot_firmware": _kind("boot_firmware", "firmware, up to the boot loader"),
    "boot_loader": _kind("boot_loader", "boot loader, up to the kernel"),
    "boot_kernel": _kind("boot_kernel", "kernel, up to the initial RAM disk or the init process"),
    "boot_initrd": _kind("boot_initrd", "initial RAM disk, up to the init process"),
    "boot_userspace": _kind("boot_userspace", "init process, up to the end of the boot"),
}
READY = {
    "ready_network": _kind("ready_network", "time since kernel start at which the network was online"),
    "ready_ssh": _kind("ready_ssh", "time since kernel start at which the SSH server was active"),
    "ready_driver": _kind("ready_driver", "time since kernel start at which nvidia-persistenced was active"),
    "ready_containers": _kind("ready_containers", "time since kernel start at which a container runtime was active"),
    "ready_kubelet": _kind("ready_kubelet", "time since kernel start at which the kubelet was active"),
}

NO_KERNEL = Absent(Reason.NOT_REPORTED, "the kernel did not start the init process: a container, or a soft reboot")

_LINE = re.compile(r"([A-Za-z]{1,64})=(.{0,256})", re.ASCII)
_MICROSECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)


async def probe_systemd(runner: CommandRunner, measurements: MeasurementList) -> None:
    """Add boot and readiness times, each a single value of this boot."""
    manager = await _show(runner, "systemd_boot", MANAGER_PROPERTIES, ())
    properties = manager[0] if manager and not isinstance(manager, Absent) else {}
    times = manager if isinstance(manager, Absent) else boot_times(properties)
    for name, kind in BOOT.items():
        measurements.add(kind, times if isinstance(times, Absent) else times[name])
    names = tuple(unit for units in UNITS.values() for unit in units)
    units = await _show(runner, "systemd_units", UNIT_PROPERTIES, names)
    ready = units if isinstance(units, Absent) else ready_times(units)
    if not isinstance(ready, Absent) and not follows_kernel(properties):
        ready = NO_KERNEL
    for name, kind in READY.items():
        measurements.add(kind, ready if isinstance(ready, Absent) else ready[name])


async def _show(
    runner: CommandRunner, name: str, properties: tuple[str, ...], units: tuple[str, ...]
) -> list[dict[str, str]] | Absent:
    argv = ("systemctl", "show", f"--property={','.join(properties)}", *units)
    outcome = await runner.run(FixedCommand(name=name, argv=argv))
    if outcome.absent is not None:
        return outcome.absent
    assert outcome.result is not None
    if outcome.result.exit_code != 0:
        failure = failure_of("systemctl", outcome.result)
        is_missing = b"not been booted with systemd" in outcome.result.stderr[:4096]
        return Absent(Reason.NOT_ENABLED, failure.detail) if is_missing else failure
    try:
        return parse_properties(outcome.result.stdout)
    except WireError as error:
        return Absent(Reason.INVALID_VALUE, str(error))


def parse_properties(content: bytes) -> list[dict[str, str]]:
    """Parse the output of `systemctl show`: a block of `Name=value` lines for each unit, separated by empty lines.

    Raises:
        WireError: if a line is malformed, or there are more than 64 blocks.
    """
    blocks: list[dict[str, str]] = []
    for block in content.decode("utf-8", errors="replace").strip("\n").split("\n\n"):
        fields: dict[str, str] = {}
        for row in block.splitlines():
            found = _LINE.fullmatch(row)
            if found is None:
                raise WireError("systemctl", f"{row[:60]!r} is not a property")
            fields[found[1]] = found[2]
        if fields:
            blocks.append(fields)
    if len(blocks) > _MAX_UNITS:
        raise WireError("systemctl", f"{len(blocks)} units")
    return blocks


def boot_times(properties: dict[str, str]) -> dict[str, float | Absent]:
    """Return the durations of the boot phases.

    Timestamps are microseconds from the kernel's start. Those of firmware and loader count backwards from it. Zero
    means that the phase does not exist or has not ended.
    """
    firmware, loader, initrd, userspace, finish = (_seconds(properties.get(name, "")) for name in PHASE_PROPERTIES)
    if not follows_kernel(properties):
        return {**dict.fromkeys(BOOT, NO_KERNEL), "boot_userspace": _between(userspace, finish)}
    return {
        "boot_firmware": _between(loader or 0.0, firmware),
        "boot_loader": loader or _no_phase(),
        "boot_kernel": initrd or userspace or _no_phase(),
        "boot_initrd": _between(initrd, userspace),
        "boot_userspace": _between(userspace, finish),
    }


def follows_kernel(properties: dict[str, str]) -> bool:
    """Return whether the init process was started by the kernel.

    In a container, and after a soft reboot, the kernel can have started days before. systemd sets up security modules
    outside of containers only, and otherwise reports zero as the time of their start.
    """
    is_container = properties.get(SECURITY_START) == "0"
    return not is_container and _seconds(properties.get(SOFT_REBOOT, "")) is None


def ready_times(units: list[dict[str, str]]) -> dict[str, float | Absent]:
    """Return the time at which the first unit of each group became active."""
    entered = {
        unit.get("Id", ""): seconds
        for unit in units
        if unit.get("ActiveState") == "active"
        and (seconds := _seconds(unit.get("ActiveEnterTimestampMonotonic", ""))) is not None
    }
    ready: dict[str, float | Absent] = {}
    for name, names in UNITS.items():
        times = [entered[unit] for unit in names if unit in entered]
        ready[name] = min(times) if times else Absent(Reason.NOT_ENABLED, f"not active: {', '.join(names)}")
    return ready


def _seconds(text: str) -> float | None:
    """Return a timestamp in seconds; None if it is zero or malformed."""
    microseconds = int(text) if _MICROSECONDS.fullmatch(text) else 0
    return microseconds / 1e6 if microseconds else None


def _between(start: float | None, end: float | None) -> float | Absent:
    return _no_phase() if start is None or end is None or end < start else end - start


def _no_phase() -> Absent:
    return Absent(Reason.NOT_REPORTED, "systemd reports no time of this phase")
