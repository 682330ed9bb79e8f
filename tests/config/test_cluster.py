"""Configuration of the cluster collector."""

from pathlib import Path

import pytest

from gpufleet.config.cluster import ENV_PREFIX, ClusterAgentConfig, default_replica
from gpufleet.config.load import load
from gpufleet.config.template import render_template
from gpufleet.model.errors import ConfigError


def configured(text: str, tmp_path: Path, **env: str) -> ClusterAgentConfig:
    file = tmp_path / "cluster-agent.toml"
    file.write_text(text)
    return load(ClusterAgentConfig, file=file, env_prefix=ENV_PREFIX, env=env, flags={})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[hub]\nurl = "http://127.0.0.1:8470"', "cluster"),
        ('listen = "0.0.0.0:9480"', "listen"),
        ('[api]\ncontext = "prod-1"', "api.context"),
        ('[collect]\npod_labels = ["a b"]', "collect.pod_labels"),
        ('[collect]\npod_labels = ["*"]', "collect.pod_labels"),
        ('[lease]\nnamespace = "Not A Name"', "lease.namespace"),
        ('state = ""', "state"),
    ],
)
def test_invalid_values_are_named(text: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(text, tmp_path)
    assert raised.value.key == key


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    config = configured(
        'cluster = "prod-1"\n[hub]\nurl = "http://127.0.0.1:8470"\n[collect]\nowners = false',
        tmp_path,
        GPUFLEET_CLUSTER_AGENT_CLUSTER="prod-2",
        GPUFLEET_CLUSTER_AGENT_COLLECT__POD_LABELS="team,example.com/*",
        GPUFLEET_CLUSTER_AGENT_LEASE__ENABLED="false",
    )
    assert (config.cluster, config.collect.owners, config.lease.enabled) == ("prod-2", False, False)
    assert config.collect.pod_labels == ("team", "example.com/*")
    assert config.folder == Path(config.state, "cluster-agent")


def test_default_name_is_the_name_of_the_pod() -> None:
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert default_replica({**in_pod, "POD_NAME": "collector-1"}, "node-1") == "collector-1"
    assert default_replica(in_pod, "collector-1") == "collector-1"
    assert default_replica({}, "node-1") == "node-1-cluster-agent"


def test_template_without_comments_is_valid(tmp_path: Path) -> None:
    template = render_template(ClusterAgentConfig, daemon="cluster-agent", env_prefix=ENV_PREFIX)
    lines = [line.removeprefix("#") for line in template.splitlines() if line.startswith(("#", "["))]
    settings = [line for line in lines if not line.startswith(" ")]
    config = configured("\n".join(settings), tmp_path)
    assert (config.cluster, config.api.context) == ("prod-1", "prod-1")
