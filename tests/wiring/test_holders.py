"""Holder sources of a configuration."""

import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import LibvirtConfig
from gpufleet.config.holders import HoldersConfig
from gpufleet.model.holdings import HolderKind
from gpufleet.model.snapshot import Device
from gpufleet.model.view import Side, ViewKind
from gpufleet.runtime import SystemClock
from gpufleet.wiring.holders import SOURCES, make_holders
from tests.fakes.kubelet import KUBELET, FakeContainer, FakeKubelet, FakePod, node_folder

UUID = "GPU-7f5e7c15-0000-4000-8000-000000000001"
GPU = Device(key=f"gpu/{UUID}", kind=ViewKind.GPU, side=Side.HOST, uuid=UUID, readings={})


def config(state: Path, *names: str, **own: Any) -> AgentConfig:
    """Return a configuration with these sources, each with its own keys."""
    tables = {name: {"enabled": name in names, **own.get(name, {})} for name in SOURCES}
    return AgentConfig(
        state=str(state),
        libvirt=LibvirtConfig(socket=str(state / "libvirt-sock-ro")),
        holders=msgspec.convert(tables, HoldersConfig),
    )


def test_without_sources_there_is_no_collector(tmp_path: Path) -> None:
    assert make_holders(config(tmp_path), SystemClock()) is None


@pytest.mark.parametrize("name", SOURCES)
async def test_each_source_can_be_used_alone(name: str, tmp_path: Path) -> None:
    collector = make_holders(config(tmp_path, name), SystemClock(), saves=False)
    assert collector is not None
    await collector.round([GPU])
    assert collector.capabilities.keys() == {f"holders_{name}"}
    await collector.close()


async def test_configured_folders_and_sockets_are_used(tmp_path: Path) -> None:
    own = {"kubelet": {"folder": str(tmp_path / "kubelet")}}
    collector = make_holders(config(tmp_path, "kubelet", "libvirt", **own), SystemClock(), saves=False)
    assert collector is not None
    await collector.round([GPU])
    assert str(tmp_path / "kubelet") in collector.capabilities["holders_kubelet"]
    assert str(tmp_path / "libvirt-sock-ro") in collector.capabilities["holders_libvirt"]
    await collector.close()


async def test_uids_of_pods_come_from_the_configured_logs(tmp_path: Path) -> None:
    pod = FakePod("ml", "a", str(uuid.uuid4()), (FakeContainer("main", devices={"nvidia.com/gpu": (UUID,)}),))
    with node_folder() as root, FakeKubelet(root) as kubelet:
        kubelet.place(pod)
        logs = {"pod_logs": str(root / "var/log/pods"), "container_logs": str(root / "var/log/containers")}
        own = {"kubelet": {"folder": str(root / KUBELET), **logs}}
        collector = make_holders(config(tmp_path, "kubelet", **own), SystemClock(), saves=False)
        assert collector is not None
        await collector.round([GPU])
        (holding,) = collector.devices[GPU.key].holdings
        await collector.close()
    assert (holding.holder.kind, holding.holder.id) == (HolderKind.POD, pod.uid)


@pytest.mark.parametrize("saves", [True, False])
async def test_holdings_are_saved_in_the_state_folder(saves: bool, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    with node_folder() as root, FakeKubelet(root) as kubelet:
        kubelet.place(FakePod("ml", "a", "u", (FakeContainer("main", devices={"nvidia.com/gpu": (UUID,)}),)))
        own = {"kubelet": {"folder": str(root / KUBELET)}}
        collector = make_holders(config(tmp_path, "kubelet", **own), SystemClock(), saves=saves)
        assert collector is not None
        await collector.round([GPU])
        await collector.close()
    assert (tmp_path / "agent" / "holdings.json").exists() is saves
