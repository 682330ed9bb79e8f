"""Construction of the discovery: node name, minimal RBAC, an API server that rejects or does not answer."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.guests import DcgmChannel, GuestConfig
from gpufleet.config.load import resolve
from gpufleet.holders.kubernetes.resources import VIRTUAL_MACHINE_INSTANCES
from gpufleet.model.errors import ConfigError
from gpufleet.runtime import SystemClock
from gpufleet.wiring.agent import running_agent
from gpufleet.wiring.guests import find_guest
from gpufleet.wiring.kubevirt import node_name
from gpufleet.wiring.validation import check_agent
from tests.fakes.kube_api import FakeKubeApi, Rule
from tests.holders.kubevirt.objects import NODE, UID, vmi_object
from tests.support.kube_objects import VMI_KIND, key_of
from tests.support.processes import get_json
from tests.support.waiting import wait_until_async

VMI_KEY = key_of(VIRTUAL_MACHINE_INSTANCES)
LIST_WATCH = Rule("kubevirt.io", "virtualmachineinstances", ("list", "watch"))


def agent_config(folder: Path, kubeconfig: Path) -> AgentConfig:
    fields: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "state": str(folder / "state"),
        "readers": {"host": {"k8s_node_name": NODE}, "nvml": {"enabled": False}},
        "kubevirt": {"enabled": True, "kubeconfig": str(kubeconfig)},
    }
    return msgspec.convert(fields, AgentConfig)


def test_node_name_is_configured_or_of_the_pod() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "gpu-2"}
    assert node_name(AgentConfig(), pod) == "gpu-2"
    configured = msgspec.convert({"readers": {"host": {"k8s_node_name": NODE}}}, AgentConfig)
    assert node_name(configured, pod) == NODE
    with pytest.raises(ConfigError) as missing:
        node_name(AgentConfig(), {"NODE_NAME": "gpu-2"})
    assert missing.value.key == "readers.host.k8s_node_name"


async def snapshot(url: str) -> Any:
    return await asyncio.to_thread(get_json, f"{url}/v1/snapshot")


@pytest.mark.parametrize(("rules", "expected"), [((LIST_WATCH,), "available"), ((), "failing")])
async def test_list_and_watch_of_machines_is_enough(tmp_path: Path, rules: tuple[Rule, ...], expected: str) -> None:
    async with FakeKubeApi() as api:
        api.serve(VMI_KIND)
        api.put(VMI_KEY, vmi_object(annotation=None))
        api.put(VMI_KEY, vmi_object("elsewhere", uid=UID[:-1] + "2", node="gpu-2"))
        api.tokens["agent"] = rules
        async with running_agent(agent_config(tmp_path, api.kubeconfig(tmp_path, "agent"))) as agent:

            async def is_reached() -> bool:
                found = await snapshot(agent.url)
                return found["capabilities"]["guests"].startswith(expected) and (not rules or bool(found["guests"]))

            await wait_until_async(is_reached, what=f"the guests to be {expected}")
            guests = (await snapshot(agent.url))["guests"]
    assert [(one["machine"]["name"], one["excluded"]) for one in guests] == ([("ml/train-0", True)] if rules else [])
    assert {method for method, _, _ in api.requests} == {"GET"}
    assert {path for _, path, _ in api.requests} == {"/apis/kubevirt.io/v1/virtualmachineinstances"}


async def test_guest_is_found_for_a_capture_by_its_names(tmp_path: Path) -> None:
    async with FakeKubeApi() as api:
        api.serve(VMI_KIND)
        api.put(VMI_KEY, vmi_object())
        api.put(VMI_KEY, vmi_object("private", uid=UID[:-1] + "2", cid=43, annotation=None))
        api.put(VMI_KEY, vmi_object("elsewhere", uid=UID[:-1] + "3", cid=44, node="gpu-2"))
        api.tokens["agent"] = (LIST_WATCH,)
        config = agent_config(tmp_path, api.kubeconfig(tmp_path, "agent"))
        for name in ("train-0", "ml/train-0", UID):
            assert (await find_guest(config, name, SystemClock())).uid == UID
        for name in ("private", "elsewhere", "other"):  # without consent, on another node, unknown
            with pytest.raises(ConfigError):
                await find_guest(config, name, SystemClock())


async def test_api_server_that_rejects_is_named_by_a_capture(tmp_path: Path) -> None:
    async with FakeKubeApi() as api:
        api.serve(VMI_KIND)
        api.tokens["agent"] = ()
        with pytest.raises(ConfigError, match="forbidden"):
            await find_guest(agent_config(tmp_path, api.kubeconfig(tmp_path, "agent")), "train-0", SystemClock())


async def test_configured_guest_needs_no_api_server(tmp_path: Path) -> None:
    channel = DcgmChannel(address="vsock://42:5555")
    own = GuestConfig(name="train-0", namespace="ml", vm_uuid=UID, channels=(channel,))
    config = msgspec.structs.replace(agent_config(tmp_path, tmp_path / "missing"), guests=(own,))
    assert await find_guest(config, "train-0", SystemClock()) == own


def test_missing_kubeconfig_is_found_by_validate(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"state = '{tmp_path}/state'\n[kubevirt]\nenabled = true\nkubeconfig = '{tmp_path}/none'\n")
    resolved = resolve(AgentConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})
    assert [error.key for error in check_agent(resolved, daemon=False)] == ["kubevirt.kubeconfig"]


async def test_missing_credentials_are_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        async with running_agent(agent_config(tmp_path, tmp_path / "missing")):
            pass
