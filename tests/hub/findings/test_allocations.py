"""Answers for allocations in turns."""

import msgspec
import pytest

from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.attribution.contract import unavailable
from gpufleet.fleet.facts.allocations import AnswerReading
from gpufleet.hub.findings.allocations import MAX_SECONDS, VALID_SECONDS, AllocationTurns
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.errors import StoreError
from tests.fakes.clock import FakeClock
from tests.fleet.facts.test_allocations import BEFORE, LATER, allocation, answered, device


class Answers:
    """Answers for allocations; those in `faulty` have no source."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.requested: list[str] = []
        self.faulty: set[str] = set()
        self.seconds = 0.0
        self.is_down = False

    def __call__(self, one: Allocation) -> AllocationAnswer:
        if self.is_down:
            raise StoreError("the store is down")
        self.clock.advance(self.seconds)
        self.requested.append(one.id)
        return unavailable(one, Reason.STALE, "") if one.id in self.faulty else answered(one, device(1))

    def turn(self, turns: AllocationTurns) -> list[str]:
        """Take the turn of a minute; return the allocations that were requested for."""
        self.requested.clear()
        self.clock.advance(60)
        turns.take_turn()
        return list(self.requested)


@pytest.fixture
def answers() -> Answers:
    return Answers()


def test_faulty_allocations_are_confirmed_each_turn(answers: Answers) -> None:
    claims = Claims([allocation(f"a{number}", f"m{number}") for number in range(8)])
    turns = AllocationTurns(answers, claims, answers.clock, max_answers=4)
    answers.faulty = {"a1", "a5", "a6", "a7"}
    assert answers.turn(turns) == ["a0", "a1", "a2", "a3"]
    assert answers.turn(turns) == ["a1", "a4", "a5", "a6"]
    assert answers.turn(turns) == ["a1", "a5", "a7", "a0"]
    known = {one.id: one.answer and one.answer.answers for one in turns.read()}
    assert known == {f"a{number}": f"a{number}" not in answers.faulty for number in range(8)}


def test_answers_expire(answers: Answers) -> None:
    turns = AllocationTurns(answers, Claims([allocation("a")]), answers.clock)
    answers.turn(turns)
    answers.clock.advance(VALID_SECONDS - 1)
    assert turns.read()[0].answer is not None
    answers.clock.advance(1)
    assert turns.read()[0].answer is None


def test_slow_answers_end_the_turn(answers: Answers) -> None:
    turns = AllocationTurns(answers, Claims([allocation(f"a{one}", f"m{one}") for one in range(9)]), answers.clock)
    answers.seconds = MAX_SECONDS / 2
    assert answers.turn(turns) == ["a0", "a1"]
    assert answers.turn(turns) == ["a2", "a3"]


def test_earlier_answers_count_while_the_store_is_down(answers: Answers) -> None:
    turns = AllocationTurns(answers, Claims([allocation("a")]), answers.clock)
    answers.turn(turns)
    answers.is_down = True
    with pytest.raises(StoreError):
        turns.take_turn()
    assert turns.read()[0].answer == AnswerReading(answers=True, devices=1, machine="m")


def test_ended_allocations_are_retired_and_later_ones_left_out(answers: Answers) -> None:
    ended, later = allocation("ended", valid_to=LATER), allocation("later", valid_from=LATER)
    closed = msgspec.structs.replace(allocation("closed"), closed_at=BEFORE)
    turns = AllocationTurns(answers, Claims([ended, later, closed]), answers.clock)
    answers.clock.advance(10 * 366 * 86400)
    found = {one.id: one.retired for one in turns.read()}
    assert found == {"ended": True, "later": False, "closed": True}
    assert answers.turn(turns) == ["later"]
    answers.clock.advance(-10 * 366 * 86400)
    assert {one.id for one in turns.read()} == {"ended", "closed"}


def test_tenants_of_one_machine_overlap(answers: Answers) -> None:
    claims = Claims(
        [
            *(allocation("a"), allocation("b", tenant="u"), allocation("c", tenant="u"), allocation("d", tenant="v")),
            *(allocation("e", "n"), allocation("unbound", "o", bound=False)),
        ]
    )
    found = {one.id: one for one in AllocationTurns(answers, claims, answers.clock).read()}
    overlaps = {id_: one.overlapping_tenants for id_, one in found.items()}
    assert overlaps == {"a": 2, "b": 2, "c": 2, "d": 2, "e": 0, "unbound": None}
    assert found["e"].machine == "n"
    assert found["unbound"].machine is None
