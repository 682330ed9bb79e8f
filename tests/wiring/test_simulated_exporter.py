"""Simulated exporter: each dialect is read by its importer, pages are reproducible, and stalled clients are bounded."""

import asyncio
from collections.abc import Iterable

import pytest

from gpufleet.agent.publish.pages import PageForm
from gpufleet.decoding import decode
from gpufleet.decoding.format import CapturedInput
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.simulate.fleet.faults import FAULTS, FleetFault, parse_faults
from gpufleet.simulate.fleet.single_node import WITHOUT_EFFECT, single_node
from gpufleet.wiring.simulated_exporter import SimulatedExporter, running_exporter
from tests.support.processes import get_text

START = 1_795_000_000 * NANOS
DIALECTS = ("native", "dcgm", "all-smi")
INTERVAL = 10.0

FAMILIES = {"native": "gpufleet_gpu_power_watts", "dcgm": "DCGM_FI_DEV_POWER_USAGE", "all-smi": "all_smi_gpu_"}


def exporter(
    dialect: str, *, seed: int = 0, vgpus: int = 4, mig: bool = True, faults: Iterable[FleetFault] = ()
) -> SimulatedExporter:
    fleet = single_node(seed=seed, gpus=3, vgpus=vgpus, mig=mig, faults=faults)
    return SimulatedExporter(fleet, dialect, START, INTERVAL)


def imported(page: bytes, at: int) -> Snapshot:
    (found,) = decode(CapturedInput(content=page, name="page", at=at))[1].snapshots
    return found


def identity(device: Device) -> tuple[ViewKind, str]:
    """Return an identity that every dialect has: the UUID, or the GPU and its instance for a MIG device."""
    if device.kind is not ViewKind.MIG:
        return device.kind, device.uuid or ""
    gpu = (device.parent or "").removeprefix("gpu/")
    return device.kind, f"{gpu}/{(device.instance or '').removeprefix(f'{gpu}/').partition('/')[0]}"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_page_is_read_by_the_importer_of_its_dialect(dialect: str) -> None:
    simulated = exporter(dialect)
    await simulated.page(PageForm())
    await simulated.collect(7)
    source = await simulated.snapshot()
    found = imported(await simulated.page(PageForm()), START + 70 * NANOS)
    written = {identity(one): one for one in source.devices}
    read = {identity(one): one for one in found.devices}
    kinds = {ViewKind.GPU, ViewKind.MIG} if dialect == "dcgm" else set(ViewKind)
    assert read.keys() == {key for key in written if key[0] in kinds}
    for key, device in read.items():
        values = {name: one.value for name, one in device.readings.items() if one.value is not None}
        if device.kind is not ViewKind.GPU:
            values.pop("gpu_name", None)  # of the GPU, or of the type
        assert len(values) > 6
        for name, value in values.items():
            expected = written[key].readings[name].value
            assert value == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-6, abs=1e-6)), (
                name
            )


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_pages_have_the_families_of_their_dialect_only(dialect: str) -> None:
    page = (await exporter(dialect).page(PageForm())).decode()
    assert [name for name, family in FAMILIES.items() if f"\n{family}" in page] == [dialect]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_equal_seed_start_and_pass_give_an_equal_page(dialect: str) -> None:
    async def pages(seed: int) -> list[bytes]:
        simulated = exporter(dialect, seed=seed)
        found = []
        for number in range(3):
            await simulated.collect(number)
            found.append(await simulated.page(PageForm()))
        return found

    first = await pages(0)
    assert first == await pages(0)
    assert len(set(first)) == 3
    assert not set(first) & set(await pages(1))


async def test_each_permitted_fault_changes_a_page() -> None:
    async def pages(vgpus: int, mig: bool, faults: Iterable[FleetFault] = ()) -> list[bytes]:
        simulated = exporter("native", vgpus=vgpus, mig=mig, faults=faults)
        found = []
        for number in (2, 30):
            await simulated.collect(number)
            found.append(await simulated.page(PageForm()))
        return found

    shapes = ((0, False), (2, True))
    healthy = {shape: await pages(*shape) for shape in shapes}
    for kind in FAULTS.keys() - WITHOUT_EFFECT:
        faults = parse_faults(f"{kind}@+15s", START)
        assert any([await pages(*shape, faults) != healthy[shape] for shape in shapes]), kind


async def test_counts_over_a_window_grow_with_passes() -> None:
    simulated = exporter("dcgm", vgpus=0, mig=False, faults=parse_faults("hot-gpu@+0s/10m", START))
    for number in range(4):
        await simulated.collect(number)
    page = (await simulated.page(PageForm())).decode()
    line = next(line for line in page.splitlines() if 'clock_event="hw_thermal' in line)
    assert line.endswith(" 4")


async def test_stalled_clients_do_not_delay_a_scrape() -> None:
    async with running_exporter(exporter("native"), "127.0.0.1:0") as running:
        stalled = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(300)]
        page = await asyncio.to_thread(get_text, f"{running.url}/metrics")
        assert "gpufleet_gpu_power_watts" in page
        for _, writer in stalled:
            writer.close()
