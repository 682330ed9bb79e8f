"""The Helm chart, rendered by helm."""

import functools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.uv import ROOT

CHART = ROOT / "deploy" / "helm" / "gpufleet"
EXAMPLES = {file.stem: file for file in (CHART / "examples").glob("*.yaml")}
MINIMAL = (
    *("cluster.id=prod-1", "image.repository=registry.example/gpufleet-agent"),
    *("sendTo.url=https://hub.example:8470", "sendTo.token.secretName=gpufleet-sender"),
)
"""Values without which the chart is not rendered, and a token."""

Object = dict[str, Any]


class Values(NamedTuple):
    """Values of a rendering: assignments as for `--set`, and an example."""

    assignments: tuple[str, ...] = ()
    example: str = ""
    kube_version: str = "1.30.0"
    namespace: str = "gpufleet"


class Helm:
    """The program, with the renderings of this test process."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.render = functools.cache(self._render)

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run helm."""
        return subprocess.run(
            [self.program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
        )

    def template(self, values: Values) -> subprocess.CompletedProcess[str]:
        """Run `helm template`."""
        command: list[object] = ["template", "gpufleet", CHART, "--namespace", values.namespace]
        command += ["--kube-version", values.kube_version]
        command += ["--values", EXAMPLES[values.example]] if values.example else ["--set", ",".join(MINIMAL)]
        command += ["--set", ",".join(values.assignments)] if values.assignments else []
        return self.run(*command)

    def _render(self, values: Values) -> "Rendered":
        done = self.template(values)
        assert done.returncode == 0, done.stderr
        return Rendered(done.stdout)


class Rendered:
    """Objects of a rendering."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.objects: list[Object] = [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]

    def of(self, kind: str) -> dict[str, Object]:
        """Return the objects of a kind by the component in their name."""
        found = [one for one in self.objects if one["kind"] == kind]
        return {one["metadata"]["name"].removeprefix("gpufleet-"): one for one in found}

    def pods(self) -> dict[str, Object]:
        """Return the pod specification of each component."""
        kinds = ("DaemonSet", "Deployment", "StatefulSet")
        return {name: one["spec"]["template"]["spec"] for kind in kinds for name, one in self.of(kind).items()}


def container_of(pod: Object) -> Object:
    """Return the only container of a pod."""
    (container,) = pod["containers"]
    found: Object = container
    return found


def environment_of(pod: Object) -> dict[str, str]:
    """Return the variables of the only container; those from fields of the pod have the path of the field."""
    variables: Sequence[Mapping[str, Any]] = container_of(pod)["env"]
    assert len({one["name"] for one in variables}) == len(variables)
    return {one["name"]: one.get("value", "") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in variables}


def host_paths(pod: Object) -> set[str]:
    """Return the paths of the node that a pod mounts."""
    return {one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}


RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"}


def restricted_violations(pod: Object) -> set[str]:
    """Return the fields of a pod that the pod security level `restricted` of Kubernetes refuses."""
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)}
    shared = pod.get("securityContext", {})
    found |= {"sysctls"} if shared.get("sysctls") else set()
    for volume in pod["volumes"]:
        found |= set(volume) - {"name", "secret"} - RESTRICTED_VOLUMES
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = container.get("securityContext", {})
        both = {**shared, **own}
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities.drop": "ALL" not in capabilities.get("drop", []),
            "capabilities.add": set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
            "runAsNonRoot": both.get("runAsNonRoot") is not True,
            "runAsUser": both.get("runAsUser") == 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "procMount": own.get("procMount", "Default") != "Default",
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
        }
        found |= {name for name, is_violated in checks.items() if is_violated}
    return found
