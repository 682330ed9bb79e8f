"""Reader loop: passes, status after each kind of failure, and logging."""

import asyncio

import pytest

from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import Outcome
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ReaderError
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.model.status import ReaderState
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.runtime import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.readers import ScriptedReader
from tests.support.waiting import wait_until_async

INTERVALS = {Lane.FAST: 0.02, Lane.SLOW: 0.05, Lane.STATIC: 10.0}


def loop_of(reader: ScriptedReader, outcomes: list[Outcome] | None = None, timeout: float = 5.0) -> ReaderLoop:
    return ReaderLoop(
        reader,
        intervals=INTERVALS,
        timeout_seconds=timeout,
        clock=SystemClock(),
        report=(outcomes if outcomes is not None else []).append,
    )


@pytest.mark.parametrize(
    ("error", "error_class", "failure"),
    [
        (
            ReaderError(Reason.NO_DRIVER, "Driver Not Loaded"),
            "no_driver",
            Absent(Reason.NO_DRIVER, "Driver Not Loaded"),
        ),
        (ChannelError("gone"), "ChannelError", Absent(Reason.READER_FAILED, "ChannelError: gone")),
        (KeyError("x"), "KeyError", Absent(Reason.READER_FAILED, "KeyError: 'x'")),
        (TimeoutError(), "timeout", Absent(Reason.TIMEOUT, "the fast pass did not end within 5 s")),
    ],
)
async def test_failure_becomes_a_status_with_the_error_of_the_reader(
    error: Exception, error_class: str, failure: Absent
) -> None:
    loop = loop_of(ScriptedReader.always("r", error))
    first = await loop.run_pass(Lane.FAST)
    second = await loop.run_pass(Lane.FAST)
    assert first.failure == second.failure == failure
    assert first.status.state is ReaderState.FAILED
    assert (first.status.error_class, first.status.last_error) == (error_class, failure.detail)
    assert (first.status.failures, second.status.failures) == (1, 2)
    assert second.status.last_success is None
    assert second.status.last_attempt is not None


async def test_failed_reader_may_return_a_round() -> None:
    known = Round(errors=("x",))
    loop = loop_of(ScriptedReader.always("r", ReaderError(Reason.NO_LIBRARY, "none", round=known)))
    assert (await loop.run_pass(Lane.FAST)).round is known


async def test_partial_pass_is_reported_and_success_clears_the_error() -> None:
    rounds = iter([Round(errors=("GPU 5 hung", "GPU 6 too")), Round()])

    async def script(_: Lane) -> Round:
        return next(rounds)

    loop = loop_of(ScriptedReader("r", script))
    partial = (await loop.run_pass(Lane.FAST)).status
    assert (partial.state, partial.last_error, partial.failures) == (ReaderState.PARTIAL, "GPU 5 hung", 0)
    assert partial.last_success is not None
    recovered = (await loop.run_pass(Lane.FAST)).status
    assert (recovered.state, recovered.last_error, recovered.error_class) == (ReaderState.OK, "", "")


@pytest.mark.parametrize(
    "done", [ReaderError(Reason.TIMEOUT, "no reply", age_seconds=30), Round(errors=("GPU 5 hung",), age_seconds=30)]
)
async def test_repeated_error_keeps_the_time_of_its_attempt(done: Round | Exception) -> None:
    clock = FakeClock()
    reader = ScriptedReader.always("r", done)
    loop = ReaderLoop(reader, intervals=INTERVALS, timeout_seconds=5, clock=clock, report=lambda _: None)
    status = (await loop.run_pass(Lane.FAST)).status
    assert (status.last_attempt, bool(status.last_error)) == (clock.now_ns() - 30 * 10**9, True)


async def test_hanging_pass_times_out() -> None:
    async def script(_: Lane) -> Round:
        await asyncio.Event().wait()
        raise AssertionError

    outcome = await loop_of(ScriptedReader("r", script), timeout=0.05).run_pass(Lane.FAST)
    assert outcome.failure == Absent(Reason.TIMEOUT, "the fast pass did not end within 0.05 s")


async def test_error_text_is_bounded_like_on_the_wire() -> None:
    status = (await loop_of(ScriptedReader.always("r", ValueError("x" * 5000))).run_pass(Lane.FAST)).status
    assert len(status.last_error) <= 1024


async def test_loop_reads_every_lane_and_continues_after_failures() -> None:
    failing = iter([True, False, True])

    async def script(lane: Lane) -> Round:
        if lane is Lane.FAST and next(failing, False):
            raise ReaderError(Reason.DRIVER_ERROR, "now and then")
        return Round()

    outcomes: list[Outcome] = []
    reader = ScriptedReader("r", script, lanes=(Lane.FAST, Lane.SLOW, Lane.STATIC))
    task = asyncio.create_task(loop_of(reader, outcomes).run())

    async def enough() -> bool:
        return reader.passes.count(Lane.SLOW) >= 2 and reader.passes.count(Lane.FAST) >= 5

    await wait_until_async(enough)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.passes[:3] == [Lane.STATIC, Lane.SLOW, Lane.FAST]
    assert reader.passes.count(Lane.STATIC) == 1
    assert reader.closed == 1
    assert [outcome.status.lane for outcome in outcomes] == reader.passes[: len(outcomes)]


async def test_recreated_mig_device_is_described_at_once() -> None:
    """The driver derives UUIDs from places: a MIG device of another size can have the UUID of an earlier one."""
    view = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent="gpu/GPU-1")
    profiles = iter(["1g.18gb", "1g.18gb", "4g.71gb"])

    async def script(lane: Lane) -> Round:
        values: dict[str, Value | Absent] = {}
        if lane is Lane.FAST:
            values = {"mig_profile": next(profiles, "4g.71gb")}
        return Round(samples=(Sample(view=view, reader="r", lane=lane, measured_at=1, values=values),))

    reader = ScriptedReader("r", script, lanes=(Lane.FAST, Lane.SLOW, Lane.STATIC))
    loop = ReaderLoop(
        reader,
        intervals={Lane.FAST: 0.02, Lane.SLOW: 1000.0, Lane.STATIC: 1000.0},
        timeout_seconds=5.0,
        clock=SystemClock(),
        report=lambda _: None,
    )
    task = asyncio.create_task(loop.run())

    async def enough() -> bool:
        return reader.passes.count(Lane.FAST) >= 5

    await wait_until_async(enough)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first = [Lane.STATIC, Lane.SLOW, Lane.FAST]
    assert reader.passes[:8] == [*first, Lane.FAST, Lane.FAST, Lane.STATIC, Lane.SLOW, Lane.FAST]
    assert (reader.passes.count(Lane.STATIC), reader.passes.count(Lane.SLOW)) == (2, 2)


async def test_error_and_recovery_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    async def script(_: Lane) -> Round:
        if broken:
            raise ReaderError(Reason.NO_LIBRARY, "not found")
        return Round()

    caplog.set_level("INFO", logger="gpufleet.agent")
    loop = loop_of(ScriptedReader("nvml", script, lanes=(Lane.FAST, Lane.SLOW)))
    for lane in (Lane.SLOW, Lane.FAST, Lane.FAST):
        await loop.run_pass(lane)
    broken = False
    for lane in (Lane.FAST, Lane.FAST, Lane.SLOW, Lane.FAST):
        await loop.run_pass(lane)
    assert [record.getMessage() for record in caplog.records] == [
        "reader nvml, lane slow: failed: not found",
        "reader nvml works again",
    ]
