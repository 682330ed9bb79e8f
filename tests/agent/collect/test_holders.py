"""Collection of holders: rounds, failures, sending and the saved file."""

import asyncio
import datetime as dt
from pathlib import Path

import msgspec
import pytest

from gpufleet.agent.collect.holders import SAVE_SECONDS, DeviceProcesses, HolderCollector, SavedHoldings
from gpufleet.agent.collect.saved import SavedFile
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import REPEAT_SECONDS, Holder, HolderKind, HolderState, Holding, HoldingVerdict, Method
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, ProcessReport
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, ViewKind
from gpufleet.ports.holder import DeviceName, HolderClaim, HolderReport, Naming
from tests.fakes.clock import FakeClock

GPU = Device(key="gpu/GPU-1", kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", readings={})
OTHER = Device(
    key="gpu/GPU-2",
    kind=ViewKind.GPU,
    side=Side.HOST,
    uuid="GPU-2",
    readings={
        "gpu_minor_number": Reading(value="5", reader="nvml", measured_at=dt.datetime.fromtimestamp(1, dt.UTC)),
    },
)


def claim(name: str, device: DeviceName) -> HolderClaim:
    return HolderClaim(
        holder=Holder(kind=HolderKind.POD, id=f"uid-{name}", name=name), devices=(device,), method=Method.KUBELET
    )


class FakeSource:
    """A source with a programmed answer."""

    def __init__(self, answer: HolderReport | Exception, name: str = "kubelet") -> None:
        self.name = name
        self.answer: HolderReport | Exception | None = answer
        self.closed = False

    async def report(self) -> HolderReport:
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer

    async def close(self) -> None:
        self.closed = True


HELD = HolderReport(claims=(claim("a", DeviceName(Naming.UUID, "GPU-1")),))


def collector(*sources: FakeSource, clock: FakeClock | None = None, **rest: object) -> HolderCollector:
    return HolderCollector(
        [(source, 0.01) for source in sources],
        interval_seconds=10,
        clock=clock or FakeClock(),
        **rest,  # type: ignore[arg-type]
    )


async def test_round_publishes_the_holders_of_each_device() -> None:
    holders = collector(FakeSource(HELD))

    assert await holders.round([GPU, OTHER])
    assert holders.devices[GPU.key].holdings[0].holder.name == "a"
    assert holders.devices[OTHER.key].state is HolderState.FREE
    assert holders.capabilities == {"holders_kubelet": "available"}


async def test_unchanged_holders_are_the_same_objects() -> None:
    holders = collector(FakeSource(HELD))
    await holders.round([GPU])
    before = holders.devices[GPU.key]

    assert not await holders.round([GPU])
    assert holders.devices[GPU.key] is before


async def test_device_node_number_comes_from_the_readings() -> None:
    holders = collector(FakeSource(HolderReport(claims=(claim("a", DeviceName(Naming.MINOR, "5")),))))
    await holders.round([GPU, OTHER])

    assert [one.holder.name for one in holders.devices[OTHER.key].holdings] == ["a"]


async def test_failing_source_does_not_stop_the_others() -> None:
    hanging, broken, good = FakeSource(HELD, "slurm"), FakeSource(ValueError("x"), "libvirt"), FakeSource(HELD)
    hanging.answer = None
    holders = collector(hanging, broken, good)
    await holders.round([GPU])

    assert holders.devices[GPU.key].holdings[0].holder.name == "a"
    assert {name: text.partition(":")[0] for name, text in holders.capabilities.items()} == {
        "holders_slurm": "timeout",
        "holders_libvirt": "reader_failed",
        "holders_kubelet": "available",
    }


def delivered(holders: HolderCollector) -> tuple[Holding, ...]:
    """Return what is due, as if a batch with it was queued."""
    due = holders.due()
    holders.note_delivered()
    return due


async def test_holding_is_sent_once_then_on_change_and_on_schedule() -> None:
    clock, source = FakeClock(), FakeSource(HELD)
    holders = collector(source, clock=clock)
    await holders.round([GPU])
    assert [one.holder.name for one in delivered(holders)] == ["a"]
    await holders.round([GPU])
    assert delivered(holders) == ()
    clock.advance(REPEAT_SECONDS)
    assert [one.holder.name for one in delivered(holders)] == ["a"]

    source.answer = HolderReport()
    for _ in range(2):
        await holders.round([GPU])
    (ended,) = holders.due()
    assert ended.until is not None


async def test_holding_that_was_not_queued_is_due_again() -> None:
    source = FakeSource(HELD)
    holders = collector(source)
    await holders.round([GPU])
    assert holders.due() == holders.due() != ()
    holders.note_delivered()
    source.answer = HolderReport()
    for _ in range(2):
        await holders.round([GPU])
    first = holders.due()
    await holders.round([GPU])

    assert [one.until is None for one in first] == [False]
    assert holders.due() == first
    holders.note_delivered()
    assert holders.due() == ()


async def test_end_between_two_batches_is_not_lost_with_the_delivery_of_the_first() -> None:
    source = FakeSource(job(1))
    holders = collector(source)
    for number in (1, 2, 3):
        source.answer = job(number)
        await holders.round([GPU])
    holders.due()
    source.answer = job(4)
    await holders.round([GPU])
    holders.note_delivered()

    assert [one.holder.id for one in holders.due() if one.until is not None] == ["2"]


def job(number: int) -> HolderReport:
    claim = HolderClaim(
        holder=Holder(kind=HolderKind.JOB, id=str(number)),
        devices=(DeviceName(Naming.UUID, "GPU-1"),),
        method=Method.SCHEDULER,
    )
    return HolderReport(claims=(claim,))


async def test_ends_are_not_collected_without_a_hub_and_bounded_with_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gpufleet.agent.collect.holders.MAX_ENDED", 3)
    for delivers, expected in ((False, []), (True, ["5", "6", "7"])):
        source = FakeSource(job(0))
        holders = collector(source, file=saved(tmp_path), boot="b", delivers=delivers)
        for number in range(10):
            source.answer = job(number)
            await holders.round([GPU])
        record = saved(tmp_path).load()
        assert record is not None
        assert [one.holder.id for one in record.ended] == expected
        assert [one.holder.id for one in holders.due() if one.until is not None] == expected
    assert len(caplog.records) == 1


def test_processes_of_a_split_gpu_are_left_out() -> None:
    part = Device(key="mig/MIG-1", kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPU.key, readings={})
    process = ProcessReport(pid=7, kinds=("compute",), start_time=9, readings={})
    processes = DeviceProcesses()
    processes.update([msgspec.structs.replace(device, processes=(process,)) for device in (GPU, part, OTHER)])

    assert processes.listed() == {part.key: ((7, 9),), OTHER.key: ((7, 9),)}


def saved(folder: Path) -> SavedFile[SavedHoldings]:
    return SavedFile(folder / "holdings.json", SavedHoldings, loss="holdings start again")


async def test_restarted_agent_continues_its_holdings(tmp_path: Path) -> None:
    clock = FakeClock()
    await collector(FakeSource(HELD), clock=clock, file=saved(tmp_path), boot="b").round([GPU])
    started = clock.now_ns()
    clock.advance(60)
    failing = HolderError(Reason.TIMEOUT, "no answer")
    source = FakeSource(failing)
    second = collector(source, clock=clock, file=saved(tmp_path), boot="b")

    await second.round([GPU])
    (holding,) = second.devices[GPU.key].holdings
    assert (holding.since, holding.verdict) == (started, HoldingVerdict.UNKNOWN)
    source.answer = HELD
    await second.round([GPU])
    (holding,) = second.devices[GPU.key].holdings
    assert (holding.since, holding.verdict) == (started, HoldingVerdict.DECLARED_ONLY)


@pytest.mark.parametrize("boot", ["b", "other"])
async def test_lost_gpu_is_still_held_after_a_restart(tmp_path: Path, boot: str) -> None:
    """The driver gives the PCI address of the GPU only, and the source its UUID."""
    gpu = msgspec.structs.replace(GPU, pci_address="0000:1b:00.0")
    other = msgspec.structs.replace(OTHER, pci_address="0000:2b:00.0")
    unnamed = msgspec.structs.replace(gpu, key="gpu/pci/0000:1b:00.0", uuid=None)
    await collector(FakeSource(HELD), file=saved(tmp_path), boot="b").round([gpu, other])
    second = collector(FakeSource(HELD), file=saved(tmp_path), boot=boot)
    await second.round([unnamed, other])

    held = [(one.view, one.verdict) for one in second.due() if one.until is None]
    states = {key: one.state for key, one in second.devices.items()}
    if boot == "b":
        assert (held, second.unresolved) == ([(gpu.key, HoldingVerdict.DECLARED_ONLY)], ())
        assert states == {unnamed.key: HolderState.UNKNOWN, other.key: HolderState.FREE}
    else:
        assert (held, len(second.unresolved)) == ([], 1)
        assert states == {unnamed.key: HolderState.UNKNOWN, other.key: HolderState.UNKNOWN}


async def test_slurm_nodes_survive_a_restart(tmp_path: Path) -> None:
    nodes = HolderReport(nodes=frozenset({"n1"}))
    await collector(FakeSource(nodes, "slurm"), file=saved(tmp_path)).round([GPU])
    claim = HolderClaim(
        holder=Holder(kind=HolderKind.JOB, id="n2/4"), devices=HELD.claims[0].devices, method=Method.PROCESS
    )
    seen = FakeSource(HolderReport(claims=(claim,), observes=True), "processes")
    failing = FakeSource(HolderError(Reason.TIMEOUT, "no answer"), "slurm")
    second = collector(failing, seen, file=saved(tmp_path))
    await second.round([GPU])
    assert [one.holder.id for one in second.devices[GPU.key].holdings] == ["n2/4"]


async def test_end_survives_a_kill_before_it_was_queued(tmp_path: Path) -> None:
    clock, source = FakeClock(), FakeSource(HELD)
    first = collector(source, clock=clock, file=saved(tmp_path), boot="b")
    await first.round([GPU])
    delivered(first)
    source.answer = HolderReport()
    for _ in range(2):
        clock.advance(10)
        await first.round([GPU])
    ended_at = clock.now_ns() - 10 * NANOS
    second = collector(source, clock=clock, file=saved(tmp_path), boot="b")

    assert [one.until for one in second.due()] == [ended_at]
    second.note_delivered()
    await second.round([GPU])
    assert collector(source, clock=clock, file=saved(tmp_path), boot="b").due() == ()


async def test_reboot_ends_holdings_at_the_last_save(tmp_path: Path) -> None:
    clock = FakeClock()
    first = collector(FakeSource(HELD), clock=clock, file=saved(tmp_path), boot="b")
    await first.round([GPU])
    clock.advance(SAVE_SECONDS)
    await first.round([GPU])
    saved_at = clock.now_ns()
    clock.advance(3600)
    second = collector(FakeSource(HolderReport()), clock=clock, file=saved(tmp_path), boot="c")
    await second.round([GPU])

    assert [one.until for one in second.due()] == [saved_at]
