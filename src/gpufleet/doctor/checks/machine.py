"""Checks of the machine: visible kernel state, identity and clock."""

from gpufleet.doctor.facts import CheckResult, CheckVerdict, NodeFacts
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.time import to_datetime

EARLIEST_NS = 1_735_689_600 * 1_000_000_000
"""2025-01-01: this software is younger, so an earlier clock is wrong."""

LATEST_NS = 4_102_444_800 * 1_000_000_000
"""2100-01-01: a later clock is wrong."""


def check_processes(facts: NodeFacts) -> CheckResult:
    """Check that the machine's processes are visible."""
    name, proves = "process_table", "the machine's processes are visible: services, and processes that use a GPU"
    hidden = facts.processes_hidden
    if hidden is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="/proc could not be read")
    if hidden:
        fix = "run in the machine's PID namespace (hostPID: true); with hidepid, as root or in the group of gid="
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=hidden, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found="kernel threads are visible")


def check_identity(facts: NodeFacts) -> CheckResult:
    """Check for evidence that distinguishes this machine from a clone."""
    name, proves = "identity", "the machine can be distinguished from a clone of its disk"
    machine = facts.machine
    if machine is None:
        return CheckResult(
            name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="its identity could not be read"
        )
    if machine.system_uuid is not None:
        found = f"system UUID {machine.system_uuid}, machine-id {machine.machine_id or 'none'}"
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)
    why = facts.system_uuid.detail if isinstance(facts.system_uuid, Absent) else "not read"
    if machine.machine_id is not None:
        closed = isinstance(facts.system_uuid, Absent) and facts.system_uuid.reason is Reason.NOT_PERMITTED
        fix = "run as root: only root can read the UUID" if closed else "make sure that no clone keeps this id"
        found = f"machine-id {machine.machine_id}, which clones share; no system UUID: {why}"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    fix = "run systemd-machine-id-setup; in a container mount the machine's /etc/machine-id"
    found = f"only the name {machine.name}; no machine-id, no system UUID: {why}"
    return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)


def check_clock(facts: NodeFacts) -> CheckResult:
    """Check the clock, which is the time of measurements."""
    name, proves = "clock", "measurements carry the correct time"
    if facts.clock_ns is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="the clock was not read")
    now = to_datetime(facts.clock_ns).isoformat(timespec="seconds")
    fix = "set the clock and run chronyd, systemd-timesyncd or a PTP client"
    if not EARLIEST_NS <= facts.clock_ns < LATEST_NS:
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=f"its time is {now}", fix=fix)
    if facts.clock_synchronized is None:
        found = f"{now} is plausible; whether it is synchronised is unknown"
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found)
    if not facts.clock_synchronized:
        found = f"{now}; the kernel reports it as unsynchronised"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=f"{now}, synchronised")


def check_pressure(facts: NodeFacts) -> CheckResult:
    """Check for pressure stall information."""
    name, proves = "pressure", "pressure on processor, memory and disks is measured"
    if facts.pressure is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if facts.pressure:
        fix = "boot with psi=1 on a kernel with CONFIG_PSI; everything else works without it"
        found = f"/proc/pressure/cpu: {facts.pressure}"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found="/proc/pressure is readable")


def check_kernel_log(facts: NodeFacts) -> CheckResult:
    """Check that the kernel log, which has the driver's XID errors, can be read."""
    name, proves = "kernel_log", "the driver's XID errors can be read from the kernel log"
    if facts.kernel_log is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if facts.kernel_log:
        fix = "grant CAP_SYSLOG (or kernel.dmesg_restrict=0), and in a container the device /dev/kmsg"
        found = f"/dev/kmsg: {facts.kernel_log}"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found="/dev/kmsg opens")


MACHINE_CHECKS = (check_processes, check_identity, check_clock, check_pressure, check_kernel_log)
"""Checks, most important first."""
