"""The Helm chart and the plain manifests, rendered by helm and checked by a real API server."""

import http.server
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpufleet import __version__
from gpufleet.cluster.permissions import Permission, owner_permissions, required_permissions
from gpufleet.config.agent import ENV_PREFIX as AGENT_PREFIX
from gpufleet.config.agent import AgentConfig
from gpufleet.config.cluster import ENV_PREFIX as CLUSTER_PREFIX
from gpufleet.config.cluster import ClusterAgentConfig
from gpufleet.config.hub import ENV_PREFIX as HUB_PREFIX
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import load
from gpufleet.rules.render import render_rules
from gpufleet.rules.rule import RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.command import gpufleet
from tests.support.helm import (
    CHART,
    EXAMPLES,
    Helm,
    Object,
    Values,
    container_of,
    environment_of,
    host_paths,
    restricted_violations,
)
from tests.support.kube import GIVEN, KubeServer
from tests.support.uv import ROOT
from tests.support.waiting import PATIENCE
from tools.manifests import manifests, rule_files

pytestmark = pytest.mark.system

TIERS = {tier: Values((f"tier={tier}",)) for tier in (1, 2, 3)}
SCRAPED = ("metrics.enabled=true", "metrics.tls.secretName=tls", "metrics.token.secretName=scrape")
HUB = ("hub.enabled=true", "hub.image.repository=registry.example/gpufleet-hub", "hub.insecure=true")
RELAY = ("relay.enabled=true", "relay.image.repository=registry.example/gpufleet-hub", "relay.insecure=true")
ENTERS = tuple(f"agent.kubevirt.{part}" for part in ("enabled=true", "vsock=node", "enterNamespaces=true"))
ALL = [
    *TIERS.values(),
    Values(("tier=3", *SCRAPED, "metrics.podMonitor.enabled=true")),
    Values(("tier=3", *HUB, *RELAY)),
    Values(("tier=3", "agent.kernelLog=true", "agent.hostNetwork=true", "agent.hostFiles=true", *ENTERS)),
    *(Values(example=name) for name in sorted(EXAMPLES)),
]
RECORDS: dict[str, tuple[type[msgspec.Struct], str, str]] = {
    "agent": (AgentConfig, AGENT_PREFIX, "agent.toml"),
    "cluster-agent": (ClusterAgentConfig, CLUSTER_PREFIX, "agent.toml"),
    "hub": (HubConfig, HUB_PREFIX, "hub.toml"),
    "relay": (HubConfig, HUB_PREFIX, "hub.toml"),
}


@pytest.fixture(scope="module")
def helm(peer: Callable[[str], Path]) -> Helm:
    return Helm(peer("helm"))


def name_of(values: Values) -> str:
    return values.example or ",".join(values.assignments)


every = pytest.mark.parametrize("values", ALL, ids=name_of)


def twice(component: str, variable: str) -> list[str]:
    """Return assignments of a variable that the chart sets too."""
    return [f"{component}.extraEnv[0].{part}" for part in (f"name={variable}", "value=x")]


