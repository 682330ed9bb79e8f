"""Checks of a hub from its facts: host, data and network. Pure."""

import datetime as dt

from gpufleet.config.agent import parse_listen
from gpufleet.config.tls import is_loopback
from gpufleet.doctor.facts import EXPIRY_WARNING_DAYS, CheckResult, CheckVerdict
from gpufleet.doctor.hub.facts import (
    STOPPED,
    CertificateDetails,
    DaemonStatus,
    DatabaseState,
    DiskUsage,
    HubFacts,
    KernelClock,
    LogBacklog,
)
from gpufleet.hub.receive.listener import Listener
from gpufleet.model.access import Role, Token
from gpufleet.model.stored.ledger import MachineCounts

MAX_AGE_SECONDS = 60.0
"""Age of the oldest queued batch that indicates a problem: the log is normally emptied about once a second."""

FULL_RATIO = 0.5
"""Fraction of the log's limit above which the check fails."""


MACHINES_WARNING_RATIO = 0.9
"""Fraction of the limit on machines from which the check warns."""

MAX_NAMED = 3
"""Most entries listed by name."""


def check_registry(facts: HubFacts) -> CheckResult:
    """Check the schema version and the integrity of the registry."""
    name, proves = "registry", "clusters, machines, allocations and tokens are readable, in this build's schema"
    if facts.registry is None:
        found = "a relay without tokens has no registry"
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=found)
    if isinstance(facts.registry, DatabaseState) and facts.registry.damage:
        fix = "stop the hub, keep a copy, and restore a backup: docs/operations/backup.md"
        found = f"its files are damaged: {facts.registry.damage}"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    return _check_version(name, proves, facts.registry, "its integrity check found no error")


def check_store(facts: HubFacts) -> CheckResult:
    """Check the schema version of the store, or the status of the hub that has it open."""
    name, proves = "store", "measurements are readable, in this build's schema"
    if facts.store is None:
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found="a relay has no store")
    if isinstance(facts.store, DatabaseState) and facts.store.damage:
        fix = "see the hub's log, and docs/operations/troubleshooting.md"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=facts.store.damage, fix=fix)
    if isinstance(facts.store, DatabaseState) and facts.store.version == 0 and _knows_machines(facts):
        fix = "check that its disk is mounted, or restore a backup: docs/operations/backup.md"
        found = "it has no tables, but the registry knows machines with stored data: the hub will not start"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    holder = facts.holder if isinstance(facts.holder, int) and facts.holder > 0 else None
    return _check_version(
        name, proves, facts.store, f"process {holder} has it open" if holder else "no process has it open"
    )


def check_machines(facts: HubFacts) -> CheckResult:
    """Check the number of machines of each cluster against the limit."""
    name, proves = "machines", "each cluster has room for new machines"
    if facts.machines is None:
        return CheckResult(
            name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found="a relay registers no machines"
        )
    if isinstance(facts.machines, str):
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=facts.machines)
    counts, ratios = facts.machines.by_cluster, facts.machines.ratios
    fullest = sorted(ratios, key=lambda it: (-ratios[it], it))[:MAX_NAMED]
    named = [f"cluster {one}: {counts.get(one, 0):,} of {facts.machines.limit:,}" for one in fullest]
    found = "; ".join(named) or "no machine yet"
    most = ratios[fullest[0]] if fullest else 0.0
    if most >= MACHINES_WARNING_RATIO and most > counts.get(fullest[0], 0) / facts.machines.limit:
        found += f"; cluster {fullest[0]}: {most:.0%} of the limit of one sender (half), or with retired ones (4 times)"
    fix = "retire machines that are gone, look for made-up host names, or raise ingest.max_machines"
    if most >= 1:
        found += "; new machines get 403 too_many_machines"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if most >= MACHINES_WARNING_RATIO:
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def check_log(facts: HubFacts) -> CheckResult:
    """Check the backlog of acknowledged batches."""
    name = "log"
    destination = "the store" if facts.relay_to is None else "the next hub"
    proves = f"acknowledged batches reach {destination} within seconds"
    backlog = facts.backlog
    if not isinstance(backlog, LogBacklog):
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=backlog)
    if not backlog.records:
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found="no backlog")
    age = "" if backlog.oldest_seconds is None else f", the oldest for {backlog.oldest_seconds:,.0f} s"
    found = f"{backlog.records:,} batches of {backlog.bytes / (1 << 20):,.1f} MiB queued{age}"
    if facts.holder == 0:
        fix = "start the daemon: nothing is lost, and it continues"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    if backlog.blocked:
        found += f"; {backlog.blocked:,} of them rejected by the next hub, which accepts others"
        fix = "see the relay's log for their senders: register the cluster at the next hub, or upgrade that hub"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    fix = f"see the log of the daemon for why {destination} accepts nothing, or too little"
    if backlog.bytes > FULL_RATIO * facts.wal_max_bytes:
        found += f"; {facts.wal_max_bytes / (1 << 20):,.0f} MiB is the limit"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if (backlog.oldest_seconds or 0) > MAX_AGE_SECONDS:
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def _knows_machines(facts: HubFacts) -> bool:
    return isinstance(facts.machines, MachineCounts) and bool(facts.machines.ratios)


