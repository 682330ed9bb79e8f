"""Letting go of the devices because an operator asks: two files in the agent's state folder.

`release.json` is the operator's word: while it is there, the agent holds no device. `released.json` is the agent's
answer: it is there once every device is closed. Both are only believed of root or the agent's own user.

Whether the agent holds the devices: carries out what an operator asks, and tells what became of it.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from gpufleet.agent.collect.pci import NVIDIA
from gpufleet.agent.collect.state import Outcome, State
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import Round, Sample
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)

WORDS = "released by operator"
REQUEST, ANSWER = "release.json", "released.json"
MAX_BYTES = 4096


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator asked.

    Attributes:
        since: nanoseconds since 1970 when it was asked.
        until: when it ends by itself, or None.
    """

    since: int
    until: int | None = None


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's answer: `pid` holds no device since `at` (nanoseconds since 1970), for the release of these times."""

    pid: int
    at: int
    since: int
    until: int | None = None


class ReleaseFolder:
    """The agent's side. Blocking, but only on small local files."""

    def __init__(self, folder: Path, now_ns: Callable[[], int]) -> None:
        """Take the folder of the two files, and the wall clock."""
        self._request, self._answer = folder / REQUEST, folder / ANSWER
        self._now_ns = now_ns
        self._refused = False

    def current(self) -> Release | None:
        """Return the release in force, or None. One that is over is removed."""
        release = self._read()
        if release is not None and release.until is not None and self._now_ns() >= release.until:
            with contextlib.suppress(OSError):
                self._request.unlink()
            return None
        return release

    def answer(self, release: Release) -> None:
        """Say that every device is closed."""
        put(self._answer, Released(pid=os.getpid(), at=self._now_ns(), since=release.since, until=release.until))

    def answered(self) -> Release | None:
        """Return the release that an agent, maybe an earlier one, last answered; None if its answer was taken back."""
        answer = read_answer(self._answer.parent)
        return None if answer is None else Release(since=answer.since, until=answer.until)

    def retract(self) -> None:
        """Take the answer back: devices are held, or are about to be."""
        with contextlib.suppress(OSError):
            self._answer.unlink()

    def _read(self) -> Release | None:
        try:
            descriptor = os.open(self._request, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()):
                if not self._refused:
                    log.warning("%s is not of root or of this agent's user: it is passed over", self._request)
                self._refused = True
                return None
            self._refused = False
            try:
                return msgspec.json.decode(file.read(MAX_BYTES), type=Release)
            except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
                return Release(since=about.st_mtime_ns)  # somebody asked, in whatever words: letting go harms nobody


def put(path: Path, content: Release | Released) -> None:
    """Write a file as a whole, for the agent's user and root to read; raises OSError."""
    fresh = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content))
    fresh.replace(path)


def read_answer(folder: Path) -> Released | None:
    """Return the agent's answer, or None while there is none."""
    try:
        return msgspec.json.decode((folder / ANSWER).read_bytes()[:MAX_BYTES], type=Released)
    except (OSError, msgspec.MsgspecError):
        return None


def withheld() -> Absent:
    """Return why nothing is read of a device that was let go."""
    return Absent(Reason.NOT_COLLECTED, WORDS)


class Holding:
    """Lives on the event loop.

    Attributes:
        release: what is asked now, or None.
    """

    def __init__(self, folder: ReleaseFolder | None, readers: Iterable[str], clock: Clock) -> None:
        """Take where the operator's word is found, and the readers that hold devices."""
        self._folder = folder
        self._readers = frozenset(readers)
        self._clock = clock
        self._let_go: set[str] = set()
        self.release: Release | None = None
        self._before: Release | None = None
        if folder is not None:
            self._before = folder.answered()  # by the agent before: that it let go is told already
            folder.retract()

    def look(self) -> list[Event]:
        """See what is asked now; return the events that this is."""
        before, self.release = self._before, self._folder.current() if self._folder is not None else None
        self._before = self.release
        if before is not None and self.release is not None and before != self.release:
            self._answer()  # another release in its place: what was let go already is its answer too
        if (before is None) == (self.release is None):
            return []
        at = self._clock.now_ns()
        if self.release is not None:
            until = self.release.until
            attributes = {} if until is None else {"until": to_datetime(until).isoformat()}
            return [Event(view=None, kind=EventKind.DEVICES_RELEASED, at=at, attributes=attributes)]
        assert before is not None
        if self._folder is not None:
            self._folder.retract()
        self._let_go.clear()
        over = before.until is not None and at >= before.until
        why = "its time is over" if over else "an operator asked for it"
        return [Event(view=None, kind=EventKind.DEVICES_RESUMED, at=at, attributes={"why": why})]

    def why_not(self, reader: str) -> Absent | None:
        """Return why this reader may not read now, or None."""
        return withheld() if self.release is not None and reader in self._readers else None

    def take(self, outcome: Outcome, state: State) -> Outcome:
        """Note a reader that has let go; return its pass with the absence of everything it read before."""
        reader, lane = outcome.status.reader, outcome.status.lane
        if not outcome.withheld or outcome.failure is None or reader not in self._readers:
            return outcome
        if reader not in self._let_go:
            self._let_go.add(reader)
            self._answer()
        if lane is Lane.STATIC:
            return outcome  # what a device is does not change because nobody looks
        samples = tuple(
            _emptied(sample, outcome.failure, outcome.ended_at)
            for sample in _samples(state, reader, lane)
            if not _is_taken(sample, state)
        )
        return Outcome(
            status=outcome.status,
            round=Round(samples=samples, errors=(outcome.failure.detail,)),
            failure=outcome.failure,
            ended_at=outcome.ended_at,
            ended=outcome.ended,
            withheld=True,
        )

    def _answer(self) -> None:
        if self._folder is not None and self.release is not None and self._let_go >= self._readers:
            self._folder.answer(self.release)


def _samples(state: State, reader: str, lane: Lane) -> list[Sample]:
    kept = [state.machine_samples(), *state.views().values()]
    return [one[reader, lane].sample for one in kept if (reader, lane) in one]


def _is_taken(sample: Sample, state: State) -> bool:
    """Whether the bus shows the device with another driver, or not at all any more: it is no longer ours to tell of."""
    address = sample.view.pci_address if sample.view is not None else None
    if address is None or state.inventory is None:
        return False
    drivers = {function.address: function.driver for function in state.inventory.functions}
    return state.left_the_bus(address) or drivers.get(address, NVIDIA) != NVIDIA


def _emptied(sample: Sample, why: Absent, at: int) -> Sample:
    names = [name for name in sample.values if name in CATALOGUE]
    return Sample(
        view=sample.view, reader=sample.reader, lane=sample.lane, measured_at=at, values=dict.fromkeys(names, why)
    )
