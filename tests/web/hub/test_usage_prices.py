"""Cost by instance type, region and commitment, with prices of a CSV file."""

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.config.hub import UsageConfig
from gpufleet.config.load import ConfigProblemsError
from gpufleet.model.absence import Absent
from gpufleet.model.api.usage import UsageAnswer, UsageDimension
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample, Value
from gpufleet.model.time import to_ns
from tests.fakes.batches import body, gpu_sample, gpu_view
from tests.web.hub.site import Site, running_site

DAY = "start=2026-03-01T00:00:00Z&end=2026-03-02T00:00:00Z"
PRICES = """model,per_gpu_hour,valid_from,valid_to,instance_type,region,commitment
NVIDIA H200,2,2026-01-01T00:00:00Z,,,,
NVIDIA H200,3,2026-01-01T00:00:00Z,,p5.48xlarge,,
NVIDIA H200,4,2026-03-01T18:00:00Z,2026-03-01T20:00:00Z,p5.48xlarge,,reserved-1y
"""
CLOUD = Machine(name="node-a", machine_id="a" * 32)
OWN = Machine(name="node-b", machine_id="b" * 32)


async def report(
    site: Site, machine: Machine, seq: int, hour: int, instance_type: str | None = None, name: str = "NVIDIA H200"
) -> None:
    """Report a GPU, and the instance type of its machine, at an hour of a day."""
    at = to_ns(dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC))
    view = msgspec.structs.replace(gpu_view(0), uuid=f"GPU-{machine.name}")
    fast = gpu_sample(view, at, gpu_power_watts=1.0, gpu_pci_address=view.pci_address or "")
    static = msgspec.structs.replace(fast, lane=Lane.STATIC, values={"gpu_name": name})
    values: dict[str, Value | Absent] = {"host_kernel_release": "6.1"}
    if instance_type is not None:
        values["host_instance_type"] = instance_type
    own = Sample(view=None, reader="host", lane=Lane.STATIC, measured_at=at, values=values)
    epoch = (machine.machine_id or "")[:32]
    machine = msgspec.structs.replace(machine, instance_type=instance_type)
    await site.post(body(seq, at, sender=machine.name, machine=machine, samples=(fast, static, own), epoch=epoch))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    (tmp_path / "prices.csv").write_text(PRICES)
    commitments = ("local=reserved-1y", "other=spot")
    config = UsageConfig(currency="EUR", price_file=str(tmp_path / "prices.csv"), commitments=commitments)
    async with running_site(tmp_path, usage=config) as site:
        yield site


async def costs(site: Site) -> dict[str | None, float | None]:
    """Return the costs of the day by allocation."""
    status, document = await site.request(f"/v1/usage?group_by=allocation&{DAY}")
    assert status == 200, document
    answer = msgspec.convert(document, UsageAnswer)
    assert answer.currency == "EUR"
    return {row.group[UsageDimension.ALLOCATION]: row.cost for row in answer.rows}


async def put(site: Site, machine: Machine) -> None:
    target = {"cluster": "local", "machine": machine.name}
    spec = {"kind": "bare_metal", "target": target, "valid_from": "2026-03-01T12:00:00Z", "tenant": "t"}
    assert (await site.request(f"/v1/allocations/{machine.name}", "PUT", spec))[0] == 201


async def test_cost_depends_on_the_place_and_the_commitment(site: Site) -> None:
    await report(site, CLOUD, 1, 11, "p5.48xlarge")
    await report(site, OWN, 1, 11)
    for machine in (CLOUD, OWN):
        await put(site, machine)
    assert await costs(site) == {"node-a": pytest.approx(10 * 3 + 2 * 4), "node-b": pytest.approx(12 * 2)}
    status, document = await site.request(f"/v1/usage?group_by=model&group_by=namespace&{DAY}")
    assert status == 200, document


async def test_past_cost_has_the_instance_type_of_its_time(site: Site) -> None:
    """The machine is another instance from 16:00 on. A report without a type changes nothing."""
    await report(site, CLOUD, 1, 11, "p5.48xlarge")
    await report(site, CLOUD, 2, 13)
    await put(site, CLOUD)
    assert await costs(site) == {"node-a": pytest.approx(10 * 3 + 2 * 4)}
    await report(site, CLOUD, 3, 16, "p4d.24xlarge")
    assert await costs(site) == {"node-a": pytest.approx(4 * 3 + 8 * 2)}
    status, document = await site.request(f"/v1/usage?group_by=model&group_by=namespace&{DAY}")
    assert status == 200, document
    of_holders = msgspec.convert(document, UsageAnswer)
    assert of_holders.total.cost == pytest.approx(5 * 3 + 8 * 2)  # the GPU is known from its first report on


async def test_past_cost_has_the_product_name_of_its_time(site: Site) -> None:
    """A driver of 16:00 writes the name in another way, for which there is no price."""
    await report(site, CLOUD, 1, 11)
    await put(site, CLOUD)
    window = "start=2026-03-01T00:00:00Z&end=2026-03-01T16:00:00Z"
    before = [(await site.request(f"/v1/usage?group_by={by}&{window}"))[1] for by in ("model", "cluster,model,pod")]
    await report(site, CLOUD, 2, 16, name="NVIDIA H200 141GB")
    after = [(await site.request(f"/v1/usage?group_by={by}&{window}"))[1] for by in ("model", "cluster,model,pod")]
    assert after == before
    answers = [msgspec.convert(one, UsageAnswer) for one in after]
    assert [one.total.cost for one in answers] == [pytest.approx(4 * 2), pytest.approx(5 * 2)]
    day = msgspec.convert((await site.request(f"/v1/usage?group_by=model&{DAY}"))[1], UsageAnswer)
    found = {row.group[UsageDimension.MODEL]: (row.held_gpu_hours, row.cost) for row in day.rows}
    assert found == {"NVIDIA H200": (4, pytest.approx(8)), "NVIDIA H200 141GB": (8, None)}


async def test_missing_gpu_has_the_product_name_of_its_time(site: Site) -> None:
    await report(site, CLOUD, 1, 11)
    spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": CLOUD.name}, "expected": {"H200": 2}}
    spec |= {"valid_from": "2026-03-01T12:00:00Z"}
    assert (await site.request(f"/v1/allocations/{CLOUD.name}", "PUT", spec))[0] == 201
    await report(site, CLOUD, 2, 16, name="NVIDIA H200 141GB")
    window = "start=2026-03-01T00:00:00Z&end=2026-03-01T16:00:00Z"
    answer = msgspec.convert((await site.request(f"/v1/usage?{window}"))[1], UsageAnswer)
    assert answer.total.cost == pytest.approx(2 * 4 * 2)


async def test_time_before_the_first_report_of_a_type_has_none(site: Site) -> None:
    await report(site, CLOUD, 1, 11)
    await put(site, CLOUD)
    assert await costs(site) == {"node-a": pytest.approx(12 * 2)}
    await report(site, CLOUD, 2, 16, "p5.48xlarge")
    assert await costs(site) == {"node-a": pytest.approx(4 * 2 + 6 * 3 + 2 * 4)}


async def test_hub_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(PRICES.replace(",2,", ",two,"))
    with pytest.raises(ConfigProblemsError) as caught:
        async with running_site(tmp_path, usage=UsageConfig(currency="EUR", price_file=str(tmp_path / "prices.csv"))):
            pass
    (problem,) = caught.value.problems
    assert (problem.source, problem.key) == (f"{tmp_path}/prices.csv:2", "column 2 (per_gpu_hour)")
