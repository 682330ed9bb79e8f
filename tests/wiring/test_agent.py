"""Agent in this process: bound port, real host readings, clean stop."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from gpufleet.config.agent import AgentConfig, HubClientConfig, LanesConfig, NvmlConfig, ReadersConfig
from gpufleet.model.errors import GpufleetError, SpoolError
from gpufleet.wiring.agent import running_agent
from gpufleet.wiring.readers import RATE_READERS, READERS
from gpufleet.wiring.snapshot import snapshot_once
from tests.fakes.hub import FakeHub
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async

HOST_ONLY = ReadersConfig(nvml=NvmlConfig(enabled=False))


def config(tmp_path: Path, **changes: object) -> AgentConfig:
    known: dict[str, object] = {"listen": "127.0.0.1:0", "state": str(tmp_path), "readers": HOST_ONLY, "node": "n1"}
    return AgentConfig(**{**known, **changes})  # type: ignore[arg-type]


async def test_agent_serves_a_free_port_and_delivers(tmp_path: Path) -> None:
    async with FakeHub.running() as hub:
        lanes = LanesConfig(fast=1.0, slow=1.0)
        async with running_agent(config(tmp_path, hub=HubClientConfig(url=hub.url), lanes=lanes)) as agent:
            async with aiohttp.ClientSession() as session, session.get(f"{agent.url}/healthz") as answer:
                assert answer.status == 200
            await asyncio.wait_for(hub.arrived.wait(), 20)
            assert not agent.task.done()
        assert agent.task.done()
    first = hub.taken[0]
    assert (first.sender, first.cluster, first.seq) == ("n1", "local", 1)
    assert {machine.name for batch in hub.taken for machine in batch.machines} == {"n1"}


async def test_stop_delivers_pending_batches(tmp_path: Path) -> None:
    async with FakeHub.running() as hub:
        settings = config(tmp_path, hub=HubClientConfig(url=hub.url))
        async with running_agent(settings) as agent, aiohttp.ClientSession() as session:

            async def ready() -> bool:
                async with session.get(f"{agent.url}/readyz") as answer:
                    return answer.status == 200

            await wait_until_async(ready)
        assert any(batch.samples for batch in hub.taken)


async def test_two_agents_do_not_share_a_spool(tmp_path: Path) -> None:
    pushing = config(tmp_path, hub=HubClientConfig(url=f"http://127.0.0.1:{free_port()}"))
    async with running_agent(pushing):
        with pytest.raises(SpoolError):
            async with running_agent(pushing):
                pass


async def test_port_in_use_is_reported(tmp_path: Path) -> None:
    async with running_agent(config(tmp_path)) as agent:
        with pytest.raises(GpufleetError, match="Address already in use"):
            async with running_agent(config(tmp_path, listen=f"127.0.0.1:{agent.port}")):
                pass


async def test_single_snapshot_has_cpu_utilization(tmp_path: Path) -> None:
    snapshot = await snapshot_once(config(tmp_path))
    assert snapshot.node.name == "n1"
    share = snapshot.host.readings["host_cpu_utilization_ratio"].value
    assert isinstance(share, float)
    assert 0 <= share <= 1
    assert {report.state for report in snapshot.readers} <= {"ok", "partial"}


def test_reader_registry_matches_the_configuration() -> None:
    assert set(READERS) | {"exporter"} == set(ReadersConfig.__struct_fields__)  # one reader per exporter target
    assert set(READERS) >= RATE_READERS
