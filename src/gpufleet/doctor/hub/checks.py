"""The checks of a hub: pure judgements over its facts.

What the hub keeps: registry, store, and what waits in the log.

What is under the hub: its process, folder, disk and clock.

Who reaches the hub, and by what right: listener, certificate, tokens, and the clocks of those who send.
"""

import datetime as dt

from gpufleet.config.agent import parse_listen
from gpufleet.config.tls import is_loopback
from gpufleet.doctor.facts import Check, Verdict
from gpufleet.doctor.hub.facts import Certificate, Daemon, Disk, HubFacts, Kept, KernelClock, Waiting
from gpufleet.model.access import Role, Token

LATE_SECONDS = 60.0
"""The log is emptied about once a second: what waits for longer, waits for something that does not work."""

FULL_RATIO = 0.5
"""Of what the log may hold: more than this is told."""


def check_registry(facts: HubFacts) -> Check:
    """Look at the registry's schema and let it check itself."""
    name, proves = "registry", "clusters, machines, allocations and tokens are readable, and of this build's schema"
    if facts.registry is None:
        found = "a relay without tokens has none"
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found=found)
    if isinstance(facts.registry, Kept) and facts.registry.damage:
        mend = "stop the hub, keep a copy, and restore a backup: docs/operations.md"
        found = f"its files are damaged: {facts.registry.damage}"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    return _of_version(name, proves, facts.registry, "its own integrity check finds nothing")


def check_store(facts: HubFacts) -> Check:
    """Look at the store's schema, or take the word of the hub that has it open."""
    name, proves = "store", "what was measured can be read, and is of this build's schema"
    if facts.store is None:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found="a relay has none")
    if isinstance(facts.store, Kept) and facts.store.damage:
        mend = "see the hub's log; for the whole of it docs/operations.md"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=facts.store.damage, mend=mend)
    holder = facts.holder if isinstance(facts.holder, int) and facts.holder > 0 else None
    return _of_version(name, proves, facts.store, f"process {holder} has it open" if holder else "nobody has it open")


def check_log(facts: HubFacts) -> Check:
    """Look at what was acknowledged and has not come through."""
    name = "log"
    through = "the store" if facts.relay_to is None else "the next hub"
    proves = f"what is acknowledged comes through to {through} within seconds"
    waiting = facts.waiting
    if not isinstance(waiting, Waiting):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=waiting)
    if not waiting.records:
        return Check(name=name, verdict=Verdict.OK, proves=proves, found="nothing waits")
    age = "" if waiting.oldest_seconds is None else f", the oldest for {waiting.oldest_seconds:,.0f} s"
    found = f"{waiting.records:,} batches of {waiting.bytes / (1 << 20):,.1f} MiB wait{age}"
    if facts.holder == 0:
        mend = "nothing is lost: start it, and it goes on"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    if waiting.held:
        found += f"; {waiting.held:,} of them the next hub does not take though it takes others"
        mend = "see the log of the relay for whose they are: register the cluster there, or upgrade that hub"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    mend = f"see the log of the daemon for why {through} takes nothing, or too little"
    if waiting.bytes > FULL_RATIO * facts.wal_max_bytes:
        found += f"; {facts.wal_max_bytes / (1 << 20):,.0f} MiB may"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if (waiting.oldest_seconds or 0) > LATE_SECONDS:
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def _of_version(name: str, proves: str, kept: Kept | str, words: str) -> Check:
    if not isinstance(kept, Kept):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=kept)
    found = f"schema version {kept.version}"
    if kept.version > kept.known:
        found += f", and this build knows {kept.known}"
        mend = "run the gpufleet that wrote it, or a newer one; a roll-back needs a backup from before"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if kept.version < kept.known:
        found += f", this build makes it {kept.known} when its daemon starts"
        mend = "back it up before that: there is no way back"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=f"{found}; {words}")


DATA_CHECKS = (check_registry, check_store, check_log)
"""In the order of their weight."""


GIB = 1 << 30

LEAST_FREE_BYTES = GIB
"""Less free space than this, and the log refuses batches soon."""

DISK_SOON_DAYS = 14.0
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
    if days is not None and days < DISK_SOON_DAYS:
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


CERTIFICATE_SOON_DAYS = 21
"""What expires within this is told."""

AHEAD_SECONDS = 2.0
"""A sender's clock that is further ahead than this is wrong: nothing arrives before it was sent."""

BEHIND_SECONDS = 60.0
"""One that is further behind is wrong, or its newest batch was long on the way."""

NAMED = 3
"""How many of many are named."""