def _check_version(name: str, proves: str, state: DatabaseState | str, detail: str) -> CheckResult:
    if not isinstance(state, DatabaseState):
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=state)
    found = f"schema version {state.version}"
    if state.version > state.known:
        found += f", but this build supports up to {state.known}"
        fix = "run the version of gpufleet that wrote it, or a newer one; a rollback needs an older backup"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if state.version < state.known:
        found += f", migrated to {state.known} when the daemon of this build starts"
        fix = "make a backup first: the migration cannot be undone"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=f"{found}; {detail}")


DATA_CHECKS = (check_registry, check_store, check_log, check_machines)
"""Checks, most important first."""


GIB = 1 << 30

MIN_FREE_BYTES = GIB
"""Free space below which the log will soon reject batches."""

DISK_FULL_DAYS = 14.0
"""Days until the disk is full, below which the check warns."""


def check_daemon(facts: HubFacts) -> CheckResult:
    """Check that the daemon runs and is ready."""
    name, proves = "daemon", "the daemon runs, responds, and reaches its store or next hub"
    holder, daemon = facts.holder, facts.daemon
    process = f"process {holder}" if isinstance(holder, int) and holder > 0 else "a process"
    if isinstance(daemon, DaemonStatus):
        found = f"{process} responds, gpufleet {daemon.version}"
        if daemon.ready:
            found += f", but is not ready: {daemon.ready}"
            fix = "see its log, and the checks below"
            return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)
    if facts.foreign_daemon:
        found = f"no process has the log in {facts.folder} open: another hub or relay responds at the address"
        fix = "pass the --config FILE or --state FOLDER of the daemon"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    if holder == 0:
        found = "the daemon is stopped: no process has its log open"
        fix = "start the daemon: systemctl start gpufleet-hub"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    fix = "pass the options of a client: --hub URL, --token-file FILE (operator or admin), --ca FILE"
    found = f"{process} has its log open; {daemon}" if isinstance(holder, int) else f"{daemon}; {holder}"
    return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found, fix=fix)


def check_folder(facts: HubFacts) -> CheckResult:
    """Check existence, owner and permissions of the state folder."""
    name, proves = "state_folder", "the folder for log, registry and store exists, and its user may write there"
    if facts.folder_error == "ENOENT":
        fix = "pass the --config FILE or --state FOLDER of the daemon"
        return CheckResult(
            name=name, verdict=CheckVerdict.WARNING, proves=proves, found=f"{facts.folder} does not exist yet", fix=fix
        )
    if facts.other_owner:
        found = (
            f"{facts.folder} is owned by {facts.other_owner}: registry, store and log are opened by their owner only"
        )
        fix = f"run this as {facts.other_owner}: sudo -u {facts.other_owner} gpufleet doctor hub ..."
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found, fix=fix)
    if facts.folder_error is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if facts.folder_error:
        fix = "make it writable for this user; under systemd set it in ReadWritePaths= or StateDirectory="
        found = f"{facts.folder}: {facts.folder_error}"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=facts.folder)


