"""Access paths: the first that answers is kept until it fails repeatedly."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from gpufleet.agent.guests.access_paths import MAX_FAILURES, AccessPath, FailoverReader, ShortConnectionReader
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.clock import FakeClock

GPU = Round(
    samples=(
        Sample(
            view=View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1"),
            reader="nvidia_smi",
            lane=Lane.FAST,
            measured_at=1,
            values={"gpu_utilization_ratio": 0.5},
        ),
    )
)


class Scripted:
    """Reader with a scripted outcome that counts its reads."""

    def __init__(self, outcome: Round | Exception | None = None) -> None:
        self.outcome, self.reads = outcome, 0
        self.lanes: tuple[Lane, ...] = (Lane.STATIC, Lane.FAST, Lane.SLOW)

    @property
    def name(self) -> str:
        return "scripted"

    async def read(self, lane: Lane) -> Round:
        self.reads += 1
        if self.outcome is None:
            await asyncio.Event().wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    async def close(self) -> None:
        pass


class FakeLink:
    """Link that opens or fails."""

    def __init__(self, problem: ChannelProblem | None = None) -> None:
        self.problem, self.dialled = problem, 0

    async def open(self) -> None:
        self.dialled += 1
        if self.problem is not None:
            raise ChannelError("closed", self.problem)

    async def close(self) -> None:
        pass


def failover_reader(*paths: AccessPath, on_open: list[int] | None = None) -> FailoverReader:
    opened: list[int] = [] if on_open is None else on_open
    return FailoverReader(
        "gpus", paths, FakeClock(), requires_devices=True, on_open=lambda: opened.append(1), attempt_seconds=0.05
    )


def failed(reason: Reason) -> ReaderError:
    return ReaderError(reason, str(reason))


async def test_first_answering_path_is_kept() -> None:
    absent, smi, last = Scripted(failed(Reason.NOT_ENABLED)), Scripted(GPU), Scripted(GPU)
    reader = failover_reader(
        *(AccessPath(name=name, reader=one) for name, one in (("a", absent), ("b", smi), ("c", last)))
    )
    for _ in range(3):
        assert (await reader.read(Lane.FAST)).samples
    assert (absent.reads, smi.reads, last.reads) == (1, 3, 0)
    assert reader.chosen == "b"


async def test_events_are_read_over_the_chosen_path_only() -> None:
    smi, engine = Scripted(failed(Reason.NO_DRIVER)), Scripted(GPU)
    engine.lanes = (*engine.lanes, Lane.EVENT)
    reader = failover_reader(AccessPath(name="a", reader=smi), AccessPath(name="b", reader=engine))
    assert await reader.read(Lane.EVENT) == Round()
    assert (smi.reads, engine.reads) == (0, 0)
    await reader.read(Lane.FAST)
    engine.outcome = Round()
    assert await reader.read(Lane.EVENT) == Round()
    assert (smi.reads, engine.reads) == (1, 2)


@pytest.mark.parametrize(
    "outcome",
    [
        ReaderError(Reason.TIMEOUT, "no reply", age_seconds=30),
        ReaderError(Reason.NO_DRIVER, "not loaded", round=Round(), age_seconds=30),
        Round(errors=("no page",), age_seconds=30),
    ],
)
async def test_repeated_failure_keeps_the_time_of_its_attempt(outcome: Round | Exception) -> None:
    reader = failover_reader(AccessPath(name="a", reader=Scripted(outcome)))
    with pytest.raises(ReaderError) as caught:
        await reader.read(Lane.FAST)
    (report,) = reader.reports
    attempted_at = to_datetime(FakeClock().now_ns() - 30 * 10**9)
    assert caught.value.age_seconds == 30
    assert (report.last_attempt, report.last_failure) == (attempted_at, attempted_at)


async def test_path_is_changed_only_after_repeated_failures() -> None:
    smi, other = Scripted(GPU), Scripted(GPU)
    reader = failover_reader(AccessPath(name="a", reader=smi), AccessPath(name="b", reader=other))
    await reader.read(Lane.FAST)
    smi.outcome = failed(Reason.NO_DRIVER)
    for _ in range(MAX_FAILURES):
        with pytest.raises(ReaderError):
            await reader.read(Lane.FAST)
    assert other.reads == 0
    await reader.read(Lane.FAST)
    assert (reader.chosen, other.reads) == ("b", 1)


async def test_hanging_path_costs_only_its_own_attempt() -> None:
    reader = failover_reader(AccessPath(name="hangs", reader=Scripted()), AccessPath(name="b", reader=Scripted(GPU)))
    assert (await reader.read(Lane.FAST)).samples


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (ChannelProblem.NO_SUCH_VM, Reason.GUEST_UNREACHABLE),
        (ChannelProblem.UNREACHABLE, Reason.GUEST_UNREACHABLE),
        (ChannelProblem.TIMEOUT, Reason.GUEST_UNREACHABLE),
        (ChannelProblem.NO_LISTENER, Reason.GUEST_UNREACHABLE),
        (ChannelProblem.ENDED, Reason.GUEST_UNREACHABLE),
        (ChannelProblem.NOT_UP, Reason.GUEST_BOOTING),
        (ChannelProblem.AUTHENTICATION, Reason.GUEST_REFUSED),
        (ChannelProblem.IDENTITY_MISMATCH, Reason.IDENTITY_MISMATCH),
        (ChannelProblem.NOT_ENABLED, Reason.NOT_ENABLED),
        (ChannelProblem.NOT_PERMITTED, Reason.NOT_PERMITTED),
        (ChannelProblem.PROTOCOL, Reason.READER_FAILED),
    ],
)
async def test_channel_problem_maps_to_a_guest_state(problem: ChannelProblem, reason: Reason) -> None:
    on_open: list[int] = []
    reader = failover_reader(AccessPath(name="a", reader=Scripted(GPU), link=FakeLink(problem)), on_open=on_open)
    with pytest.raises(ReaderError) as caught:
        await reader.read(Lane.FAST)
    assert caught.value.absence is reason
    assert not on_open


async def test_failing_channel_is_dialled_once_per_pass() -> None:
    shut, other = FakeLink(ChannelProblem.TIMEOUT), FakeLink()
    reads = Scripted(GPU)
    reader = failover_reader(
        AccessPath(name="a", reader=reads, link=shut),
        AccessPath(name="b", reader=Scripted(failed(Reason.NOT_ENABLED)), link=other),
        AccessPath(name="c", reader=reads, link=shut),
    )
    with pytest.raises(ReaderError) as caught:
        await reader.read(Lane.FAST)
    assert (shut.dialled, reads.reads, caught.value.absence) == (1, 0, Reason.NOT_ENABLED)


async def test_channel_problem_is_found_in_the_cause_of_an_error() -> None:
    error = failed(Reason.READER_FAILED)
    error.__cause__ = ChannelError("gone", ChannelProblem.NO_SUCH_VM)
    with pytest.raises(ReaderError) as caught:
        await failover_reader(AccessPath(name="a", reader=Scripted(error))).read(Lane.FAST)
    assert caught.value.absence is Reason.GUEST_UNREACHABLE


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ((Reason.NOT_ENABLED, Reason.NO_DRIVER, Reason.GUEST_UNREACHABLE), Reason.NO_DRIVER),
        ((Reason.GUEST_UNREACHABLE, Reason.GUEST_REFUSED), Reason.GUEST_REFUSED),
        ((Reason.NO_DRIVER, Reason.IDENTITY_MISMATCH), Reason.IDENTITY_MISMATCH),
        ((Reason.DRIVER_MISMATCH, Reason.NO_DRIVER), Reason.DRIVER_MISMATCH),
        ((Reason.NO_DATA, Reason.GUEST_UNREACHABLE), Reason.GUEST_UNREACHABLE),
    ],
)
async def test_most_specific_failure_is_reported(reasons: tuple[Reason, ...], expected: Reason) -> None:
    for order in (reasons, reasons[::-1]):
        reader = failover_reader(*(AccessPath(name=str(one), reader=Scripted(failed(one))) for one in order))
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.FAST)
        assert caught.value.absence is expected


async def test_unsupported_peer_is_an_incompatible_version() -> None:
    with pytest.raises(ReaderError) as caught:
        await failover_reader(AccessPath(name="dcgm", reader=Scripted(failed(Reason.NOT_SUPPORTED)))).read(Lane.FAST)
    assert caught.value.absence is Reason.INCOMPATIBLE_VERSION


async def test_pass_without_gpu_does_not_choose_the_path() -> None:
    reader = failover_reader(
        AccessPath(name="empty", reader=Scripted(Round())), AccessPath(name="b", reader=Scripted(GPU))
    )
    await reader.read(Lane.FAST)
    assert reader.chosen == "b"


async def test_guest_error_is_sanitised_and_bounded() -> None:
    error = ReaderError(Reason.DRIVER_ERROR, "\x1b]0;owned\x07" + "x" * 5000)
    with pytest.raises(ReaderError) as caught:
        await failover_reader(AccessPath(name="a", reader=Scripted(error))).read(Lane.FAST)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600


async def test_memory_of_a_failed_pass_is_released() -> None:
    """A large page must not stay referenced by the frames of a raised error."""

    class Page:
        pass

    pages: list[weakref.ref[Page]] = []

    class PageReader(Scripted):
        async def read(self, lane: Lane) -> Round:
            page = Page()
            pages.append(weakref.ref(page))
            raise failed(Reason.READER_FAILED)

    reader = failover_reader(*(AccessPath(name=name, reader=PageReader()) for name in ("a", "b")))
    gc.disable()
    try:
        with contextlib.suppress(ReaderError):
            await reader.read(Lane.FAST)
        assert [page() for page in pages] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("outcome", [GPU, failed(Reason.TIMEOUT)])
async def test_shared_channel_is_closed_after_each_pass(outcome: Round | ReaderError) -> None:
    closed: list[int] = []

    class Closing(Scripted):
        async def close(self) -> None:
            closed.append(self.reads)

    inner = Closing(outcome)
    inner.lanes = (Lane.FAST, Lane.EVENT)
    reader = ShortConnectionReader(inner)
    assert reader.lanes == (Lane.FAST,)
    for _ in range(2):
        with contextlib.suppress(ReaderError):
            assert await reader.read(Lane.FAST) is outcome
    assert closed == [1, 2]
