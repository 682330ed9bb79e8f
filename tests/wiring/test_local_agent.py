"""Agent inside a command: repeated readings of this host, and devices that an operator released."""

from pathlib import Path

import msgspec

from gpufleet.agent.collect.release import ANSWER, REQUEST, Release
from gpufleet.config.agent import AgentConfig, HubClientConfig, NvmlConfig, ReadersConfig
from gpufleet.wiring.local_agent import running_local_agent
from tests.support.waiting import wait_until_async


async def test_snapshots_follow_the_interval(tmp_path: Path) -> None:
    readers = ReadersConfig(nvml=NvmlConfig(enabled=False))
    hub = HubClientConfig(url="http://127.0.0.1:1")
    settings = AgentConfig(state=str(tmp_path), readers=readers, node="n1", hub=hub)
    async with running_local_agent(settings, 1.0) as snapshot:
        first = await snapshot()
        assert first.node.name == "n1"
        assert first.host.readings["host_memory_total_bytes"].value

        async def is_newer() -> bool:
            return (await snapshot()).measured_at > first.measured_at

        await wait_until_async(is_newer)
    assert next(tmp_path.iterdir(), None) is None  # noqa: ASYNC240 - the agent has ended


async def test_release_of_the_agent_is_followed_and_not_answered(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / REQUEST).write_bytes(msgspec.json.encode(Release(since=1)))
    (folder / ANSWER).write_bytes(b'{"pid":1,"at":1,"since":1}')
    async with running_local_agent(AgentConfig(state=str(tmp_path)), 1.0) as snapshot:
        nvml = [one for one in (await snapshot()).readers if one.reader == "nvml"]
    assert {one.error_class for one in nvml if one.lane != "event"} <= {"not_collected"}
    assert (folder / ANSWER).read_bytes() == b'{"pid":1,"at":1,"since":1}'