@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_helm_lint_accepts_each_example(helm: Helm, example: str) -> None:
    done = helm.run("lint", "--strict", CHART, "--values", EXAMPLES[example])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("assignments", "named"),
    [
        (["cluster.id="], "cluster.id"),
        (["image.repository="], "image.repository"),
        (["sendTo.url="], "sendTo.url"),
        (["sendTo.url=http://hub.example:8470"], "sendTo.insecure"),
        (["tier=0"], "tier"),
        (["metrics.enabled=true"], "metrics.tls.secretName"),
        (["metrics.podMonitor.enabled=true"], "metrics.enabled"),
        (["agent.hostState=/var/lib/gpufleet"], "agent.hostState"),
        (["agent.holders.podFolders=true"], "agent.holders.pods"),
        (["agent.kubevirt.enterNamespaces=true"], "agent.kubevirt.vsock"),
        ([*HUB[:1]], "hub.image.repository"),
        ([*RELAY[:2]], "relay.tls.secretName"),
        ([*RELAY, "sendTo.url="], "sendTo.url"),
        ([*HUB[:2], "hub.tls.secretName=tls"], "hub.clients.token.secretName"),
        (["tier=2", "exporter.selector=null"], "exporter.selector"),
        (["tier=3", *twice("agent", "GPUFLEET_AGENT_STATE")], "agent.extraEnv"),
        (twice("clusterAgent", "GPUFLEET_CLUSTER_AGENT_LEASE__NAME"), "clusterAgent.extraEnv"),
        ([*HUB, *RELAY, "sendTo.url=https://h.example", *twice("relay", "GPUFLEET_HUB_STATE")], "relay.extraEnv"),
    ],
)
def test_combination_that_cannot_work_is_refused_by_name(helm: Helm, assignments: list[str], named: str) -> None:
    done = helm.template(Values(tuple(assignments)))
    assert done.returncode != 0
    assert named in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    "assignment",
    [
        *(
            "tier=4",
            "tier=one",
            "cluster.id=-",
            "cluster.name=a",
            "sendTo.url=hub.example",
            "sendTo.url=https://h/path",
            "sendTo.url=https://hub.example:65536",
            "proxy.https=http://proxy.example:0",
        ),
        *("clusterAgent.replicas=0", "agent.dialects={json}", "agent.holders.pods=yes", "agent.hostState=var/lib"),
        *("exporter.port=0", "exporter.port=70000", "sendTo.token.secretName=A_B", "sendTo.token.value=gpf_1_2"),
        *("prometheusRule.inputs={other}", "networkPolicy.hubCidrs={hub}", "image.digest=sha256:1", "agent.unknown=1"),
        "prometheusRule.runbookUrl=wiki.example/runbooks",
    ],
)
def test_schema_refuses_a_wrong_value(helm: Helm, assignment: str) -> None:
    done = helm.template(Values((assignment,)))
    assert done.returncode != 0
    assert "schema" in done.stderr


def test_tier_2_needs_a_kubernetes_with_local_services(helm: Helm) -> None:
    """Without `internalTrafficPolicy`, an agent would read dcgm-exporter of another node."""
    assert helm.template(Values(("tier=2",), kube_version="1.21.14")).returncode != 0
    service = helm.render(TIERS[2]).of("Service")["exporter"]
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    assert service["metadata"]["namespace"] == "gpu-operator"


def test_disruption_budget_has_the_version_of_the_cluster(helm: Helm) -> None:
    for version, expected in (("1.20.2", "policy/v1beta1"), ("1.21.0", "policy/v1"), ("1.36.2-gke.1", "policy/v1")):
        rendered = helm.render(Values(("tier=1",), kube_version=version))
        assert rendered.of("PodDisruptionBudget")["cluster-agent"]["apiVersion"] == expected
    single = helm.render(Values(("tier=1", "clusterAgent.replicas=1")))
    assert single.of("PodDisruptionBudget") == {}


@pytest.mark.parametrize(("tier", "components"), [(1, {"cluster-agent"}), (2, {"cluster-agent", "agent"})])
def test_tier_has_its_components(helm: Helm, tier: int, components: set[str]) -> None:
    rendered = helm.render(TIERS[tier])
    assert set(rendered.pods()) == components
    assert set(rendered.of("NetworkPolicy")) == components
    assert set(rendered.of("ServiceAccount")) == components


@every
def test_pods_have_no_implicit_rights(helm: Helm, values: Values) -> None:
    for name, pod in helm.render(values).pods().items():
        container = container_of(pod)
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "variables of a Service would be read as configuration"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["resources"]["limits"]["memory"]
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert "nvidia.com/gpu" not in json.dumps(container["resources"]), "workloads keep all GPUs"
        assert {"livenessProbe", "readinessProbe"} <= set(container)
        if name != "agent":
            assert restricted_violations(pod) == set()


@pytest.mark.parametrize("tier", TIERS)
def test_default_tier_is_restricted(helm: Helm, tier: int) -> None:
    for pod in helm.render(TIERS[tier]).pods().values():
        assert restricted_violations(pod) == set()