def check_disk(facts: HubFacts) -> CheckResult:
    """Check the free space, and how long it lasts."""
    name, proves = "disk", "there is space for the log during an outage, and for the store to grow"
    disk = facts.disk
    if not isinstance(disk, DiskUsage):
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=disk)
    used = ", ".join(
        f"{what} {_size_text(size)}" for what, size in sorted(disk.used.items(), key=lambda it: -it[1])[:3]
    )
    found = f"{_size_text(disk.free)} free of {_size_text(disk.size)}" + (f"; {used}" if used else "")
    days = None
    if disk.day_bytes:
        days = disk.free / disk.day_bytes
        found += f"; {disk.day} used {_size_text(disk.day_bytes)}: full in {days:,.0f} days at that rate"
    elif facts.relay_to is None:
        found += "; no complete day is stored yet to estimate when it is full"
    if disk.free < MIN_FREE_BYTES:
        fix = "free space now: when the log cannot grow, batches are rejected and stay in the senders' spools"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if days is not None and days < DISK_FULL_DAYS:
        fix = "use a larger disk, or a store on a server (clickhouse://)"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    if disk.free < facts.wal_max_bytes:
        found += f"; the log may take {_size_text(facts.wal_max_bytes)}"
        fix = "free more space, or lower ingest.wal_max_bytes"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def check_clock(facts: HubFacts) -> CheckResult:
    """Check that the clock is synchronised: freshness is judged by it."""
    name, proves = "clock", "ages are judged by the correct time (source: the kernel, adjtimex)"
    clock = facts.clock
    if not isinstance(clock, KernelClock):
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=clock)
    if not clock.synchronized:
        found = f"{facts.at:%Y-%m-%d %H:%M:%S}Z; not synchronised"
        fix = "run chronyd, systemd-timesyncd or a PTP client"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    found = f"synchronised, error at most {clock.max_error_seconds:.3g} s"
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def _size_text(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / (1 << 20):,.1f} MiB"


HOST_CHECKS = (check_daemon, check_folder, check_disk, check_clock)
"""Checks, most important first."""


MAX_AHEAD_SECONDS = 2.0
"""A sender's clock further ahead is wrong: no batch arrives before it was sent."""

MAX_BEHIND_SECONDS = 60.0
"""A sender's clock further behind is wrong, or its newest batch was delayed."""


def check_listener(facts: HubFacts) -> CheckResult:
    """Check which clients can connect to the running process, and their authentication."""
    name, proves = "listener", "only authorised clients can connect: loopback, or TLS and tokens"
    is_running = isinstance(facts.listener, Listener)
    listener = facts.listener if isinstance(facts.listener, Listener) else facts.configured
    found = _listener_text(listener)
    if not is_running:
        found = f"{facts.listener}; configured: {found}"
    elif listener != facts.configured and not facts.configured.address.endswith(":0"):
        found += f"; the configuration has {_listener_text(facts.configured)}"
    host, _ = parse_listen(listener.address)
    if not is_loopback(host) and not (listener.tls and listener.tokens) and (is_running or facts.listener == STOPPED):
        fix = 'set [tls] and auth = "tokens", or listen on 127.0.0.1; see docs/security.md'
        found += ", reachable from other machines"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    verdict = CheckVerdict.OK if is_running else CheckVerdict.UNKNOWN
    return CheckResult(name=name, verdict=verdict, proves=proves, found=found)


def _listener_text(listener: Listener) -> str:
    guards = [guard for guard, on in (("TLS", listener.tls), ("tokens", listener.tokens)) if on]
    return f"{listener.address}, " + (" and ".join(guards) or "without TLS and tokens")


