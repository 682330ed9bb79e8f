"""Configuration of the discovery of KubeVirt's virtual machines."""

from typing import Any

import msgspec
import pytest

from gpufleet.config.kubevirt import KubevirtConfig


def test_disabled_by_default_without_tcp_and_credentials() -> None:
    settings = KubevirtConfig()
    assert not settings.enabled
    assert (settings.networks, settings.ssh.key_file, settings.guest_agent_socket) == ((), None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dcgm_port": 1},
        {"dcgm_port": 1023},
        {"vsock": "guess"},
        {"networks": ["10.244.0.1/16"]},
        {"networks": ["pods"]},
        {"labels": ["*"]},
        {"guest_agent_socket": "agents/{uid}"},
        {"guest_agent_socket": "/run/{name}"},
        {"guest_agent_socket": "/run/{uid}/{user}"},
        {"guest_agent_socket": "/run/{uid}/{"},
        {"guest_agent_socket": "/run/{uid}/org.qemu.guest_agent.0"},
        {"ssh": {"password": "x"}},
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, KubevirtConfig)
