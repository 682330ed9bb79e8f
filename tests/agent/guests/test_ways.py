"""The first way that answers wins, is remembered, and is given up only when it fails for long."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from gpufleet.agent.guests.access_paths import MAX_FAILURES, AccessPath, FailoverReader
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Round, Sample
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
    """A reader that does what it is told, and counts."""

    def __init__(self, outcome: Round | Exception | None = None) -> None:
        self.outcome, self.asked = outcome, 0
        self.lanes: tuple[Lane, ...] = (Lane.STATIC, Lane.FAST, Lane.SLOW)

    @property
    def name(self) -> str:
        return "scripted"

    async def read(self, lane: Lane) -> Round:
        self.asked += 1
        if self.outcome is None:
            await asyncio.Event().wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    async def close(self) -> None:
        pass


class Door:
    """A link that opens, or does not."""

    def __init__(self, problem: ChannelProblem | None = None) -> None:
        self.problem, self.dialled = problem, 0

    async def open(self) -> None:
        self.dialled += 1
        if self.problem is not None:
            raise ChannelError("closed", self.problem)

    async def close(self) -> None:
        pass


def first(*ways: AccessPath, on_open: list[int] | None = None) -> FailoverReader:
    heard: list[int] = [] if on_open is None else on_open
    return FailoverReader(
        "gpus", ways, FakeClock(), requires_devices=True, on_open=lambda: heard.append(1), attempt_seconds=0.05
    )


def failed(reason: Reason) -> ReaderError:
    return ReaderError(reason, str(reason))


async def test_the_first_that_answers_is_remembered() -> None:
    absent, smi, last = Scripted(failed(Reason.NOT_ENABLED)), Scripted(GPU), Scripted(GPU)
    reader = first(*(AccessPath(name=name, reader=one) for name, one in (("a", absent), ("b", smi), ("c", last))))
    for _ in range(3):
        assert (await reader.read(Lane.FAST)).samples
    assert (absent.asked, smi.asked, last.asked) == (1, 3, 0)
    assert reader.chosen == "b"


async def test_events_are_read_over_the_chosen_way_only() -> None:
    smi, engine = Scripted(failed(Reason.NO_DRIVER)), Scripted(GPU)
    engine.lanes = (*engine.lanes, Lane.EVENT)
    reader = first(AccessPath(name="a", reader=smi), AccessPath(name="b", reader=engine))
    assert await reader.read(Lane.EVENT) == Round()
    assert (smi.asked, engine.asked) == (0, 0)
    await reader.read(Lane.FAST)
    engine.outcome = Round()
    assert await reader.read(Lane.EVENT) == Round()
    assert (smi.asked, engine.asked) == (1, 2)


async def test_one_failure_is_no_reason_to_ask_elsewhere_and_many_are() -> None:
    smi, other = Scripted(GPU), Scripted(GPU)
    reader = first(AccessPath(name="a", reader=smi), AccessPath(name="b", reader=other))
    await reader.read(Lane.FAST)
    smi.outcome = failed(Reason.NO_DRIVER)
    for _ in range(MAX_FAILURES):
        with pytest.raises(ReaderError):
            await reader.read(Lane.FAST)
    assert other.asked == 0
    await reader.read(Lane.FAST)
    assert (reader.chosen, other.asked) == ("b", 1)


async def test_a_way_that_hangs_costs_its_own_time_only() -> None:
    reader = first(AccessPath(name="hangs", reader=Scripted()), AccessPath(name="b", reader=Scripted(GPU)))
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
async def test_a_channels_problem_says_what_state_the_guest_is_in(problem: ChannelProblem, reason: Reason) -> None:
    on_open: list[int] = []
    reader = first(AccessPath(name="a", reader=Scripted(GPU), link=Door(problem)), on_open=on_open)
    with pytest.raises(ReaderError) as caught:
        await reader.read(Lane.FAST)
    assert caught.value.absence is reason
    assert not on_open


async def test_a_channel_that_does_not_open_is_dialled_once_a_pass() -> None:
    shut, other = Door(ChannelProblem.TIMEOUT), Door()
    asked = Scripted(GPU)
    reader = first(
        AccessPath(name="a", reader=asked, link=shut),
        AccessPath(name="b", reader=Scripted(failed(Reason.NOT_ENABLED)), link=other),
        AccessPath(name="c", reader=asked, link=shut),
    )
    with pytest.raises(ReaderError) as caught:
        await reader.read(Lane.FAST)
    assert (shut.dialled, asked.asked, caught.value.absence) == (1, 0, Reason.NOT_ENABLED)


async def test_a_channels_problem_is_found_behind_a_readers_error() -> None:
    error = failed(Reason.READER_FAILED)
    error.__cause__ = ChannelError("gone", ChannelProblem.NO_SUCH_VM)
    with pytest.raises(ReaderError) as caught:
        await first(AccessPath(name="a", reader=Scripted(error))).read(Lane.FAST)
    assert caught.value.absence is Reason.GUEST_UNREACHABLE


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ((Reason.NOT_ENABLED, Reason.NO_DRIVER, Reason.GUEST_UNREACHABLE), Reason.NO_DRIVER),
        ((Reason.GUEST_UNREACHABLE, Reason.GUEST_REFUSED), Reason.GUEST_REFUSED),
        ((Reason.NO_DRIVER, Reason.IDENTITY_MISMATCH), Reason.IDENTITY_MISMATCH),
        ((Reason.DRIVER_MISMATCH, Reason.NO_DRIVER), Reason.DRIVER_MISMATCH),
        ((Reason.NO_DATA, Reason.GUEST_UNREACHABLE), Reason.GUEST_UNREACHABLE),
    ],
)
async def test_of_many_failures_the_one_that_tells_most_is_told(reasons: tuple[Reason, ...], told: Reason) -> None:
    for order in (reasons, reasons[::-1]):
        reader = first(*(AccessPath(name=str(one), reader=Scripted(failed(one))) for one in order))
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.FAST)
        assert caught.value.absence is told


async def test_unsupported_peer_is_an_incompatible_version() -> None:
    with pytest.raises(ReaderError) as caught:
        await first(AccessPath(name="dcgm", reader=Scripted(failed(Reason.NOT_SUPPORTED)))).read(Lane.FAST)
    assert caught.value.absence is Reason.INCOMPATIBLE_VERSION


async def test_a_pass_without_a_gpu_is_no_answer() -> None:
    reader = first(AccessPath(name="empty", reader=Scripted(Round())), AccessPath(name="b", reader=Scripted(GPU)))
    await reader.read(Lane.FAST)
    assert reader.chosen == "b"


async def test_what_a_guest_says_cannot_drive_a_terminal_or_fill_a_log() -> None:
    error = ReaderError(Reason.DRIVER_ERROR, "\x1b]0;owned\x07" + "x" * 5000)
    with pytest.raises(ReaderError) as caught:
        await first(AccessPath(name="a", reader=Scripted(error))).read(Lane.FAST)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600


async def test_what_a_failed_pass_held_is_given_back_at_once() -> None:
    """A page of megabytes stays in the frames of an error for as long as that is held by its own frames."""

    class Page:
        pass

    pages: list[weakref.ref[Page]] = []

    class Holding(Scripted):
        async def read(self, lane: Lane) -> Round:
            page = Page()
            pages.append(weakref.ref(page))
            raise failed(Reason.READER_FAILED)

    reader = first(*(AccessPath(name=name, reader=Holding()) for name in ("a", "b")))
    gc.disable()
    try:
        with contextlib.suppress(ReaderError):
            await reader.read(Lane.FAST)
        assert [page() for page in pages] == [None, None]
    finally:
        gc.enable()
