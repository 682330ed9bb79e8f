"""The value `agent.enrich` of the Helm chart: permissions, credentials and network of the agents."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.cluster.permissions import owner_permissions
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import load
from tests.support.helm import Helm, Rendered, Values, environment_of, restricted_violations

pytestmark = pytest.mark.system

ENABLED = ("tier=3", "agent.holders.pods=true", "agent.enrich.enabled=true")
KUBEVIRT = ("agent.kubevirt.enabled=true", "agent.kubevirt.vsock=node")
JOBSETS = tuple(f"agent.enrich.otherOwners[0].{part}" for part in ("group=jobset.x-k8s.io", "resources={jobsets}"))

Permissions = set[tuple[str, str, str]]
PODS: Permissions = {("", "pods", "list"), ("", "pods", "watch")}
MACHINES: Permissions = {("kubevirt.io", "virtualmachineinstances", verb) for verb in ("list", "watch")}


@pytest.fixture(scope="module")
def helm(peer: Callable[[str], Path]) -> Helm:
    return Helm(peer("helm"))


def owners(*groups: str) -> Permissions:
    return {(one.group, one.resource, verb) for one in owner_permissions() for verb in one.verbs if one.group in groups}


def of_agents(rendered: Rendered) -> Permissions:
    """Return group, resource and verb of each permission of the agents."""
    roles = [one for name, one in rendered.of("ClusterRole").items() if name.endswith("gpufleet-agent")]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), PODS | owners("apps", "batch")),
        (JOBSETS, PODS | owners("apps", "batch", "jobset.x-k8s.io")),
        (KUBEVIRT, PODS | owners("apps", "batch", "kubevirt.io") | MACHINES),
        (("rbac.create=false",), set()),
    ],
)
def test_agents_may_read_pods_and_their_owners_only(helm: Helm, more: tuple[str, ...], expected: Permissions) -> None:
    assert of_agents(helm.render(Values((*ENABLED, *more)))) == expected


def test_each_rule_has_a_reason(helm: Helm) -> None:
    lines = helm.render(Values((*ENABLED, *KUBEVIRT, *JOBSETS))).text.splitlines()
    rules = [number for number, line in enumerate(lines) if line.strip().startswith("- apiGroups:")]
    assert all(lines[number - 1].strip().startswith("# ") for number in rules)


def test_agents_have_credentials_and_a_way_to_the_api_server(helm: Helm) -> None:
    labels = ("agent.enrich.podLabels={team,example.com/*}", "agent.enrich.podAnnotations={note}")
    rendered = helm.render(Values((*ENABLED, *labels)))
    agent = rendered.pods()["agent"]
    volumes = {one["name"]: one for one in agent["volumes"]}
    token = volumes["api-token"]["projected"]["sources"][0]["serviceAccountToken"]
    assert "audience" not in token
    assert "node-identity" not in volumes
    settings = load(AgentConfig, file=None, env_prefix=ENV_PREFIX, env=environment_of(agent), flags={}).kubernetes
    assert (settings.enrich, settings.pod_labels) == (True, ("team", "example.com/*"))
    assert settings.pod_annotations == ("note",)
    egress = rendered.of("NetworkPolicy")["agent"]["spec"]["egress"]
    assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 443, 6443, 8470}
    without = helm.render(Values(ENABLED[:2])).pods()["agent"]
    assert restricted_violations(agent) == restricted_violations(without)


@pytest.mark.parametrize("assignments", [ENABLED[:2], ("tier=2", *ENABLED[1:])])
def test_agents_have_no_permission_without_the_value_or_in_tier_2(helm: Helm, assignments: tuple[str, ...]) -> None:
    rendered = helm.render(Values(assignments))
    assert of_agents(rendered) == set()
    assert "node-identity" in {one["name"] for one in rendered.pods()["agent"]["volumes"]}


def test_value_without_a_source_of_pods_is_refused(helm: Helm) -> None:
    done = helm.template(Values(("tier=3", "agent.enrich.enabled=true")))
    assert done.returncode != 0
    assert "agent.holders.pods" in done.stderr


@pytest.mark.parametrize(
    "assignment", ["agent.enrich.enabled=yes", "agent.enrich.podLabels={a b}", "agent.enrich.unknown=1"]
)
def test_schema_refuses_a_wrong_value(helm: Helm, assignment: str) -> None:
    done = helm.template(Values((assignment,)))
    assert done.returncode != 0
    assert "schema" in done.stderr
