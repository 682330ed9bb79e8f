"""What the hub keeps: registry, store, and what waits in the log."""

from gpufleet.doctor.check import Check, Verdict
from gpufleet.doctor.hub.facts import HubFacts, Kept, Waiting

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
