"""Enabled readers of a machine."""

from pathlib import Path

import pytest

from gpufleet.config.agent import DcgmConfig, HostConfig, NvidiaSmiConfig, NvmlConfig, ReadersConfig
from gpufleet.runtime import SystemClock
from gpufleet.wiring.readers import (
    READERS,
    capabilities,
    enabled_readers,
    has_binding,
    kubernetes_node,
    make_readers,
)
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi


@pytest.fixture
def command(tmp_path: Path) -> str:
    return str(FakeNvidiaSmi(tmp_path).path)


def test_nvml_is_used_if_its_binding_is_installed(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(command=command))
    assert has_binding()
    assert enabled_readers(config, binding=True) == ("host", "nvml", "kmsg")
    assert capabilities(config, binding=True) == {}


def test_nvidia_smi_replaces_nvml_without_its_binding(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(command=command))
    assert enabled_readers(config, binding=False) == ("host", "nvidia_smi", "kmsg")
    assert capabilities(config, binding=False)["nvml"].startswith("no_library: the Python package nvidia-ml-py")


def test_nvml_stays_enabled_without_binding_and_nvidia_smi() -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(command="gpufleet-no-such-command"))
    assert enabled_readers(config, binding=False) == ("host", "nvml", "kmsg")
    assert capabilities(config, binding=False) == {}


def test_disabled_nvml_is_not_replaced(command: str) -> None:
    config = ReadersConfig(nvml=NvmlConfig(enabled=False), nvidia_smi=NvidiaSmiConfig(command=command))
    assert enabled_readers(config, binding=False) == ("host", "kmsg")


def test_nvidia_smi_is_not_used_with_use_never(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(use="never", command=command))
    assert enabled_readers(config, binding=False) == ("host", "nvml", "kmsg")


def test_both_readers_are_used_with_use_always(command: str) -> None:
    config = ReadersConfig(nvidia_smi=NvidiaSmiConfig(use="always", command=command))
    timeouts = {reader.name: seconds for reader, seconds in make_readers(config, SystemClock())}
    assert timeouts == {"host": 20.0, "nvml": 20.0, "nvidia_smi": 30.0, "kmsg": 20.0}
    assert timeouts.keys() == READERS.keys() - {"dcgm", "netdata"}  # these need an address


def test_dcgm_is_used_if_its_address_is_set() -> None:
    config = ReadersConfig(nvml=NvmlConfig(enabled=False), dcgm=DcgmConfig(address="unix:///run/nvidia-dcgm.socket"))
    assert enabled_readers(config, binding=True) == ("host", "kmsg", "dcgm")
    assert [reader.name for reader, _ in make_readers(config, SystemClock())] == ["host", "kmsg", "dcgm"]


def test_node_name_counts_in_a_pod_only() -> None:
    pod = {"NODE_NAME": "gpu-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert kubernetes_node(HostConfig(), pod).pod_node == "gpu-1"
    assert kubernetes_node(HostConfig(), {"NODE_NAME": "gpu-1"}).pod_node == ""


def test_configured_node_and_folder_of_certificates() -> None:
    config = HostConfig(k8s_node_name="gpu-1", kubelet_certificates="/srv/pki/")
    node = kubernetes_node(config, {})
    assert (node.name, node.uid, node.certificate) == ("gpu-1", "", "/srv/pki/kubelet-client-current.pem")


def test_metadata_service_is_created_on_opt_in_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr("gpufleet.readers.host.metadata.CloudMetadata", lambda: made.append("made"))
    READERS["host"](ReadersConfig(), SystemClock())
    assert made == []
    READERS["host"](ReadersConfig(host=HostConfig(cloud_metadata=True)), SystemClock())
    assert made == ["made"]
