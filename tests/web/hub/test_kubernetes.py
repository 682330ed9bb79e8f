"""Node capacities of Kubernetes: imported by every protocol, shown in every answer that counts GPUs."""

import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.cli.query.fleet import fleet_tables
from gpufleet.cli.table import Layout, render
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1, encode_2
from gpufleet.model.api.fleet import FleetAnswer
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, running_site
from tests.web.hub.test_write import V1, V2, now_ms, write

OWN = {"instance": "10.1.1.1:8080", "job": "kube-state-metrics"}


def node_status(node: str, resource: str, count: float | None, at: int, kind: str = "capacity") -> WritePoint:
    name = f"kube_node_status_{kind}"
    return WritePoint({"__name__": name, "node": node, "resource": resource, "unit": "integer", **OWN}, count, at)


def power(node: str, gpu: int, at: int) -> WritePoint:
    labels = {"gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}", "Hostname": node, "instance": f"{node}:9400"}
    return WritePoint({"__name__": "DCGM_FI_DEV_POWER_USAGE", **labels}, 100.0, at)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def sources(site: Site) -> dict[str, Any]:
    _, cluster = await site.request("/v1/clusters/local")
    found: dict[str, Any] = cluster["coverage"]["sources"]
    return found


def otlp(points: list[WritePoint]) -> bytes:
    """Encode points like a collector that scraped them."""
    by_name: dict[str, list[WritePoint]] = {}
    for one in points:
        by_name.setdefault(one.labels["__name__"], []).append(one)
    metrics = [
        {
            "name": name,
            "gauge": {
                "dataPoints": [
                    {
                        "timeUnixNano": str(one.at),
                        "attributes": [
                            {"key": key, "value": {"stringValue": text}}
                            for key, text in one.labels.items()
                            if key != "__name__"
                        ],
                        **({"flags": 1} if one.value is None else {"asDouble": one.value}),
                    }
                    for one in each
                ]
            },
        }
        for name, each in by_name.items()
    ]
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}).encode()


async def send(site: Site, protocol: str, points: list[WritePoint]) -> None:
    if protocol == "otlp":
        status, _, body = await write(
            site.hub.url, otlp(points), "application/json", path="/v1/metrics", **{"Content-Encoding": "identity"}
        )
        assert status == 200, body
    else:
        encode, content_type = (encode_1, V1) if protocol == "1.0" else (encode_2, V2)
        assert (await write(site.hub.url, encode(points), content_type))[0] == 204


@pytest.mark.parametrize("protocol", ["1.0", "2.0", "otlp"])
async def test_kubernetes_counts_are_shown_beside_nvml_counts(site: Site, protocol: str) -> None:
    at = now_ms()
    status, _, _ = await write(site.hub.url, encode_1([power("n1", gpu, at) for gpu in range(2)]))
    assert status == 204
    kube = [
        node_status("n1", "nvidia_com_gpu", 4.0, at),
        node_status("n1", "nvidia_com_gpu", 3.0, at, "allocatable"),
        node_status("n1", "cpu", 64.0, at),
        node_status("n2", "nvidia_com_gpu", 8.0, at),
        node_status("n2", "nvidia_com_mig_1g_10gb", 14.0, at),
    ]
    await send(site, protocol, kube)

    async def both_counted() -> bool:
        found = await sources(site)
        return (found["kubernetes"], found["nvml"]) == (12, 2)

    await wait_until_async(both_counted, what="both counts to be shown")
    reader = f"{'otlp' if protocol == 'otlp' else 'remote_write'}/kube_state_metrics"
    _, cluster = await site.request("/v1/clusters/local")
    coverage = cluster["coverage"]
    assert (coverage["expected"], coverage["expected_by"]) == (12, "kubernetes")
    assert coverage["summary"] == "2 of 12 expected by kubernetes"
    (kube_count,) = coverage["kubernetes"]
    assert (kube_count["reader"], kube_count["machines"], kube_count["gpus"], kube_count["allocatable"]) == (
        reader,
        2,
        12,
        3,
    )
    assert cluster["freshness"]["machines"] == {"live": 1, "never_seen": 1}

    _, answer = await site.request("/v1/fleet")
    assert (answer["gpus_reporting"], answer["gpus_expected"]) == (2, 12)
    text = render(fleet_tables(msgspec.convert(answer, FleetAnswer)), Layout(), width=1000).notes
    assert f"GPUs of cluster local: 2 by nvml, 12 by kubernetes ({reader} reports 12 on 2 nodes, 3 allocatable" in text

    _, page = await site.request("/v1/machines")
    by_name = {one["machine"]["name"]: one for one in page["items"]}
    n1, n2 = by_name["n1"], by_name["n2"]
    assert (n1["gpus"], n1["liveness"]["state"], n1.get("named_only", False)) == (2, "live", False)
    assert (n2.get("gpus", 0), n2["liveness"]["state"], n2["named_only"]) == (0, "never_seen", True)
    assert [(one["resource"], one["capacity"], one["allocatable"]) for one in n1["kubernetes"]] == [
        ("nvidia_com_gpu", 4, 3)
    ]
    assert [(one["resource"], one["capacity"]) for one in n2["kubernetes"]] == [
        ("nvidia_com_gpu", 8),
        ("nvidia_com_mig_1g_10gb", 14),
    ]
    rows = list(csv.DictReader(io.StringIO(await site.text("/v1/machines?format=csv"))))
    assert [json.loads(row["kubernetes"])[0]["capacity"] for row in rows] == [4, 8]

    after = at + 10**9
    end_of_series = [node_status("n2", "nvidia_com_gpu", None, after), node_status("n1", "nvidia_com_gpu", 2.0, after)]
    await send(site, protocol, end_of_series)

    async def ended() -> bool:
        return bool((await sources(site))["kubernetes"] == 2)

    await wait_until_async(ended, what="the series to end")
    _, cluster = await site.request("/v1/clusters/local")
    assert cluster["coverage"]["summary"] == "2 of 2 expected by nvml"
