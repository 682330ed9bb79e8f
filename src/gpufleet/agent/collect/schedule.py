"""The loop of one reader: each lane on its interval, one pass at a time. Every failure becomes a status."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from gpufleet.agent.collect.state import FIRST_PASS_ORDER, Outcome, Timetable
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.time import NANOS
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader

log = logging.getLogger(__name__)

MAX_LOGGED_ERRORS = 64
"""Distinct errors that are logged until the reader works again: a hostile source may vary its errors."""

MAX_ERROR_LENGTH = 1024
"""Characters of an error that are kept: the limit of the batch format."""

MAX_PROFILES = 4096
"""Maximum number of MIG devices whose profile is remembered; the one that was listed first is dropped."""


class ReaderLoop:
    """Runs one reader."""

    def __init__(
        self,
        reader: Reader,
        *,
        intervals: Mapping[Lane, float],
        timeout_seconds: float,
        clock: Clock,
        report: Callable[[Outcome], None],
        nothing_to_read: Callable[[Absent], bool | None] = lambda _: False,
        withheld: Callable[[], Absent | None] = lambda: None,
    ) -> None:
        """Take the parts.

        Args:
            reader: the reader to run.
            intervals: seconds between passes by lane.
            timeout_seconds: limit of one pass.
            clock: wall and monotonic time.
            report: called with the outcome of each pass.
            nothing_to_read: returns whether a failure means that this machine has nothing to read; None while unknown.
            withheld: returns why the reader must not read now, or None. A withheld reader is closed.
        """
        self.reader = reader
        self._intervals = {lane: intervals[lane] for lane in FIRST_PASS_ORDER if lane in reader.lanes}
        self._timeout = timeout_seconds
        self._clock = clock
        self._report = report
        self._nothing_to_read = nothing_to_read
        self._withheld = withheld
        self._is_closed = True
        self._logged: set[str] = set()
        self._profiles: dict[str, str] = {}  # view key of a MIG device to its newest profile
        self._statuses = {
            lane: ReaderStatus(reader=reader.name, lane=lane, state=ReaderState.NEVER, interval_seconds=interval)
            for lane, interval in self._intervals.items()
        }

    @property
    def statuses(self) -> tuple[ReaderStatus, ...]:
        """Status of each lane."""
        return tuple(self._statuses.values())

    async def run(self) -> None:
        """Run until cancelled, then close the reader."""
        timetable = Timetable(self._intervals, self._clock.monotonic())
        try:
            while True:
                due, lane = timetable.next()
                await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
                outcome = await self.run_pass(lane)
                self._report(outcome)
                timetable.done(lane, self._clock.monotonic())
                if self.lists_recreated(outcome):
                    timetable.hasten(self._clock.monotonic())
        finally:
            try:
                await self.reader.close()
            except ReaderError as error:
                log.warning("reader %s: %s", self.reader.name, error)

    def lists_recreated(self, outcome: Outcome) -> bool:
        """Return whether a pass lists a MIG device with another profile than an earlier pass.

        A device that is created again at the same place has the UUID of its predecessor. Name and sizes of the
        predecessor are outdated before the slower lanes are due.
        """
        found = False
        for sample in outcome.round.samples if outcome.round is not None else ():
            profile = sample.values.get("mig_profile")
            if sample.view is not None and isinstance(profile, str):
                found |= self._profiles.pop(sample.view.key, profile) != profile
                self._profiles[sample.view.key] = profile
        while len(self._profiles) > MAX_PROFILES:
            del self._profiles[next(iter(self._profiles))]
        return found

    async def run_pass(self, lane: Lane) -> Outcome:
        """Run one pass of one lane within the time limit."""
        began_at, began = self._clock.now_ns(), self._clock.monotonic()
        done: Round | None = None
        failure: Absent | None = None
        error_class = ""
        age = 0.0
        try:
            failure = await self._withhold()
            if failure is None:
                self._is_closed = False
                async with asyncio.timeout(self._timeout):
                    done = await self.reader.read(lane)
                age = done.age_seconds
            else:
                error_class = failure.reason
        except TimeoutError:
            error_class = Reason.TIMEOUT
            failure = Absent(Reason.TIMEOUT, f"the {lane} pass did not end within {self._timeout:g} s")
        except ReaderError as error:
            done, error_class, failure = error.round, error.absence, Absent(error.absence, _bounded(str(error)))
            age = error.age_seconds
        except Exception as error:  # the one catch point: a defect costs its own pass
            error_class = type(error).__name__
            failure = Absent(Reason.READER_FAILED, _bounded(f"{error_class}: {error}"))
            log.debug("reader %s, lane %s: defect", self.reader.name, lane, exc_info=True)
        ended, ended_at = self._clock.monotonic(), self._clock.now_ns()
        before = self._statuses[lane]
        message = failure.detail if failure else _first(done.errors if done else ())
        status = ReaderStatus(
            reader=self.reader.name,
            lane=lane,
            state=ReaderState.FAILED if failure else ReaderState.PARTIAL if message else ReaderState.OK,
            interval_seconds=before.interval_seconds,
            last_attempt=min(began_at, ended_at - round(age * NANOS)),
            last_success=before.last_success if failure else ended_at,
            duration_seconds=ended - began,
            failures=before.failures + 1 if failure else 0,
            error_class=error_class or ("partial" if message else ""),
            last_error=message,
        )
        self._statuses[lane] = status
        self._log_change(status, failure)
        return Outcome(
            status=status,
            round=done,
            failure=failure,
            ended_at=ended_at,
            ended=ended,
            withheld=self._is_closed and failure is not None,
        )

    async def _withhold(self) -> Absent | None:
        why = self._withheld()
        if why is not None and not self._is_closed:
            await self.reader.close()
            self._is_closed = True
        return why

    def _log_change(self, status: ReaderStatus, failure: Absent | None) -> None:
        """Log each error once, from whichever lane, until every lane works again."""
        if status.last_error and status.last_error not in self._logged and len(self._logged) < MAX_LOGGED_ERRORS:
            excused = failure is not None and self._nothing_to_read(failure)
            if excused is None:
                return  # a later pass decides
            self._logged.add(status.last_error)
            if excused:
                log.info("reader %s: nothing to read on this machine: %s", status.reader, status.last_error)
                return
            log.warning("reader %s, lane %s: %s: %s", status.reader, status.lane, status.state, status.last_error)
        elif self._logged and not any(lane.last_error for lane in self._statuses.values()):
            self._logged.clear()
            log.info("reader %s works again", status.reader)


def _first(errors: tuple[str, ...]) -> str:
    return _bounded(errors[0]) if errors else ""


def _bounded(message: str) -> str:
    message = message.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded in a batch
    return message if len(message) <= MAX_ERROR_LENGTH else message[: MAX_ERROR_LENGTH - 1] + "…"
