"""Passes of readers, built by hand."""

from collections.abc import Mapping

from gpufleet.agent.collect.state import AgentState, Outcome
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, PciFunction
from gpufleet.model.reading import DimValue, Round, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.clock import FakeClock

INTERVALS = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0, Lane.EVENT: 1.0}


def gpu(number: int, *, side: Side = Side.HOST) -> View:
    return View(
        kind=ViewKind.GPU,
        side=side,
        uuid=f"GPU-{number:08x}-0000",
        pci_address=f"0000:{number + 16:02x}:00.0",
        index=number,
    )


def function(number: int, driver: str | None, **changes: object) -> PciFunction:
    known: dict[str, object] = {
        "address": f"0000:{number + 16:02x}:00.0",
        "vendor": NVIDIA_VENDOR,
        "device": 0x2335,
        "class_code": 0x030200,
        "driver": driver,
    }
    return PciFunction(**{**known, **changes})  # type: ignore[arg-type]


class World:
    """Agent state and clock, updated pass by pass."""

    def __init__(self, readers: Mapping[str, tuple[Lane, ...]], name: str | None = None) -> None:
        self.clock = FakeClock()
        statuses = [
            ReaderStatus(reader=reader, lane=lane, state=ReaderState.NEVER, interval_seconds=INTERVALS[lane])
            for reader, lanes in readers.items()
            for lane in lanes
        ]
        self.state = AgentState(Machine(name="from-config"), statuses, name=name)

    def sample(
        self,
        reader: str,
        lane: Lane,
        view: View | None,
        values: Mapping[str, Value | Absent],
        dims: tuple[DimValue, ...] = (),
    ) -> Sample:
        at = self.clock.now_ns()
        return Sample(view=view, reader=reader, lane=lane, measured_at=at, values=dict(values), dims=dims)

    def outcome(
        self,
        reader: str,
        lane: Lane,
        done: Round | None = None,
        failure: Absent | None = None,
    ) -> Outcome:
        error = failure.detail if failure else (done.errors[0] if done and done.errors else "")
        state = ReaderState.FAILED if failure else ReaderState.PARTIAL if error else ReaderState.OK
        return Outcome(
            status=ReaderStatus(
                reader=reader,
                lane=lane,
                state=state,
                interval_seconds=INTERVALS[lane],
                last_attempt=self.clock.now_ns(),
                last_success=None if failure else self.clock.now_ns(),
                duration_seconds=0.25,
                error_class=failure.reason if failure else "",
                last_error=error,
            ),
            round=done,
            failure=failure,
            ended_at=self.clock.now_ns(),
            ended=self.clock.monotonic(),
        )

    def passed(
        self,
        reader: str,
        lane: Lane,
        *samples: Sample,
        inventory: tuple[PciFunction, ...] | None = None,
        machine: Machine | None = None,
        errors: tuple[str, ...] = (),
    ) -> Outcome:
        """Apply a pass that returned samples."""
        done = Round(samples=samples, inventory=inventory, machine=machine, errors=errors)
        outcome = self.outcome(reader, lane, done)
        self.state.apply(outcome)
        return outcome

    def failed(self, reader: str, lane: Lane, failure: Absent, done: Round | None = None) -> Outcome:
        """Apply a pass that failed as a whole."""
        outcome = self.outcome(reader, lane, done, failure)
        self.state.apply(outcome)
        return outcome
