"""Shared answers: an expensive answer serves all clients for a while, a cheap answer is computed per request.

Counts of open findings in the overview.
"""

import asyncio
from pathlib import Path

import pytest

from gpufleet.hub.query.finding_records import RuleEvaluation
from gpufleet.hub.query.overview import MAX_AGE_SECONDS, SHARED_FROM_SECONDS, VALIDITY_FACTOR, SharedAnswer
from gpufleet.model.finding import Severity
from gpufleet.model.time import NANOS
from tests.fakes.clock import FakeClock
from tests.hub.liveness.fake_clock_hub import FakeClockHub
from tests.support.findings import make_finding


class Query:
    """A query that counts its executions and duration a configurable time."""

    def __init__(self, duration: float) -> None:
        self.clock = FakeClock()
        self.duration = duration
        self.executions = 0
        self.failing = False
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.shared = SharedAnswer(self.answer, self.clock)

    async def answer(self) -> int:
        self.executions += 1
        number = self.executions
        await self.proceed.wait()
        self.clock.advance(self.duration)
        if self.failing:
            raise RuntimeError("failing")
        return number


async def test_cheap_answer_is_computed_per_request() -> None:
    query = Query(0.9 * SHARED_FROM_SECONDS)
    assert [await query.shared.get() for _ in range(3)] == [1, 2, 3]


async def test_expensive_answer_is_shared_in_proportion_to_its_cost() -> None:
    query = Query(1.0)
    assert await query.shared.get() == 1
    query.clock.advance(VALIDITY_FACTOR - 0.01)
    assert await query.shared.get() == 1
    query.clock.advance(0.02)
    assert await query.shared.get() == 2


async def test_shared_answer_has_a_maximum_age() -> None:
    query = Query(60.0)
    assert await query.shared.get() == 1
    query.clock.advance(MAX_AGE_SECONDS + 0.01)
    assert await query.shared.get() == 2


async def test_concurrent_requests_share_one_answer() -> None:
    query = Query(20.0)
    await query.shared.get()
    query.clock.advance(MAX_AGE_SECONDS + 1)
    query.proceed.clear()
    requests = [asyncio.ensure_future(query.shared.get()) for _ in range(5)]
    await asyncio.sleep(0)
    requests[0].cancel()  # the request that started the query
    await asyncio.sleep(0)
    query.proceed.set()
    assert await asyncio.gather(*requests[1:]) == [2] * 4
    assert requests[0].cancelled()


async def test_query_that_becomes_cheap_is_no_longer_shared() -> None:
    query = Query(1.0)
    await query.shared.get()
    query.duration = 0.0
    query.clock.advance(VALIDITY_FACTOR)
    assert [await query.shared.get() for _ in range(2)] == [2, 3]


async def test_failure_reaches_all_waiting_requests_and_is_not_cached() -> None:
    query = Query(1.0)
    await query.shared.get()
    query.clock.advance(VALIDITY_FACTOR)
    query.failing = True
    failures = await asyncio.gather(*(query.shared.get() for _ in range(2)), return_exceptions=True)
    assert [str(failure) for failure in failures] == ["failing", "failing"]
    assert query.executions == 2
    query.failing = False
    assert await query.shared.get() == 3


async def test_failure_of_a_cheap_query_propagates() -> None:
    query = Query(0.0)
    query.failing = True
    with pytest.raises(RuntimeError, match="failing"):
        await query.shared.get()


async def test_overview_counts_open_findings_by_severity_and_cluster(tmp_path: Path) -> None:
    hub = FakeClockHub(tmp_path, "east", "west")
    at = hub.clock.now_ns()
    before = await hub.overview.fleet()
    hub.live_findings.found = (
        make_finding("hub.network", "", at, severity=Severity.CRITICAL),
        make_finding("gpu.lost", "east/m/gpu/1", at, severity=Severity.CRITICAL),
        make_finding("node.missing", "east/m", at),
    )
    hub.live_findings.status = RuleEvaluation(at=at - 200 * NANOS)
    after = await hub.overview.fleet()
    hub.end()
    assert (before.findings, {one.findings for one in before.clusters}) == (None, {None})
    assert after.findings == {Severity.CRITICAL: 2, Severity.WARNING: 1, Severity.INFO: 0}
    assert {one.cluster.id: one.findings for one in after.clusters} == {
        "east": {Severity.CRITICAL: 1, Severity.WARNING: 1, Severity.INFO: 0},
        "west": dict.fromkeys(Severity, 0),
    }
    assert (after.evaluation.age_seconds, after.evaluation.is_current) == (200.0, False)
