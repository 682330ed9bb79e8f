"""Cost by instance type, region and commitment, with prices of a CSV file."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.config.hub import UsageConfig
from gpufleet.config.load import ConfigProblemsError
from gpufleet.model.api.usage import UsageAnswer
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from tests.fakes.batches import body, gpu_sample, gpu_view
from tests.web.hub.site import Site, now, running_site

DAY = "start=2026-03-01T00:00:00Z&end=2026-03-02T00:00:00Z"
PRICES = """model,per_gpu_hour,valid_from,valid_to,instance_type,region,commitment
NVIDIA H200,2,2026-01-01T00:00:00Z,,,,
NVIDIA H200,3,2026-01-01T00:00:00Z,,p5.48xlarge,,
NVIDIA H200,4,2026-03-01T18:00:00Z,2026-03-01T20:00:00Z,p5.48xlarge,,reserved-1y
"""
CLOUD = Machine(name="node-a", machine_id="a" * 32, instance_type="p5.48xlarge", region="eu-1")
OWN = Machine(name="node-b", machine_id="b" * 32)


def named_gpu(at: int) -> tuple[Sample, ...]:
    """Return the samples of a GPU with its model."""
    fast = gpu_sample(gpu_view(0), at)
    static = msgspec.structs.replace(fast, lane=Lane.STATIC, values={"gpu_name": "NVIDIA H200"})
    return fast, static


async def report(site: Site, machine: Machine) -> None:
    at = now()
    samples = tuple(
        msgspec.structs.replace(one, view=msgspec.structs.replace(one.view, uuid=f"GPU-{machine.name}"))
        for one in named_gpu(at)
        if one.view is not None
    )
    epoch = (machine.machine_id or "")[:32]
    await site.post(body(1, at, sender=machine.name, machine=machine, samples=samples, epoch=epoch))


async def test_cost_depends_on_the_place_and_the_commitment(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(PRICES)
    config = UsageConfig(
        currency="EUR", price_file=str(tmp_path / "prices.csv"), commitments=("local=reserved-1y", "other=spot")
    )
    async with running_site(tmp_path, usage=config) as site:
        for machine in (CLOUD, OWN):
            await report(site, machine)
            target = {"cluster": "local", "machine": machine.name}
            spec = {"kind": "bare_metal", "target": target, "valid_from": "2026-03-01T12:00:00Z", "tenant": "t"}
            await site.request(f"/v1/allocations/{machine.name}", "PUT", spec)
        status, document = await site.request(f"/v1/usage?group_by=allocation&{DAY}")
        assert status == 200, document
        answer = msgspec.convert(document, UsageAnswer)
        assert {row.group["allocation"]: row.cost for row in answer.rows} == {  # type: ignore[index]
            "node-a": pytest.approx(10 * 3 + 2 * 4),
            "node-b": pytest.approx(12 * 2),
        }
        assert answer.currency == "EUR"
        status, document = await site.request(f"/v1/usage?group_by=model&group_by=namespace&{DAY}")
        assert status == 200, document


async def test_hub_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(PRICES.replace(",2,", ",two,"))
    with pytest.raises(ConfigProblemsError) as caught:
        async with running_site(tmp_path, usage=UsageConfig(currency="EUR", price_file=str(tmp_path / "prices.csv"))):
            pass
    (problem,) = caught.value.problems
    assert (problem.source, problem.key) == (f"{tmp_path}/prices.csv:2", "column 2 (per_gpu_hour)")
