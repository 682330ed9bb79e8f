"""The machine: what its kernel shows to this process, who it is, what time it has."""

from gpufleet.doctor.facts import Check, Facts, Verdict
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.time import to_datetime

EARLIEST_NS = 1_735_689_600 * 1_000_000_000
"""2025-01-01: this software is younger, so a clock that says earlier is wrong."""

LATEST_NS = 4_102_444_800 * 1_000_000_000
"""2100-01-01."""


def check_processes(facts: Facts) -> Check:
    """Ask whether the machine's processes are seen."""
    name, proves = "process_table", "the machine's processes are seen: services, and who uses a GPU"
    hidden = facts.processes_hidden
    if hidden is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="/proc could not be read")
    if hidden:
        mend = "run in the machine's PID namespace (hostPID: true); with hidepid, as root or in the group of gid="
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=hidden, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found="the kernel's own threads are seen")


def check_identity(facts: Facts) -> Check:
    """Look for evidence that tells this machine from a clone of it."""
    name, proves = "identity", "the machine can be told from a clone of its disk"
    machine = facts.machine
    if machine is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="its identity could not be read")
    if machine.system_uuid is not None:
        found = f"system UUID {machine.system_uuid}, machine-id {machine.machine_id or 'none'}"
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)
    why = facts.system_uuid.detail if isinstance(facts.system_uuid, Absent) else "not read"
    if machine.machine_id is not None:
        closed = isinstance(facts.system_uuid, Absent) and facts.system_uuid.reason is Reason.NOT_PERMITTED
        mend = "run as root: the kernel shows the UUID to nobody else" if closed else "see that no clone keeps this id"
        found = f"machine-id {machine.machine_id}, which clones share; no system UUID: {why}"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    mend = "run systemd-machine-id-setup; in a container mount the machine's /etc/machine-id"
    found = f"only the name {machine.name}; no machine-id, no system UUID: {why}"
    return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)


def check_clock(facts: Facts) -> Check:
    """Look at the clock: measurements carry it."""
    name, proves = "clock", "measurements carry a true time"
    if facts.clock_ns is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="the clock was not read")
    now = to_datetime(facts.clock_ns).isoformat(timespec="seconds")
    mend = "set the clock and run chronyd, systemd-timesyncd or a PTP client"
    if not EARLIEST_NS <= facts.clock_ns < LATEST_NS:
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=f"it says {now}", mend=mend)
    if facts.clock_synchronized is None:
        found = f"{now} is plausible; whether it is synchronised cannot be asked here"
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found)
    if not facts.clock_synchronized:
        found = f"{now}; the kernel holds it for unsynchronised"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=f"{now}, synchronised")


def check_pressure(facts: Facts) -> Check:
    """Ask for pressure stall information."""
    name, proves = "pressure", "waiting for processor, memory and disks is measured"
    if facts.pressure is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
    if facts.pressure:
        mend = "boot with psi=1 on a kernel with CONFIG_PSI; all else works without it"
        found = f"/proc/pressure/cpu: {facts.pressure}"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found="/proc/pressure is readable")


def check_kernel_log(facts: Facts) -> Check:
    """Ask for the kernel's log, where the driver writes its XID errors."""
    name, proves = "kernel_log", "the driver's XID errors can be read from the kernel's log"
    if facts.kernel_log is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not tried")
    if facts.kernel_log:
        mend = "give CAP_SYSLOG (or kernel.dmesg_restrict=0), and in a container the device /dev/kmsg"
        found = f"/dev/kmsg: {facts.kernel_log}"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found="/dev/kmsg opens")


MACHINE_CHECKS = (check_processes, check_identity, check_clock, check_pressure, check_kernel_log)
"""In the order of their weight."""