def check_listener(facts: HubFacts) -> Check:
    """Look at who can connect, and what is asked of them."""
    name, proves = "listener", "only who may can connect: loopback, or TLS and tokens"
    host, _ = parse_listen(facts.listen)
    guards = [word for word, on in (("TLS", facts.tls), ("tokens", facts.auth == "tokens")) if on]
    found = f"{facts.listen}, " + (" and ".join(guards) or "without TLS and tokens")
    if is_loopback(host) or len(guards) == 2:
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)
    mend = 'set [tls] and auth = "tokens", or listen on 127.0.0.1; see docs/security.md'
    found += ", reachable from other machines (insecure_listen)"
    return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)


def check_certificate(facts: HubFacts) -> Check:
    """Look at certificate and key: do they fit, until when, for which names, and who can read the key."""
    name, proves = "certificate", "clients that trust its authority accept it, by the name they use, for weeks to come"
    known = facts.certificate
    if known is None:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found="no [tls] is configured")
    if not isinstance(known, Certificate):
        mend = "give it a PEM certificate and its key without a passphrase, readable for its user"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=known, mend=mend)
    days = (known.not_after - facts.at) / dt.timedelta(days=1)
    found = f"for {', '.join(known.names) or 'no name'}, until {known.not_after:%Y-%m-%d %H:%M}Z"
    renew = "put a new pair in place of the files: the daemon takes it within a second, without a restart"
    if days <= 0:
        found = f"expired at {known.not_after:%Y-%m-%d %H:%M}Z"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=renew)
    found += f", {days:.0f} days"
    if known.right_name is False or not known.names:
        found += "; not for the name that it is asked by"
        mend = "issue it for every name and address that clients use (subjectAltName)"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if known.key_mode & 0o007:
        found += f"; everybody on this machine can use the key's file (mode {known.key_mode:04o})"
        mend = "chmod 640, owned by root and the daemon's group; then get a new key: this one may be known"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if days < CERTIFICATE_SOON_DAYS:
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=renew)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_tokens(facts: HubFacts) -> Check:
    """Look for tokens that ran out or soon do."""
    name, proves = "tokens", "there are tokens, and none that is in use runs out soon"
    if facts.tokens is None:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found='auth = "none"')
    if isinstance(facts.tokens, str):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=facts.tokens)
    living = [one for one in facts.tokens if one.revoked_at is None]
    gone = [one for one in living if one.expires_at is not None and one.expires_at <= facts.at]
    soon_at = facts.at + dt.timedelta(days=CERTIFICATE_SOON_DAYS)
    soon = [one for one in living if one.expires_at is not None and facts.at < one.expires_at <= soon_at]
    good = len(living) - len(gone)
    found = f"{good} are taken"
    found += f", {len(soon)} of them run out within {CERTIFICATE_SOON_DAYS} days: {_named(soon)}" if soon else ""
    found += f"; {len(gone)} ran out: {_named(gone)}" if gone else ""
    if not any(one.role is Role.SENDER for one in living if one not in gone):
        mend = "gpufleet token create --role sender --cluster ID: until then nobody's batches are taken"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=f"{found}; none is a sender's", mend=mend)
    if soon or gone:
        mend = "gpufleet token rotate ID --overlap 24h --expires-in 90d, or revoke those that nobody uses"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_senders(facts: HubFacts) -> Check:
    """Compare the clocks of senders with the hub's, as far as their newest words tell."""
    name, proves = "sender_clocks", "measurements carry a time that fits the hub's"
    if not isinstance(facts.skews, dict):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=facts.skews or "there are none")
    if not facts.skews:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="no sender was heard in the last hour")
    wrong = {sender: skew for sender, skew in facts.skews.items() if skew > AHEAD_SECONDS or skew < -BEHIND_SECONDS}
    if not wrong:
        found = f"{len(facts.skews):,} senders, none ahead by {AHEAD_SECONDS:g} s or behind by {BEHIND_SECONDS:g} s"
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)
    worst = sorted(wrong.items(), key=lambda item: -abs(item[1]))
    words = ", ".join(f"{sender} {skew:+,.0f} s" for sender, skew in worst[:NAMED])
    found = f"{len(wrong):,} of {len(facts.skews):,} senders are off: {words}" + (", …" if len(worst) > NAMED else "")
    mend = "see `gpufleet doctor` there; one that is behind may also have waited long for the hub"
    return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)


def _named(tokens: list[Token]) -> str:
    names = [f"{one.id} ({one.role}{f', {one.note}' if one.note else ''})" for one in tokens[:NAMED]]
    return ", ".join(names) + (", …" if len(tokens) > NAMED else "")


NETWORK_CHECKS = (check_listener, check_certificate, check_tokens, check_senders)
"""In the order of their weight."""


CHECKS = (*HOST_CHECKS, *DATA_CHECKS, *NETWORK_CHECKS)
"""Every check, in the order in which a person mends: what is below first."""


def examine_hub(facts: HubFacts) -> tuple[Check, ...]:
    """Make every check."""
    return tuple(check(facts) for check in CHECKS)
