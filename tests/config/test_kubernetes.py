"""Configuration of the agent's use of the Kubernetes API."""

from typing import Any

import msgspec
import pytest

from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.kubernetes import KubernetesConfig
from gpufleet.config.load import load


def test_agent_does_not_read_the_api_by_default() -> None:
    settings = AgentConfig().kubernetes
    assert (settings.enrich, settings.kubeconfig) == (False, None)
    assert settings.pod_labels == settings.pod_annotations == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": "prod-1"},
        {"timeout_seconds": 0},
        {"pod_labels": ["*"]},
        {"pod_annotations": ["a b"]},
        {"pod_labels": ["a"] * 65},
        {"owners": True},
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, KubernetesConfig)


def test_variables_of_a_pod_enable_it() -> None:
    env = {
        "GPUFLEET_AGENT_KUBERNETES__ENRICH": "true",
        "GPUFLEET_AGENT_KUBERNETES__POD_LABELS": "team,example.com/*",
    }
    settings = load(AgentConfig, file=None, env_prefix=ENV_PREFIX, env=env, flags={}).kubernetes
    assert (settings.enrich, settings.pod_labels) == (True, ("team", "example.com/*"))
