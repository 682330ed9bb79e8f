"""Named faults of a fleet: how each begins and ends, and how long it lasts."""

import errno
import fcntl
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from tests.crash.proxy import Mode
from tests.crash.shim.shim import TEMPORARY
from tests.crash.site import AGENTS, Site
from tests.support.waiting import wait_until

Begin = Callable[[Site, random.Random], AbstractContextManager[None]]
"""Start of a fault, which lasts while the context is open."""


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    Attributes:
        name: unique name.
        begin: starts the fault.
        seconds: minimum and maximum duration; 0 for a fault without duration.
    """

    name: str
    begin: Begin
    seconds: tuple[float, float] = (0.0, 0.0)


def _kill(*daemons: str, times: int = 1) -> Begin:
    @contextmanager
    def fault(site: Site, chance: random.Random) -> Iterator[None]:
        for turn in range(times):
            starts = {name: len(site.daemons[name].sessions) for name in daemons}
            for name in daemons:
                site.daemons[name].kill()
            if turn + 1 < times:  # kill it again during its recovery
                wait(lambda starts=starts: all(len(site.daemons[n].sessions) > c for n, c in starts.items()))  # type: ignore[misc]
                pause(chance.uniform(0.1, 4.0))
        yield

    return fault


def _freeze(daemon: str) -> Begin:
    @contextmanager
    def fault(site: Site, _: random.Random) -> Iterator[None]:
        site.daemons[daemon].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            site.daemons[daemon].signal(signal.SIGCONT)

    return fault


def _full(disk: str, daemon: str, *, killed: bool = False) -> Begin:
    @contextmanager
    def fault(site: Site, _: random.Random) -> Iterator[None]:
        victim = site.daemons[daemon]
        victim.may_end = victim.in_trouble = True
        site.disks[disk].fill()
        try:
            if killed:
                victim.kill()
            yield
        finally:
            site.disks[disk].free()
            victim.may_end = victim.in_trouble = False

    return fault


def _syncs(
    disk: str, daemon: str, *, error: int = 0, every: tuple[int, int] = (1, 1), delay_seconds: float = 0.0
) -> Begin:
    @contextmanager
    def fault(site: Site, chance: random.Random) -> Iterator[None]:
        victim = site.daemons[daemon]
        victim.may_end = victim.in_trouble = error != 0
        victim.shim.disturb_syncs(
            site.disks[disk].folder, error=error, every=chance.randint(*every), delay_seconds=delay_seconds
        )
        try:
            yield
        finally:
            victim.shim.reset()
            victim.may_end = victim.in_trouble = False

    return fault


def _killed_writing(disk: str, daemon: str, *, syncs: int = 0, changes: int = 0, times: int = 3) -> Begin:
    """Kill the daemon before one of its first syncs, or of its first visible changes. The number varies each time."""

    @contextmanager
    def fault(site: Site, chance: random.Random) -> Iterator[None]:
        victim = site.daemons[daemon]
        victim.may_die = True
        try:
            for _ in range(times):
                starts = len(victim.sessions)
                if syncs:
                    victim.shim.die_at_sync(site.disks[disk].folder, chance.randint(2, syncs))
                else:
                    victim.shim.die_before(site.disks[disk].folder, chance.randint(2, changes), skipped=TEMPORARY)
                wait(lambda starts=starts: len(victim.sessions) > starts)  # type: ignore[misc]
        finally:
            victim.shim.reset()
        yield
        victim.may_die = False

    return fault


@contextmanager
def _locked_store(site: Site, _: random.Random) -> Iterator[None]:
    """Lock the store's folder from another process while the hub is down. The hub has to wait."""
    hub = site.daemons["hub"]
    hub.may_end = True
    lock = os.open(site.store / "gpufleet.lock", os.O_RDWR | os.O_CREAT)
    hub.kill()
    wait(lambda: _locked(lock))
    try:
        yield
    finally:
        os.close(lock)
        hub.may_end = False


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clock(daemon: str, least: float, most: float) -> Begin:
    """Step the daemon's wall clock, and step it back when the fault ends."""

    @contextmanager
    def fault(site: Site, chance: random.Random) -> Iterator[None]:
        shim = site.daemons[daemon].shim
        shim.set_clock(chance.choice((least, most)) * chance.uniform(0.5, 1.0))
        try:
            yield
        finally:
            shim.set_clock(0.0)

    return fault


