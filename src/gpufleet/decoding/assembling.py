"""Passes of readers that happened elsewhere, as snapshots: the same way that an agent makes its own."""

from collections.abc import Iterable, Sequence

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.collect.state import Outcome, State
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Round, Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderState, ReaderStatus

INTERVALS = {Lane.STATIC: 600.0, Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.EVENT: 10.0}
"""Seconds between passes that are shown where the bytes do not tell; nothing here is judged by them."""

CAPABILITIES = {"push": "not asked for: this was decoded"}


class Assembling:
    """One machine whose passes are taken in one by one.

    Args:
        machine: evidence of which it is.
        at: nanoseconds since 1970, for the document where no pass has a time.
        events: what happened there, in any order.
    """

    def __init__(self, machine: Machine, at: int, events: Iterable[Event] = ()) -> None:
        self._state = State(machine, (), events=sorted(events, key=lambda event: event.at))
        self._at = at

    def take(
        self,
        samples: Iterable[Sample],
        *,
        statuses: Iterable[ReaderStatus] = (),
        errors: Sequence[str] = (),
        inventory: tuple[PciFunction, ...] | None = None,
    ) -> None:
        """Take in samples of any readers and lanes; of one subject the newest counts."""
        told = {(status.reader, status.lane): status for status in statuses}
        passes: dict[tuple[str, Lane], list[Sample]] = {key: [] for key in told}
        for sample in sorted(samples, key=lambda sample: sample.measured_at):
            passes.setdefault((sample.reader, sample.lane), []).append(sample)
        for (reader, lane), members in passes.items():
            status = told.get((reader, lane)) or _status(reader, lane, members, errors)
            self._state.statuses[reader, lane] = status
            self._state.apply(
                Outcome(
                    status=status,
                    round=Round(samples=tuple(members), errors=tuple(errors), inventory=inventory),
                    failure=_failure(status),
                    ended_at=self._at,
                    ended=0.0,
                )
            )

    def snapshot(self) -> Snapshot:
        """Return the document."""
        return assemble(self._state, now=0.0, now_ns=self._at, capabilities=CAPABILITIES)


def _status(reader: str, lane: Lane, members: Sequence[Sample], errors: Sequence[str]) -> ReaderStatus:
    at = max((sample.measured_at for sample in members), default=None)
    return ReaderStatus(
        reader=reader,
        lane=lane,
        state=ReaderState.PARTIAL if errors else ReaderState.OK,
        interval_seconds=INTERVALS[lane],
        last_attempt=at,
        last_success=at,
        error_class="partial" if errors else "",
        last_error=errors[0] if errors else "",
    )


def _failure(status: ReaderStatus) -> Absent | None:
    if status.state is not ReaderState.FAILED:
        return None
    known = status.error_class in set(Reason)
    return Absent(Reason(status.error_class) if known else Reason.READER_FAILED, status.last_error)
