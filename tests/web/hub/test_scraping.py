"""Scraping: target files that change, hostile targets, federation and kube-state-metrics."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpufleet.config.hub import IngestConfig
from gpufleet.config.scrape import DiscoveryConfig, FederationConfig, KubeStateMetricsConfig
from tests.support.exporters import serving
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, running_site

PAGE = (Path(__file__).parents[2] / "data" / "exposition" / "dcgm-exporter-l40s-vm.txt").read_bytes()
UUID = "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43"


class Hostile:
    """Servers that hang, flood or redirect.

    Attributes:
        connections: count of connections by server; `elsewhere` is the target of the redirect.
    """

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.connections = dict.fromkeys(("hangs", "floods", "redirects", "elsewhere"), 0)

    async def _answer(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections[kind] += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if kind == "hangs":
                await reader.read()  # until the client closes
            elif kind == "floods":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    writer.write(b"DCGM_FI_DEV_POWER_USAGE 1\n" * 4096)
                    await writer.drain()
            elif kind == "redirects":
                where = f"http://127.0.0.1:{self.ports['elsewhere']}/metrics"
                writer.write(f"HTTP/1.1 302 Found\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n".encode())
            writer.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Hostile"]:
        async with contextlib.AsyncExitStack() as stack:
            for kind in self.connections:

                async def answer(r: asyncio.StreamReader, w: asyncio.StreamWriter, kind: str = kind) -> None:
                    await self._answer(kind, r, w)

                server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
                self.ports[kind] = server.sockets[0].getsockname()[1]
                stack.callback(server.close)
            yield self


async def gpu_power(site: Site) -> dict[str, Any]:
    """Return the power of the GPU by reporting node."""
    _, found = await site.request("/v1/gpus")
    return {
        one["node"]: one["device"]["readings"].get("gpu_power_watts", {}).get("value")
        for one in found["items"]
        if one["device"]["uuid"] == UUID
    }


async def figure(site: Site, line: str) -> float:
    page = await site.text("/metrics")
    return sum(float(one.split()[-1]) for one in page.splitlines() if one.startswith(line))


async def test_target_files_are_followed_beside_hostile_targets(tmp_path: Path) -> None:
    file = tmp_path / "targets.yml"
    unknown = b'DCGM_FI_DEV_OF_TOMORROW{gpu="0",UUID="GPU-1"} 1\nDCGM_FI_DEV_SM_CLOCK{slot="1",gpu="1"} 1\n'
    with serving(PAGE + unknown) as (_, url):
        async with Hostile().running() as hostile:
            good = url.removeprefix("http://").removesuffix("/metrics")
            others = [
                f"- {{targets: ['127.0.0.1:{port}'], labels: {{node: {kind}}}}}"
                for kind, port in hostile.ports.items()
                if kind != "elsewhere"
            ]
            down = "- {targets: ['127.0.0.1:1'], labels: {node: down}}"
            file.write_text(
                "\n".join([f"- {{targets: ['{good}'], labels: {{node: gpu-1, cluster: local}}}}", *others, down])
            )
            discovery = DiscoveryConfig(files=(str(tmp_path / "*.yml"),), cluster="local", timeout_seconds=2)
            pending = IngestConfig(max_pending_bytes=32 << 20)
            async with running_site(tmp_path / "state", discovery=(discovery,), ingest=pending) as site:

                def up(node: str, value: int) -> str:
                    return f'gpufleet_hub_pull_up{{cluster="local",sender="exporter/exporter/{node}"}} {value}'

                expected = [up("gpu-1", 1), *(up(kind, 0) for kind in ("hangs", "floods", "redirects", "down"))]

                async def all_scraped() -> bool:
                    lines = (await site.text("/metrics")).splitlines()
                    return all(one in lines for one in expected) and "gpu-1" in await gpu_power(site)

                await wait_until_async(all_scraped, seconds=60, what="every target to be scraped")
                assert isinstance((await gpu_power(site))["gpu-1"], float)
                assert await figure(site, 'gpufleet_hub_unknown_metrics_total{metric="DCGM_FI_DEV_OF_TOMORROW"}') >= 1
                assert await figure(site, 'gpufleet_hub_unknown_labels_total{label="slot"}') >= 1
                _, senders = await site.request("/v1/senders")
                states = {one["sender"].rpartition("/")[2]: one["liveness"]["state"] for one in senders}
                assert states.pop("gpu-1") == "live"
                assert set(states.values()) == {"never_seen"}
                _, machines = await site.request("/v1/machines")
                assert [one["machine"]["name"] for one in machines["items"]] == ["gpu-1"]

                file.write_text("- targets: [")  # partially written

                async def is_counted() -> bool:
                    return await figure(site, "gpufleet_hub_discovery_refused_files") == 1

                await wait_until_async(is_counted, what="the broken file to be counted")
                assert up("gpu-1", 1) in await site.text("/metrics")
                file.write_text(f"- {{targets: ['{good}'], labels: {{node: gpu-2}}}}")

                async def is_reloaded() -> bool:
                    return "gpu-2" in await gpu_power(site)

                await wait_until_async(is_reloaded, seconds=60, what="the new list to be loaded")
                ups = [
                    line
                    for line in (await site.text("/metrics")).splitlines()
                    if line.startswith("gpufleet_hub_pull_up{")
                ]
                assert ups == [up("gpu-2", 1)]  # removed targets are not scraped
                assert hostile.connections.pop("elsewhere") == 0
                assert all(count > 0 for count in hostile.connections.values())


async def test_federation_keeps_the_timestamps_of_each_machine(tmp_path: Path) -> None:
    now = time.time_ns() // 10**6

    def line(n: int) -> str:
        labels = f'UUID="GPU-{n}",gpu="0",Hostname="n{n}",instance="n{n}:9400"'
        return f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {100 + n} {now - n * 1000}\n"

    def page() -> bytes:
        return "".join(map(line, (1, 2, 200))).encode()

    with serving(page) as (server, url):
        federation = FederationConfig(cluster="local", url=url.removesuffix("/metrics"), interval_seconds=1)
        async with running_site(tmp_path / "state", federation=(federation,)) as site:

            async def readings() -> dict[str, Any]:
                _, found = await site.request("/v1/gpus")
                return {one["node"]: one["device"]["readings"]["gpu_power_watts"] for one in found["items"]}

            async def complete() -> bool:
                return set(await readings()) == {"n1", "n2", "n200"} and len(server.requests) > 3

            await wait_until_async(complete, seconds=60, what="three machines on one page")
            found = await readings()
            assert {name: one["value"] for name, one in found.items()} == {"n1": 101, "n2": 102, "n200": 300}
            measured = {name: one["measured_at"] for name, one in found.items()}
            assert measured["n1"] > measured["n2"] > measured["n200"]
            _, (sender,) = await site.request("/v1/senders")
            assert sender["sender"] == "federate/prometheus"
            assert sender["liveness"]["state"] == "live"
            assert sender["missing"] == 0
            server.status = 500

            async def is_down() -> bool:
                return 'gpufleet_hub_pull_up{cluster="local",sender="federate/prometheus"} 0' in await site.text(
                    "/metrics"
                )

            await wait_until_async(is_down, seconds=30, what="the failed scrape to be counted")


def kube_page(*nodes: str) -> bytes:
    """Return a page like kube-state-metrics v2: mostly pods."""
    lines = ["# HELP kube_pod_info [STABLE] Information about pod.", "# TYPE kube_pod_info gauge"]
    lines += [f'kube_pod_info{{namespace="n",pod="p-{number}",uid="u-{number}"}} 1' for number in range(500)]
    lines.append("# HELP kube_node_status_capacity [STABLE] The total amount of resources available for a node.")
    lines.append("# TYPE kube_node_status_capacity gauge")
    for node in nodes:
        lines.append(f'kube_node_status_capacity{{node="{node}",resource="cpu",unit="core"}} 96')
        lines.append(f'kube_node_status_capacity{{node="{node}",resource="nvidia_com_gpu",unit="integer"}} 8')
        lines.append(f'kube_node_status_allocatable{{node="{node}",resource="nvidia_com_gpu",unit="integer"}} 7')
        lines.append(f'kube_node_labels{{node="{node}",label_nvidia_com_gpu_count="8"}} 1')
    return "\n".join(lines).encode() + b"\n"


async def test_node_removed_from_kube_state_metrics_is_not_counted(
    tmp_path: Path,
) -> None:
    page = [kube_page("n1", "n2", "n3")]
    with serving(lambda: page[0]) as (_, url):
        kubernetes = KubeStateMetricsConfig(cluster="local", url=url, interval_seconds=1)
        async with running_site(tmp_path / "state", kube_state_metrics=(kubernetes,)) as site:

            async def kubernetes_counts() -> tuple[Any, ...]:
                _, cluster = await site.request("/v1/clusters/local")
                counts = cluster["coverage"].get("kubernetes") or []
                return tuple((one["reader"], one["machines"], one["gpus"], one["allocatable"]) for one in counts)

            async def all_nodes() -> bool:
                return await kubernetes_counts() == (("scrape/kube_state_metrics", 3, 24, 21),)

            await wait_until_async(all_nodes, seconds=60, what="three nodes")
            _, (sender,) = await site.request("/v1/senders")
            assert (sender["sender"], sender["liveness"]["state"]) == ("scrape/kube-state-metrics", "live")
            # Series of pods and CPUs are not counted as unrecognised.
            assert await figure(site, "gpufleet_hub_unrecognised_samples_total") == 0

            page[0] = kube_page("n1", "n2")

            async def third_removed() -> bool:
                return await kubernetes_counts() == (("scrape/kube_state_metrics", 2, 16, 14),)

            await wait_until_async(third_removed, seconds=60, what="the third node to be removed")
            page[0] = b"up 1\n"  # another server answers at the URL

            async def is_down() -> bool:
                return await figure(site, "gpufleet_hub_pull_up") == 0

            await wait_until_async(is_down, seconds=30, what="the failed scrape to be counted")
            assert await third_removed()  # the last counts remain valid for a while
            page[0] = kube_page("n1", "n2", "n3")
            await wait_until_async(all_nodes, seconds=60, what="the third node to return")
