"""`gpufleet query usage` by holder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.model.api.usage import DeviceUsage
from tests.cli.test_query import run
from tests.web.hub.site import running_site
from tests.web.hub.test_holder_usage import report_example, used_throughout
from tests.web.hub.test_workload_allocations import Cluster

DOCUMENT = Path(__file__).parents[3] / "docs" / "usage.md"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_site(tmp_path) as site:
        site.store.device_usage = used_throughout  # type: ignore[method-assign]
        cluster = Cluster(site)
        await report_example(cluster)
        yield cluster


async def rows(cluster: Cluster, *options: str) -> list[dict[str, str]]:
    """Return the rows without a terminal."""
    window = ("--start", cluster.time(0), "--end", cluster.time(30))
    code, out, err = await run("query", "usage", *options, *window, "--hub", cluster.site.hub.url)
    assert code == 0, err
    titles, *lines = [line.split("\t") for line in out.splitlines()]
    return [dict(zip(titles, line, strict=True)) for line in lines if len(line) == len(titles)]


async def test_time_without_holder_has_its_reason(cluster: Cluster) -> None:
    found = await rows(cluster, "--group-by", "namespace,model")
    assert [(row["namespace"], row["holder"], row["gpus"], row["held"]) for row in found] == [
        ("research", "known", "1", "0.500"),
        ("search", "known", "1", "0.208"),
        ("shop", "known", "1", "0.292"),
        ("-", "known", "1", "0.250"),
        ("-", "not_reported", "1", "0.250"),
        ("total", "-", "3", "1.500"),
    ]
    assert (found[2]["shared"], found[2]["replica-hours"]) == ("0.292", "0.750")


async def test_documented_example_is_computed(cluster: Cluster) -> None:
    block = DOCUMENT.read_text().partition("--group-by namespace --wide\n")[2].partition("```")[0]
    titles, *lines = [line.split() for line in block.splitlines()]
    documented = [dict(zip(titles, line, strict=True)) for line in lines]
    found = await rows(cluster, "--group-by", "namespace")
    assert [{name: row[name] for name in titles} for row in found] == documented


async def test_usage_of_allocations_has_no_column_of_holders(cluster: Cluster) -> None:
    (total,) = await rows(cluster, "--group-by", "tenant", "--cluster", "local")
    assert (total["tenant"], total["gpus"]) == ("total", "0")
    assert "holder" not in total


async def test_unknown_number_of_missing_gpus_is_absent(cluster: Cluster) -> None:
    for name, more in (("expects", {"expected": {"H200": 8}}), ("vague", {})):
        spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": f"no-{name}"}, "tenant": "t", **more}
        assert (await cluster.site.request(f"/v1/allocations/{name}", "PUT", spec))[0] == 201
    _, out, _ = await run("query", "usage", "--group-by", "allocation", "--hub", cluster.site.hub.url)
    missing = [line.split("\t")[:2] for line in out.splitlines() if "target_unknown" in line]
    assert missing == [["expects", "8"], ["vague", "-"]]


async def test_energy_has_the_hours_for_which_it_is_known(cluster: Cluster) -> None:
    cluster.site.store.device_usage = lambda intervals: [  # type: ignore[method-assign]
        DeviceUsage(energy_joules=360_000.0, energy_seconds=360.0) for _ in intervals
    ]
    found = await rows(cluster, "--group-by", "namespace")
    assert (found[0]["held"], found[0]["energy"], found[0]["energy-hours"]) == ("0.500", "0.100 kWh", "0.100")
