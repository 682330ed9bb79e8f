"""A dear answer is made once for all who ask; a cheap one for each."""

import asyncio

import pytest

from gpufleet.hub.query.overview import MAX_AGE_SECONDS, SHARED_FROM_SECONDS, VALIDITY_FACTOR, SharedAnswer
from tests.fakes.clock import FakeClock


class Question:
    """Counts how often it is answered; an answer takes as long as it is told to."""

    def __init__(self, takes: float) -> None:
        self.clock = FakeClock()
        self.takes = takes
        self.times = 0
        self.broken = False
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.shared = SharedAnswer(self.answer, self.clock)

    async def answer(self) -> int:
        self.times += 1
        mine = self.times
        await self.go_on.wait()
        self.clock.advance(self.takes)
        if self.broken:
            raise RuntimeError("broken")
        return mine


async def test_a_cheap_answer_is_made_for_each() -> None:
    question = Question(0.9 * SHARED_FROM_SECONDS)
    assert [await question.shared.get() for _ in range(3)] == [1, 2, 3]


async def test_a_dear_one_is_given_for_a_time_in_proportion() -> None:
    question = Question(1.0)
    assert await question.shared.get() == 1
    question.clock.advance(VALIDITY_FACTOR - 0.01)
    assert await question.shared.get() == 1
    question.clock.advance(0.02)
    assert await question.shared.get() == 2


async def test_no_answer_is_older_than_the_longest() -> None:
    question = Question(60.0)
    assert await question.shared.get() == 1
    question.clock.advance(MAX_AGE_SECONDS + 0.01)
    assert await question.shared.get() == 2


async def test_who_asks_meanwhile_gets_the_same() -> None:
    question = Question(20.0)
    await question.shared.get()
    question.clock.advance(MAX_AGE_SECONDS + 1)
    question.go_on.clear()
    asked = [asyncio.ensure_future(question.shared.get()) for _ in range(5)]
    await asyncio.sleep(0)
    asked[0].cancel()  # the first, for whom it is made, goes away
    await asyncio.sleep(0)
    question.go_on.set()
    assert await asyncio.gather(*asked[1:]) == [2] * 4
    assert asked[0].cancelled()


async def test_what_gets_cheap_is_made_for_each_again() -> None:
    question = Question(1.0)
    await question.shared.get()
    question.takes = 0.0
    question.clock.advance(VALIDITY_FACTOR)
    assert [await question.shared.get() for _ in range(2)] == [2, 3]


async def test_a_failure_is_told_to_all_who_waited_and_kept_from_nobody() -> None:
    question = Question(1.0)
    await question.shared.get()
    question.clock.advance(VALIDITY_FACTOR)
    question.broken = True
    failures = await asyncio.gather(*(question.shared.get() for _ in range(2)), return_exceptions=True)
    assert [str(one) for one in failures] == ["broken", "broken"]
    assert question.times == 2
    question.broken = False
    assert await question.shared.get() == 3


async def test_a_failure_of_a_cheap_one_is_told() -> None:
    question = Question(0.0)
    question.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        await question.shared.get()
