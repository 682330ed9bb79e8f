"""Device names that identify no device: counts by source, bounds, and texts of others."""

from gpufleet.agent.collect.holders import HolderCollector
from gpufleet.agent.collect.unresolved import MAX_DEVICES, MAX_TEXT, unresolved_devices
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import UnresolvedDevices
from gpufleet.ports.holder import DeviceName, HolderReport, Naming
from tests.agent.collect.test_holders import GPU, FakeSource, claim
from tests.fakes.clock import FakeClock

HOSTILE = "gpu\x1b[2J\n\u202e\u200b" + "x" * 10_000


async def collected(*sources: FakeSource) -> UnresolvedDevices:
    collector = HolderCollector([(source, 1.0) for source in sources], interval_seconds=10.0, clock=FakeClock())
    await collector.round([GPU])
    return unresolved_devices(collector)


def report(*names: str) -> HolderReport:
    return HolderReport(claims=tuple(claim(name, DeviceName(Naming.UUID, name, name)) for name in names))


async def test_names_are_counted_by_source_that_answers() -> None:
    found = await collected(
        FakeSource(report("GPU-1", "GPU-9", "GPU-8")),
        FakeSource(report("GPU-1"), "slurm"),
        FakeSource(HolderError(Reason.NOT_ENABLED, "no libvirt"), "libvirt"),
    )
    assert found.counts == {"kubelet": 2, "slurm": 0}
    assert [(one.source, one.name, one.holder.name) for one in found.devices] == [
        ("kubelet", "GPU-9", "GPU-9"),
        ("kubelet", "GPU-8", "GPU-8"),
    ]


async def test_names_are_bounded_and_all_counted() -> None:
    found = await collected(FakeSource(report(*(f"GPU-x{number}" for number in range(MAX_DEVICES + 10)))))
    assert (found.counts, len(found.devices)) == ({"kubelet": MAX_DEVICES + 10}, MAX_DEVICES)


async def test_hostile_name_is_printable_and_bounded() -> None:
    (one,) = (await collected(FakeSource(report(HOSTILE)))).devices
    assert one.name.startswith("gpu[2J??x")
    assert one.name.isprintable()
    assert len(one.name) == MAX_TEXT
    assert one.detail.isprintable()
    assert len(one.detail) <= MAX_TEXT


async def test_before_the_first_round_nothing_is_known() -> None:
    collector = HolderCollector([(FakeSource(report()), 1.0)], interval_seconds=10.0, clock=FakeClock())
    assert unresolved_devices(collector) == UnresolvedDevices(counts={})