def _network(link: str, mode: Mode) -> Begin:
    @contextmanager
    def fault(site: Site, _: random.Random) -> Iterator[None]:
        site.network.set_mode(site.links[link], mode)
        try:
            yield
        finally:
            site.network.set_mode(site.links[link], Mode.PASS)

    return fault


def _responses_lost_then_cut(link: str) -> Begin:
    """Lose the responses of the last batches, then cut the link for a long time."""

    @contextmanager
    def fault(site: Site, _: random.Random) -> Iterator[None]:
        site.network.set_mode(site.links[link], Mode.LOSE_ANSWERS)
        pause(3)
        site.network.set_mode(site.links[link], Mode.CUT)
        try:
            yield
        finally:
            site.network.set_mode(site.links[link], Mode.PASS)

    return fault


def _all() -> Iterator[Fault]:
    for name in (*AGENTS, "relay", "hub"):
        yield Fault(f"kill {name}", _kill(name))
        yield Fault(f"disk full under {name}", _full(name, name), (3, 8))
        yield Fault(f"disk full under {name}, killed", _full(name, name, killed=True), (4, 8))
        yield Fault(f"syncs fail under {name}", _syncs(name, name, error=errno.EIO), (3, 6))
    yield Fault("kill relay again and again", _kill("relay", times=4))
    yield Fault("kill hub again and again", _kill("hub", times=4))
    yield Fault("kill everything", _kill("hub", "relay", *AGENTS))
    yield Fault("freeze relay", _freeze("relay"), (4, 8))
    yield Fault("freeze hub", _freeze("hub"), (4, 8))
    yield Fault("disk full under store", _full("store", "hub"), (4, 10))
    yield Fault("disk full under store, hub killed", _full("store", "hub", killed=True), (4, 8))
    yield Fault("syncs fail under store", _syncs("store", "hub", error=errno.EIO), (3, 6))
    yield Fault("some syncs fail under store", _syncs("store", "hub", error=errno.EIO, every=(30, 160)), (8, 15))
    yield Fault("some syncs fail under hub", _syncs("hub", "hub", error=errno.EIO, every=(3, 12)), (4, 8))
    yield Fault("some syncs fail under relay", _syncs("relay", "relay", error=errno.EIO, every=(2, 5)), (4, 8))
    yield Fault("slow store", _syncs("store", "hub", delay_seconds=0.05), (5, 10))
    yield Fault("slow log under hub", _syncs("hub", "hub", delay_seconds=0.3), (4, 8))
    yield Fault("hub dies in the middle of a write to the store", _killed_writing("store", "hub", syncs=150))
    yield Fault("hub dies in the middle of a commit of the store", _killed_writing("store", "hub", changes=80))
    yield Fault("hub dies in the middle of a write to log or registry", _killed_writing("hub", "hub", syncs=60))
    yield Fault("relay dies in the middle of a write", _killed_writing("relay", "relay", syncs=60))
    yield Fault("agent-a dies in the middle of a write", _killed_writing("agent-a", "agent-a", syncs=8))
    yield Fault("store locked by another process", _locked_store, (3, 8))
    # A row measured ten minutes after its receipt is dropped by design: clock steps stay below that.
    for name in AGENTS:
        yield Fault(f"clock of {name} stepped", _clock(name, -3600, 300), (3, 6))
    yield Fault("clock of relay stepped", _clock("relay", -86_400, 86_400), (3, 6))
    yield Fault("clock of hub stepped", _clock("hub", -240, 86_400), (3, 6))
    for link in ("agents", "upstream"):
        for mode in Mode:
            if mode is not Mode.PASS:
                yield Fault(f"network {mode.value}, {link}", _network(link, mode), (4, 8))
    yield Fault("network lose-answers, senders", _network("senders", Mode.LOSE_ANSWERS), (3, 6))
    yield Fault("network half-close, direct", _network("direct", Mode.HALF_CLOSE), (3, 6))
    yield Fault("outage longer than a spool keeps", _network("agents", Mode.CUT), (72, 80))
    for link in ("agents", "upstream"):
        yield Fault(f"answers lost, then an outage, {link}", _responses_lost_then_cut(link), (65, 75))


FAULTS: dict[str, Fault] = {fault.name: fault for fault in _all()}
"""All faults by name."""


def wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a condition. Raises AssertionError."""
    wait_until(condition, seconds=seconds, what="the fault to take hold")


def pause(seconds: float) -> None:
    """Wait while the load continues. The schedule sets the duration of faults."""
    time.sleep(seconds)