def check_certificate(facts: HubFacts) -> CheckResult:
    """Check certificate and key: match, validity, names, and permissions of the key."""
    name, proves = "certificate", "clients that trust its CA accept it under the name they use, for weeks to come"
    known = facts.certificate
    if known is None:
        return CheckResult(
            name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found="no [tls] is configured"
        )
    if not isinstance(known, CertificateDetails):
        fix = "configure a PEM certificate and its key without a passphrase, readable by the daemon's user"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=known, fix=fix)
    days = (known.not_after - facts.at) / dt.timedelta(days=1)
    found = f"for {', '.join(known.names) or 'no name'}, until {known.not_after:%Y-%m-%d %H:%M}Z"
    renew = "replace both files: the daemon reloads them within a second, without a restart"
    if days <= 0:
        found = f"expired at {known.not_after:%Y-%m-%d %H:%M}Z"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=renew)
    found += f", {days:.0f} days"
    if known.name_matches is False or not known.names:
        found += "; not valid for the name that clients use"
        fix = "issue it for every name and address that clients use (subjectAltName)"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if known.key_mode & 0o007:
        found += f"; every user of this machine can access the key file (mode {known.key_mode:04o})"
        fix = "chmod 640, owned by root and the daemon's group; then replace the key, as it may be compromised"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if days < EXPIRY_WARNING_DAYS:
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=renew)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def check_tokens(facts: HubFacts) -> CheckResult:
    """Check for tokens that have expired or soon will."""
    name, proves = "tokens", "there are tokens, and no token in use expires soon"
    if facts.tokens is None:
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found='auth = "none"')
    if isinstance(facts.tokens, str):
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=facts.tokens)
    living = [one for one in facts.tokens if one.revoked_at is None]
    gone = [one for one in living if one.expires_at is not None and one.expires_at <= facts.at]
    soon_at = facts.at + dt.timedelta(days=EXPIRY_WARNING_DAYS)
    soon = [one for one in living if one.expires_at is not None and facts.at < one.expires_at <= soon_at]
    good = len(living) - len(gone)
    found = f"{good} valid"
    found += f", {len(soon)} of them expire within {EXPIRY_WARNING_DAYS} days: {_token_list(soon)}" if soon else ""
    found += f"; {len(gone)} expired: {_token_list(gone)}" if gone else ""
    if not any(one.role is Role.SENDER for one in living if one not in gone):
        fix = "gpufleet token create --role sender --cluster ID: until then no batches are accepted"
        return CheckResult(
            name=name, verdict=CheckVerdict.FAILED, proves=proves, found=f"{found}; no sender token", fix=fix
        )
    if soon or gone:
        fix = "gpufleet token rotate ID --overlap 24h --expires-in 90d, or revoke unused tokens"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def check_senders(facts: HubFacts) -> CheckResult:
    """Compare the clocks of senders with the hub's, from their newest reports."""
    name, proves = "sender_clocks", "the time of measurements agrees with the hub's clock"
    if not isinstance(facts.clock_skews, dict):
        return CheckResult(
            name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=facts.clock_skews or "no senders"
        )
    if not facts.clock_skews:
        return CheckResult(
            name=name,
            verdict=CheckVerdict.UNKNOWN,
            proves=proves,
            found="no sender whose clock is known was seen in the last hour",
        )
    wrong = {
        sender: skew
        for sender, skew in facts.clock_skews.items()
        if skew > MAX_AHEAD_SECONDS or skew < -MAX_BEHIND_SECONDS
    }
    if not wrong:
        found = (
            f"{len(facts.clock_skews):,} senders, none {MAX_AHEAD_SECONDS:g} s ahead or {MAX_BEHIND_SECONDS:g} s behind"
        )
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)
    worst = sorted(wrong.items(), key=lambda item: -abs(item[1]))
    listed = ", ".join(f"{sender} {skew:+,.0f} s" for sender, skew in worst[:MAX_NAMED])
    found = f"{len(wrong):,} of {len(facts.clock_skews):,} senders are off: {listed}" + (
        ", …" if len(worst) > MAX_NAMED else ""
    )
    fix = "run `gpufleet doctor` there; a sender that is behind may also have had a long outage of the hub"
    return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)


def _token_list(tokens: list[Token]) -> str:
    names = [f"{one.id} ({one.role}{f', {one.note}' if one.note else ''})" for one in tokens[:MAX_NAMED]]
    return ", ".join(names) + (", …" if len(tokens) > MAX_NAMED else "")


NETWORK_CHECKS = (check_listener, check_certificate, check_tokens, check_senders)
"""Checks, most important first."""


CHECKS = (*HOST_CHECKS, *DATA_CHECKS, *NETWORK_CHECKS)
"""All checks, in the order of repair: lower layers first."""


def examine_hub(facts: HubFacts) -> tuple[CheckResult, ...]:
    """Run every check."""
    return tuple(check(facts) for check in CHECKS)
