"""What is under the hub: its process, folder, disk and clock."""

from gpufleet.doctor.check import Check, Verdict
from gpufleet.doctor.hub.facts import Daemon, Disk, HubFacts, KernelClock

GIB = 1 << 30

LEAST_FREE_BYTES = GIB
"""Less free space than this, and the log refuses batches soon."""

SOON_DAYS = 14.0
"""A disk that is full within this wants somebody's attention now."""


def check_daemon(facts: HubFacts) -> Check:
    """Ask whether it runs, and whether it is well."""
    name, proves = "daemon", "it runs, answers, and gets through to what is behind it"
    holder, daemon = facts.holder, facts.daemon
    who = f"process {holder}" if isinstance(holder, int) and holder > 0 else "a process"
    if isinstance(daemon, Daemon):
        found = f"{who} answers, gpufleet {daemon.version}"
        if daemon.ready:
            found += f", and is not ready: {daemon.ready}"
            mend = "see its log, and the checks below"
            return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)
    if facts.another_answers:
        found = f"nobody has the log in {facts.folder} open: who answers at the address is another hub or relay"
        mend = "is this its configuration? --config FILE or --state FOLDER, as the daemon has it"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    if holder == 0:
        found = "it is stopped: nobody has its log open"
        mend = "start it: systemctl start gpufleet-hub"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    mend = "ask it as people do: --hub URL, --token-file FILE (operator or admin), --ca FILE"
    found = f"{who} has its log open; {daemon}" if isinstance(holder, int) else f"{daemon}; {holder}"
    return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found, mend=mend)


def check_folder(facts: HubFacts) -> Check:
    """Ask whether its folder is there, and whose it is."""
    name, proves = "state_folder", "there is a folder for log, registry and store, and its user may write there"
    if facts.folder_error == "ENOENT":
        mend = "is this its configuration? --config FILE or --state FOLDER, as the daemon has it"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=f"no {facts.folder} yet", mend=mend)
    if facts.stranger:
        found = f"{facts.folder} is {facts.stranger}'s: registry, store and log are opened by nobody else"
        mend = f"run this as {facts.stranger}: sudo -u {facts.stranger} gpufleet doctor hub ..."
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found, mend=mend)
    if facts.folder_error is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
    if facts.folder_error:
        mend = "make it writable for this user; under systemd name it in ReadWritePaths= or StateDirectory="
        found = f"{facts.folder}: {facts.folder_error}"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=facts.folder)


def check_disk(facts: HubFacts) -> Check:
    """Look at the room that is left, and how long it lasts."""
    name, proves = "disk", "there is room for the log of an outage, and for the store to grow"
    disk = facts.disk
    if not isinstance(disk, Disk):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=disk)
    used = ", ".join(f"{what} {_size(size)}" for what, size in sorted(disk.used.items(), key=lambda it: -it[1])[:3])
    found = f"{_size(disk.free)} free of {_size(disk.size)}" + (f"; {used}" if used else "")
    days = None
    if disk.day_bytes:
        days = disk.free / disk.day_bytes
        found += f"; {disk.day} took {_size(disk.day_bytes)}: full in {days:,.0f} days at that rate"
    elif facts.relay_to is None:
        found += "; no whole day is stored yet to tell when it is full"
    if disk.free < LEAST_FREE_BYTES:
        mend = "make room now: when the log cannot grow, senders are refused and keep what they have"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if days is not None and days < SOON_DAYS:
        mend = "give it a larger disk, or a store on a server (clickhouse://)"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    if disk.free < facts.wal_max_bytes:
        found += f"; the log may take {_size(facts.wal_max_bytes)}"
        mend = "free more, or set ingest.wal_max_bytes to what there is"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_clock(facts: HubFacts) -> Check:
    """Ask the kernel whether anything steers its clock: freshness is judged by it."""
    name, proves = "clock", "ages and lateness are judged by a true time (source: the kernel, adjtimex)"
    clock = facts.clock
    if not isinstance(clock, KernelClock):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=clock)
    if not clock.synchronized:
        found = f"{facts.at:%Y-%m-%d %H:%M:%S}Z; nothing steers it"
        mend = "run chronyd, systemd-timesyncd or a PTP client"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    found = f"synchronised, wrong by at most {clock.max_error_seconds:.3g} s"
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / (1 << 20):,.1f} MiB"


HOST_CHECKS = (check_daemon, check_folder, check_disk, check_clock)
"""In the order of their weight."""
