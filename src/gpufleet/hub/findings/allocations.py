"""Answers for allocations. Each takes a few queries: a judgement computes a bounded number of them, in turns."""

from collections.abc import Callable, Sequence

import msgspec

from gpufleet.fleet.attribution.bindings import binding_at
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.attribution.contract import inactive_reason
from gpufleet.fleet.facts.allocations import (
    AllocationReading,
    AnswerReading,
    allocation_reading,
    answer_reading,
    expected_devices,
)
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.ports.clock import Clock

MAX_ANSWERS = 500
"""Maximum number of answers per judgement."""

MAX_SECONDS = 10.0
"""Time after which no further answer is computed in a judgement."""

VALID_SECONDS = 900.0
"""Age at which an answer expires."""


class _KnownAnswer(msgspec.Struct, frozen=True):
    """Answer, and the second at which it was computed."""

    reading: AnswerReading
    second: float


class AllocationTurns:
    """Newest answers of all allocations.

    Half of the answers of a judgement are for allocations without an answer from a source, or with too few devices, so
    that a fault is confirmed once a minute. The other half are for the allocations with the oldest answers.
    """

    def __init__(
        self,
        answer: Callable[[Allocation], AllocationAnswer],
        claims: Claims,
        clock: Clock,
        *,
        max_answers: int = MAX_ANSWERS,
    ) -> None:
        """Take the function that computes an answer, and all allocations."""
        self._answer = answer
        self._claims = claims
        self._clock = clock
        self._max_answers = max_answers
        self._known: dict[str, _KnownAnswer] = {}

    def read(self) -> list[AllocationReading]:
        """Return the state of the allocations that have begun, with the answers that are valid."""
        every, now, second = self._claims.allocations(), self._clock.now_ns(), self._clock.monotonic()
        valid = {id_: one.reading for id_, one in self._known.items() if second - one.second < VALID_SECONDS}
        found = (allocation_reading(one, valid.get(one.id), self._claims, now) for one in every)
        return [one for one in found if one is not None]

    def machines(self) -> frozenset[str]:
        """Return the ids of the machines that an allocation in force is bound to."""
        now = self._clock.now_ns()
        active = [one for one in self._claims.allocations() if inactive_reason(one, now) is None]
        return frozenset([bound.machine for one in active if (bound := binding_at(one, now)) is not None])

    def take_turn(self) -> None:
        """Compute the answers of this judgement.

        Raises:
            GpufleetError: if an answer cannot be computed.
        """
        began, now = self._clock.monotonic(), self._clock.now_ns()
        active = {one.id: one for one in self._claims.allocations() if inactive_reason(one, now) is None}
        self._known = {id_: one for id_, one in self._known.items() if id_ in active}
        for one in self._next(sorted(active.values(), key=self._age_place)):
            if self._clock.monotonic() - began >= MAX_SECONDS:
                return
            reading = answer_reading(self._answer(one))
            self._known[one.id] = _KnownAnswer(reading, self._clock.monotonic())

    def _age_place(self, allocation: Allocation) -> tuple[float, str]:
        known = self._known.get(allocation.id)
        return (-1.0 if known is None else known.second), allocation.id

    def _next(self, by_age: Sequence[Allocation]) -> Sequence[Allocation]:
        """Return the allocations of this turn."""
        faulty = [one for one in by_age if self._is_faulty(one)][: self._max_answers // 2]
        chosen = {one.id for one in faulty}
        others = [one for one in by_age if one.id not in chosen][: self._max_answers - len(faulty)]
        return [*faulty, *others]

    def _is_faulty(self, allocation: Allocation) -> bool:
        known = self._known.get(allocation.id)
        if known is None:
            return False
        devices, expected = known.reading.devices, expected_devices(allocation) or 0
        return not known.reading.answers or (devices is not None and devices < expected)