CAPABILITIES = {
    "agent.holders.processes=true": ["SYS_PTRACE", "DAC_READ_SEARCH"],
    "agent.kubevirt.enterNamespaces=true": ["SYS_PTRACE", "SYS_ADMIN", "DAC_OVERRIDE"],
}
"""Value to the capabilities that it adds."""
ROOT_USER = {"runAsNonRoot", "runAsUser"}
KUBELET = {"/var/lib/kubelet/pod-resources", "/var/log/pods", "/var/log/containers", "/sys/fs/cgroup"}


@pytest.mark.parametrize(
    ("assignments", "violations", "paths"),
    [
        (["agent.holders.pods=true"], {*ROOT_USER, "hostPath"}, KUBELET),
        (
            ["agent.holders.pods=true", "agent.holders.podFolders=true"],
            {*ROOT_USER, "hostPath"},
            {*KUBELET, "/var/lib/kubelet/pods"},
        ),
        (
            ["agent.holders.pods=true", "agent.holders.claims=true"],
            {*ROOT_USER, "hostPath"},
            {*KUBELET, "/etc/cdi", "/run/cdi"},
        ),
        (
            ["agent.holders.pods=true", "agent.hostState=/srv/gpufleet"],
            {*ROOT_USER, "hostPath"},
            {*KUBELET, "/srv/gpufleet"},
        ),
        (
            ["agent.holders.processes=true"],
            {*ROOT_USER, "hostPath", "hostPID", "capabilities.add"},
            {"/sys/fs/cgroup"},
        ),
        (
            ["agent.kernelLog=true"],
            {*ROOT_USER, "hostPath", "privileged", "allowPrivilegeEscalation", "capabilities.drop"},
            {"/dev/kmsg"},
        ),
        (["agent.kubevirt.enabled=true"], set(), set()),
        (["agent.kubevirt.enabled=true", "agent.kubevirt.vsock=node"], {"seccompProfile"}, set()),
        (
            [*ENTERS],
            {*ROOT_USER, "hostPath", "hostPID", "capabilities.add", "seccompProfile"},
            {"/var/lib/kubelet/pods"},
        ),
        (["agent.hostNetwork=true"], {"hostNetwork"}, set()),
        (["agent.hostFiles=true"], {"hostPath"}, {"/etc/machine-id", "/etc/os-release"}),
    ],
    ids=lambda part: part[-1] if isinstance(part, list) else "",
)
def test_value_gives_its_privilege_and_no_other(
    helm: Helm, assignments: list[str], violations: set[str], paths: set[str]
) -> None:
    rendered = helm.render(Values(("tier=3", *assignments)))
    agent = rendered.pods()["agent"]
    assert restricted_violations(agent) == violations
    assert host_paths(agent) == paths
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container_of(agent)["volumeMounts"]}
    assert all(mounts[path] for path in paths if path != "/srv/gpufleet")
    added = container_of(agent)["securityContext"].get("capabilities", {}).get("add", [])
    assert added == CAPABILITIES.get(assignments[-1], [])
    below = helm.render(Values(("tier=2", *assignments))).pods()["agent"]
    assert restricted_violations(below) == set(), "tier 2 has no access to nodes"


