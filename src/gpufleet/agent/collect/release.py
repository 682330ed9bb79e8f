"""Device release: an operator makes the agent close all GPUs, for example before passthrough.

Two files in the agent's state folder carry it. `release.json` is the operator's request: while it exists, the agent
holds no device. `released.json` is the agent's answer: it exists once every device is closed. Both files count only if
root or the agent's own user owns them.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from gpufleet.agent.collect.pci import NVIDIA
from gpufleet.agent.collect.state import AgentState, Outcome
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import Round, Sample
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)

RELEASED_DETAIL = "released by operator"
REQUEST, ANSWER = "release.json", "released.json"
MAX_BYTES = 4096


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's request.

    Attributes:
        since: time of the request, nanoseconds since 1970.
        until: when the release ends by itself, or None.
    """

    since: int
    until: int | None = None


class ReleaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's answer: process `pid` has held no device since `at` (nanoseconds since 1970), for this request."""

    pid: int
    at: int
    since: int
    until: int | None = None


class ReleaseFolder:
    """The agent's access to the two files. Blocking, but only on small local files."""

    def __init__(self, folder: Path, now_ns: Callable[[], int]) -> None:
        """Take the folder of the two files, and the wall clock."""
        self._request, self._answer = folder / REQUEST, folder / ANSWER
        self._now_ns = now_ns
        self._refused = False

    def current(self) -> Release | None:
        """Return the release in force, or None. An expired request is removed."""
        release = self._read()
        if release is not None and release.until is not None and self._now_ns() >= release.until:
            with contextlib.suppress(OSError):
                self._request.unlink()
            return None
        return release

    def answer(self, release: Release) -> None:
        """Record that every device is closed."""
        write_file(
            self._answer, ReleaseAnswer(pid=os.getpid(), at=self._now_ns(), since=release.since, until=release.until)
        )

    def answered(self) -> Release | None:
        """Return the release that this or an earlier agent answered last; None if the answer was retracted."""
        answer = read_answer(self._answer.parent)
        return None if answer is None else Release(since=answer.since, until=answer.until)

    def retract(self) -> None:
        """Remove the answer: devices are held, or are about to be."""
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
                    log.warning("%s is ignored: root or the agent's user must own it", self._request)
                self._refused = True
                return None
            self._refused = False
            try:
                return msgspec.json.decode(file.read(MAX_BYTES), type=Release)
            except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
                return Release(
                    since=about.st_mtime_ns
                )  # unreadable content still means a release: releasing is the safe choice


def write_file(path: Path, content: Release | ReleaseAnswer) -> None:
    """Replace a file atomically. Raises OSError."""
    fresh = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content))
    fresh.replace(path)


def read_answer(folder: Path) -> ReleaseAnswer | None:
    """Return the agent's answer, or None while there is none."""
    try:
        return msgspec.json.decode((folder / ANSWER).read_bytes()[:MAX_BYTES], type=ReleaseAnswer)
    except (OSError, msgspec.MsgspecError):
        return None


def withheld_absence() -> Absent:
    """Return the absence of every value of a released device."""
    return Absent(Reason.NOT_COLLECTED, RELEASED_DETAIL)


class DeviceRelease:
    """Carries out the operator's requests and reports the result. Lives on the event loop.

    Attributes:
        release: the release in force, or None.
    """

    def __init__(self, folder: ReleaseFolder | None, readers: Iterable[str], clock: Clock) -> None:
        """Take the folder of the two files, and the names of the readers that hold devices."""
        self._folder = folder
        self._readers = frozenset(readers)
        self._clock = clock
        self._released: set[str] = set()
        self.release: Release | None = None
        self._before: Release | None = None
        if folder is not None:
            self._before = folder.answered()  # an earlier agent reported this release already
            folder.retract()

    def poll(self) -> list[Event]:
        """Check for a request; return an event for each change."""
        before, self.release = self._before, self._folder.current() if self._folder is not None else None
        self._before = self.release
        if before is not None and self.release is not None and before != self.release:
            self._answer()  # a new request replaced the old one: devices released before count for it too
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
        self._released.clear()
        over = before.until is not None and at >= before.until
        why = "the release expired" if over else "an operator resumed it"
        return [Event(view=None, kind=EventKind.DEVICES_RESUMED, at=at, attributes={"why": why})]

    def why_not(self, reader: str) -> Absent | None:
        """Return why this reader must not read now, or None."""
        return withheld_absence() if self.release is not None and reader in self._readers else None

    def take(self, outcome: Outcome, state: AgentState) -> Outcome:
        """Note a reader that released its devices; return its pass with an absence for each value it read before."""
        reader, lane = outcome.status.reader, outcome.status.lane
        if not outcome.withheld or outcome.failure is None or reader not in self._readers:
            return outcome
        if reader not in self._released:
            self._released.add(reader)
            self._answer()
        if lane is Lane.STATIC:
            return outcome  # identity and static properties stay true while the device is released
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
        if self._folder is not None and self.release is not None and self._released >= self._readers:
            self._folder.answer(self.release)


def _samples(state: AgentState, reader: str, lane: Lane) -> list[Sample]:
    subjects = [state.machine_samples(), *state.views().values()]
    return [one[reader, lane].sample for one in subjects if (reader, lane) in one]


def _is_taken(sample: Sample, state: AgentState) -> bool:
    """Return whether the PCI bus lists the device with another driver or no longer: this agent stops reporting it."""
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
