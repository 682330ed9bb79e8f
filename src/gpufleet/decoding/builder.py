"""Snapshots built from recorded reader passes, with the same code as in an agent."""

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.collect.state import AgentState, Outcome
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.event import Event
from gpufleet.model.holdings import DeviceHolders
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Round, Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderState, ReaderStatus

CAPABILITIES = {"push": "not requested: this was decoded"}


class SnapshotBuilder:
    """Builder of the snapshot of one machine from reader passes.

    Args:
        machine: identity of the machine.
        at: time of the snapshot if no pass has one, nanoseconds since 1970.
        events: events of the machine, in any order.
        capabilities: statements of the document about its input, by name.
        holders: view key to the holders of its device.
    """

    def __init__(
        self,
        machine: Machine,
        at: int,
        events: Iterable[Event] = (),
        capabilities: Mapping[str, str] | None = None,
        holders: Mapping[str, DeviceHolders] | None = None,
    ) -> None:
        self._state = AgentState(machine, (), events=sorted(events, key=lambda event: event.at))
        self._state.holders = holders or {}
        self._at = at
        self._capabilities = {**CAPABILITIES, **(capabilities or {})}

    def take(
        self,
        samples: Iterable[Sample],
        *,
        statuses: Iterable[ReaderStatus] = (),
        errors: Sequence[str] = (),
        inventory: tuple[PciFunction, ...] | None = None,
        events: Iterable[Event] = (),
    ) -> None:
        """Add samples of any readers and lanes, and events. The newest sample of a subject takes precedence."""
        self._state.events.extend(events)
        given = {(status.reader, status.lane): status for status in statuses}
        passes: dict[tuple[str, Lane], list[Sample]] = {key: [] for key in given}
        for sample in sorted(samples, key=lambda sample: sample.measured_at):
            passes.setdefault((sample.reader, sample.lane), []).append(sample)
        for (reader, lane), members in passes.items():
            status = given.get((reader, lane)) or _derived_status(reader, lane, members, errors)
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
        """Return the snapshot."""
        return assemble(self._state, now=0.0, now_ns=self._at, capabilities=self._capabilities)


def _derived_status(reader: str, lane: Lane, members: Sequence[Sample], errors: Sequence[str]) -> ReaderStatus:
    at = max((sample.measured_at for sample in members), default=None)
    return ReaderStatus(
        reader=reader,
        lane=lane,
        state=ReaderState.PARTIAL if errors else ReaderState.OK,
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