def test_agent_has_no_permission_at_the_api_server(helm: Helm) -> None:
    rendered = helm.render(TIERS[3])
    for binding in (*rendered.of("ClusterRoleBinding").values(), *rendered.of("RoleBinding").values()):
        assert [one["name"] for one in binding["subjects"]] == ["gpufleet-cluster-agent"]
    (token,) = [one for one in rendered.pods()["agent"]["volumes"] if one["name"] == "node-identity"]
    (source,) = token["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "gpufleet"


@pytest.mark.parametrize(
    ("vsock", "groups"), [("api", {"kubevirt.io", "subresources.kubevirt.io"}), ("node", {"kubevirt.io"})]
)
def test_agent_with_guests_of_kubevirt_reads_them_only(helm: Helm, vsock: str, groups: set[str]) -> None:
    rendered = helm.render(Values(("tier=3", "agent.kubevirt.enabled=true", f"agent.kubevirt.vsock={vsock}")))
    (role,) = [
        one for name, one in rendered.of("ClusterRole").items() if name.endswith("-agent") and "cluster" not in name
    ]
    permitted = {
        ("kubevirt.io", "virtualmachineinstances", "list", ""),
        ("kubevirt.io", "virtualmachineinstances", "watch", ""),
        ("subresources.kubevirt.io", "virtualmachineinstances/vsock", "get", ""),
    }
    assert permissions_of(role) == {one for one in permitted if one[0] in groups}
    ports = {port["port"] for rule in rendered.of("NetworkPolicy")["agent"]["spec"]["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 6443, 8470}


def permissions_of(role: Object) -> set[tuple[str, str, str, str]]:
    """Return group, resource, verb and name of each permission of a role; the name is empty for all objects."""
    return {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def flat(permissions: tuple[Permission, ...], *, is_namespaced: bool) -> set[tuple[str, str, str, str]]:
    return {
        (one.group, one.resource, verb, name)
        for one in permissions
        for verb in one.verbs
        for name in one.names or ("",)
        if one.is_namespaced == is_namespaced
    }


BUILT_IN = {"apps", "batch"}
OTHER_OWNERS = [
    f"clusterAgent.collect.otherOwners[0].{part}" for part in ("group=jobset.x-k8s.io", "resources={jobsets}")
]


@pytest.mark.parametrize(
    ("assignments", "owners"),
    [
        ([], BUILT_IN),
        (["clusterAgent.collect.virtualMachines=true"], {*BUILT_IN, "kubevirt.io"}),
        (OTHER_OWNERS, {*BUILT_IN, "jobset.x-k8s.io"}),
        (["clusterAgent.collect.owners=false", "clusterAgent.collect.virtualMachines=true"], set()),
        (["clusterAgent.collect.resourceSlices=false"], BUILT_IN),
        (
            [f"clusterAgent.collect.{name}=false" for name in ("pods", "resourceSlices", "resourceClaims")],
            BUILT_IN,
        ),
    ],
    ids=lambda part: ",".join(part) if isinstance(part, list) else "",
)
def test_roles_are_exactly_what_the_collector_needs(helm: Helm, assignments: list[str], owners: set[str]) -> None:
    rendered = helm.render(Values(("tier=1", *assignments)))
    config = config_of(rendered.pods()["cluster-agent"], "cluster-agent", None, Path())
    assert isinstance(config, ClusterAgentConfig)
    needed = required_permissions(config)
    chains = {one for one in flat(owner_permissions(), is_namespaced=False) if one[0] in owners}
    (role,) = rendered.of("ClusterRole").values()
    assert permissions_of(role) == flat(needed, is_namespaced=False) | chains
    assert permissions_of(rendered.of("Role")["cluster-agent"]) == flat(needed, is_namespaced=True)
    (binding,) = rendered.of("ClusterRoleBinding").values()
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_each_rule_has_a_reason(helm: Helm) -> None:
    text = helm.render(Values(("tier=1", "clusterAgent.collect.virtualMachines=true", *OTHER_OWNERS))).text
    lines = text.splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("  - apiGroups:")]
    assert len(rules) == 11
    assert all(lines[number - 1].strip().startswith("# ") for number in rules)


def config_of(pod: Object, component: str, toml: str | None, folder: Path) -> msgspec.Struct:
    """Return the configuration that the daemon of a pod reads."""
    record, prefix, name = RECORDS[component]
    container = container_of(pod)
    path = f"/etc/gpufleet/config/{name}"
    assert container["args"] == [RECORDS_COMMAND[component], *(["--config", path] if toml is not None else [])]
    file = None
    if toml is not None:
        file = folder / f"{component}.toml"
        file.write_text(toml)
    return load(record, file=file, env_prefix=prefix, env=environment_of(pod), flags={})


RECORDS_COMMAND = {"agent": "agent", "cluster-agent": "cluster-agent", "hub": "hub", "relay": "hub"}


@every
def test_daemons_accept_their_configuration(helm: Helm, values: Values, tmp_path: Path) -> None:
    rendered = helm.render(values)
    for name, pod in rendered.pods().items():
        found = rendered.of("ConfigMap").get(name)
        config: Any = config_of(pod, name, found["data"][RECORDS[name][2]] if found else None, tmp_path)
        listens = environment_of(pod)[f"{RECORDS[name][1]}LISTEN"]
        assert config.listen == listens
        probe = container_of(pod)["livenessProbe"]
        assert ("httpGet" in probe) == listens.startswith("0.0.0.0:")
        if "httpGet" in probe:
            assert probe["httpGet"]["scheme"] == ("HTTPS" if config.tls.is_on else "HTTP")


@every
def test_named_files_are_mounted_from_secrets(helm: Helm, values: Values) -> None:
    """A token is in no variable and no ConfigMap."""
    for pod in helm.render(values).pods().values():
        mounts = {one["mountPath"]: one for one in container_of(pod)["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert {one["name"] for one in mounts.values()} <= {*volumes, "state"}
        for key, path in environment_of(pod).items():
            if key.endswith(("TOKEN_FILE", "__CA", "__CERTIFICATE", "__KEY")):
                folder, _, name = path.rpartition("/")
                volume = volumes[mounts[folder]["name"]]
                source = volume.get("secret") or volume["configMap"]
                assert "secret" in volume or key.endswith("__CA")
                assert name in [item["path"] for item in source.get("items", [])] or name in ("tls.crt", "tls.key")
                assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440
            else:
                assert "token" not in key.lower()


def test_example_with_collector_pushes_to_it(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.render(Values(example="existing-collector"))
    toml = rendered.of("ConfigMap")["agent"]["data"]["agent.toml"]
    config = config_of(rendered.pods()["agent"], "agent", toml, tmp_path)
    assert isinstance(config, AgentConfig)
    assert (config.push.otlp.endpoint or "").endswith(":4319")
    ports = {port["port"] for rule in rendered.of("NetworkPolicy")["agent"]["spec"]["egress"] for port in rule["ports"]}
    assert ports == {53, 8470, 4319}


@pytest.mark.parametrize(
    ("assignments", "agent", "collector"),
    [
        ([], {53, 8470}, {53, 443, 6443, 8470}),
        (["sendTo.url=https://hub.example"], {53, 443}, {53, 443, 6443}),
        (["proxy.https=http://proxy.example:3128"], {53, 3128}, {53, 443, 6443, 3128}),
        ([*RELAY, "sendTo.url=https://hub.example:9000"], {53, 8470}, {53, 443, 6443, 8470}),
        (["networkPolicy.apiServerPorts={16443}"], {53, 8470}, {53, 16443, 8470}),
    ],
)
def test_egress_is_limited_to_what_is_needed(
    helm: Helm, assignments: list[str], agent: set[int], collector: set[int]
) -> None:
    policies = helm.render(Values(("tier=3", *assignments))).of("NetworkPolicy")
    for name, expected in (("agent", agent), ("cluster-agent", collector)):
        spec = policies[name]["spec"]
        assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == expected
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert spec["ingress"] == []


def test_ingress_is_for_scrapers_only(helm: Helm) -> None:
    spec = helm.render(Values(("tier=3", *SCRAPED))).of("NetworkPolicy")["agent"]["spec"]
    assert spec["ingress"] == [{"ports": [{"port": 9470, "protocol": "TCP"}], "from": [{"podSelector": {}}]}]
    peers = helm.render(Values(example="kubevirt")).of("NetworkPolicy")["cluster-agent"]["spec"]["ingress"]
    assert [one["from"][0].keys() for one in peers] == [{"namespaceSelector"}]


def test_selectors_match_the_pods_of_one_component(helm: Helm) -> None:
    rendered = helm.render(Values(("tier=3", *SCRAPED, "metrics.podMonitor.enabled=true", *RELAY)))
    kinds = ("DaemonSet", "StatefulSet")
    labels = {
        name: one["spec"]["template"]["metadata"]["labels"] for kind in kinds for name, one in rendered.of(kind).items()
    }
    for kind, path in (
        *((kind, ("selector", "matchLabels")) for kind in (*kinds, "PodMonitor", "PodDisruptionBudget")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
        ("Service", ("selector",)),
    ):
        for name, one in rendered.of(kind).items():
            selector = one["spec"]
            for key in path:
                selector = selector[key]
            assert [found for found, has in labels.items() if selector.items() <= has.items()] == [name]


def test_pod_monitor_keeps_the_labels_of_holders(helm: Helm) -> None:
    monitors = helm.render(Values(("tier=3", *SCRAPED, "metrics.podMonitor.enabled=true"))).of("PodMonitor")
    assert set(monitors) == {"agent", "cluster-agent"}
    for one in monitors.values():
        (endpoint,) = one["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        assert endpoint["scheme"] == "https"
        assert endpoint["authorization"]["credentials"] == {"name": "scrape", "key": "token"}


def test_rules_of_the_chart_are_those_of_the_command(helm: Helm) -> None:
    for path, content in rule_files():
        assert path.read_text() == content, "run `make manifests`"
    own_scrape = ("prometheusRule.enabled=true", "prometheusRule.inputs={native,kubevirt}")
    pod_monitor = (*own_scrape, "tier=3", *SCRAPED, "metrics.podMonitor.enabled=true")
    for values, native in ((own_scrape, "native"), (pod_monitor, "native-honor-labels")):
        rendered = helm.render(Values(values)).of("PrometheusRule")
        for source, file in (("native", native), ("kubevirt", "kubevirt")):
            expected = yaml.load((CHART / "files" / "rules" / f"{file}.yaml").read_text(), yaml.CSafeLoader)
            assert rendered[source]["spec"] == expected


def test_alerts_of_the_chart_link_the_published_runbooks(helm: Helm) -> None:
    page = "https://wiki.example/runbooks"
    rendered = helm.render(Values((f"prometheusRule.runbookUrl={page}", "prometheusRule.enabled=true")))
    expected = render_rules(rule_groups([RuleInput.NATIVE]), runbook_url=page)
    assert rendered.of("PrometheusRule")["native"]["spec"] == yaml.load(expected, yaml.CSafeLoader)


def test_manifests_are_current(helm: Helm) -> None:
    for path, content in manifests(helm.program):
        assert path.read_text() == content, "run `make manifests`"


def test_chart_fits_the_package_and_its_images(helm: Helm) -> None:
    chart = yaml.load((CHART / "Chart.yaml").read_text(), yaml.CSafeLoader)
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    rendered = helm.render(Values(("tier=1", *HUB)))
    for component, file in (("cluster-agent", "agent"), ("hub", "hub")):
        text = (ROOT / "deploy" / "container" / f"{file}.Containerfile").read_text()
        user = rendered.pods()[component]["securityContext"]["runAsUser"]
        assert f"USER {user}:{user}\n" in text
    agent = (ROOT / "deploy" / "container" / "agent.Containerfile").read_text()
    assert all(
        "--extra agent --extra kubernetes --extra ssh " in line for line in agent.splitlines() if "uv sync" in line
    )


def test_documented_values_exist() -> None:
    values = yaml.load((CHART / "values.yaml").read_text(), yaml.CSafeLoader)
    tops = "|".join(key for key, value in values.items() if isinstance(value, dict))
    text = (ROOT / "docs" / "kubernetes-install.md").read_text()
    names = re.findall(rf"(?:`|--set )((?:{tops})(?:\.[a-zA-Z]+)+)(?:`|=)", text)
    names = [name for name in names if not name.endswith((".yaml", ".toml"))]
    assert len(names) > 10
    for name in names:
        found: Any = values
        for key in name.split("."):
            assert key in found, name
            found = found[key]


def test_documented_values_file_is_accepted(helm: Helm, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "kubernetes-install.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "values.yaml"
    file.write_text(textwrap.dedent(block))
    for tier in TIERS:
        done = helm.run("template", "gpufleet", CHART, "--values", file, "--set", f"tier={tier}")
        assert done.returncode == 0, done.stderr


def test_commands_of_the_notes_exist(helm: Helm) -> None:
    done = helm.run(
        *("install", "gpufleet", CHART, "--namespace", "gpufleet", "--dry-run=client", "--values", EXAMPLES["relay"])
    )
    assert done.returncode == 0, done.stderr
    notes = done.stdout[done.stdout.index("\nNOTES:") :]
    commands = re.findall(r"gpufleet ((?:token|query|doctor|snapshot)(?: [a-z-]+)?)((?: --[a-z-]+ \S+)*)", notes)
    assert len(commands) == 4
    for command, options in commands:
        page = gpufleet(*command.split(), "--help")
        assert page.returncode == 0
        assert all(option in page.stdout for option in re.findall(r"--[a-z-]+", options))


def test_probe_command_follows_the_status(helm: Helm) -> None:
    command = container_of(helm.render(TIERS[3]).pods()["agent"])["readinessProbe"]["exec"]["command"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" and ready.is_set() else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    ready = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        program = [sys.executable, *command[1:-1], command[-1].replace("9470", str(server.server_port))]
        assert subprocess.run(program, check=False, timeout=20 * PATIENCE).returncode == 1
        ready.set()
        assert subprocess.run(program, check=False, timeout=20 * PATIENCE).returncode == 0
        server.shutdown()
    assert subprocess.run(program, check=False, capture_output=True, timeout=20 * PATIENCE).returncode != 0


DEFINITIONS = [("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")]


def definition(kind: str, plural: str) -> Object:
    """Return a definition of an object of the Prometheus Operator, without its schema."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


class Kubectl:
    """kubectl with the cluster of GPUFLEET_TEST_KUBECONFIG, or with a kube-apiserver that the tests started."""

    def __init__(self, program: Path, kubeconfig: Path, folder: Path) -> None:
        self.program = program
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.is_given = GIVEN in os.environ

    def __call__(self, *arguments: str, objects: Sequence[Object] = (), code: int = 0) -> str:
        done = subprocess.run(
            [self.program, *arguments],
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == code, done.stderr[-4000:]
        return done.stdout


@pytest.fixture
def kubectl(peer: Callable[[str], Path], real_server: Callable[[], KubeServer], tmp_path: Path) -> Kubectl:
    given = os.environ.get(GIVEN)
    return Kubectl(peer("kubectl"), Path(given) if given else real_server().kubeconfig, tmp_path)


@pytest.mark.slow
def test_api_server_accepts_every_rendering(helm: Helm, kubectl: Kubectl) -> None:
    """Server-side dry run, also with the server-side apply that helm 4 uses.

    Objects of the Prometheus Operator are sent only to a server that the tests started. A server
    before 1.22 gets tier 1 instead of tier 2, which the chart does not render for it.
    """
    version = json.loads(kubectl("version", "--output=json"))["serverVersion"]["gitVersion"].partition("-")[0]
    major, minor = map(int, version.removeprefix("v").split(".")[:2])
    if not kubectl.is_given:
        kubectl("apply", "-f", "-", objects=[definition(kind, plural) for kind, plural in DEFINITIONS])
        names = [f"crd/{plural}.monitoring.coreos.com" for _, plural in DEFINITIONS]
        kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    objects: list[Object] = []
    for values in ALL:
        has_tier_2 = values.example == "hub" or "tier=2" in values.assignments
        changed = ["tier=1"] if has_tier_2 and (major, minor) < (1, 22) else []
        assignments = (*values.assignments, *changed, "exporter.namespace=default")
        rendered = helm.render(Values(assignments, values.example, version, "default"))
        objects += [one for one in rendered.objects if not kubectl.is_given or one["kind"] not in dict(DEFINITIONS)]
    for way in ([], ["--server-side", "--force-conflicts"]):
        output = kubectl("apply", "--dry-run=server", *way, "-f", "-", objects=objects)
        assert len(output.splitlines()) == len(objects)
    if kubectl.is_given and (major, minor) < (1, 22):
        pytest.skip(f"accepted, but without tier 2: it needs Kubernetes 1.22, and the cluster has {major}.{minor}")
