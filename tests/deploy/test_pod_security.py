"""Pods of the chart at the admission of a real API server, by the pod security level `restricted`.

The cluster of GPUFLEET_TEST_KUBECONFIG applies the level by the label of a namespace (PodSecurity, Kubernetes 1.23 and
newer). The kube-apiserver 1.20.2 of the tests applies the same limits by a PodSecurityPolicy. A policy adds what a pod
leaves out, so it cannot show that a pod drops all capabilities by itself: rules of `test_chart` do.
"""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import lightkube
import pytest
import pytest_asyncio
from lightkube.config.client_adapter import ConnectionParams

from tests.support.helm import Helm, Object, Rendered, Values
from tests.support.kube import GIVEN, NAMESPACES, PARTS, kube_server

pytestmark = [pytest.mark.system, pytest.mark.slow]

NAMESPACE = "gpufleet-restricted-test"
POLICIES = "/apis/policy/v1beta1/podsecuritypolicies"
RANGE = {"rule": "MustRunAs", "ranges": [{"min": 1, "max": 65535}]}
RESTRICTED = {
    "metadata": {
        "name": "restricted",
        "annotations": {
            "seccomp.security.alpha.kubernetes.io/allowedProfileNames": "docker/default,runtime/default",
            "seccomp.security.alpha.kubernetes.io/defaultProfileName": "runtime/default",
        },
    },
    "spec": {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "requiredDropCapabilities": ["ALL"],
        "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI", "csi", "persistentVolumeClaim"],
        "hostNetwork": False,
        "hostIPC": False,
        "hostPID": False,
        "runAsUser": {"rule": "MustRunAsNonRoot"},
        "seLinux": {"rule": "RunAsAny"},
        "supplementalGroups": RANGE,
        "fsGroup": RANGE,
    },
}
"""Policy of the level `restricted`, as Kubernetes documented it for 1.20."""


class Admission:
    """API server that admits restricted pods only."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def refusal(self, pod: Object) -> str:
        """Return why a pod is refused, or an empty text. Nothing is stored."""
        content = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}
        path = f"{NAMESPACES}/{NAMESPACE}/pods"
        answer = await self._http.post(path, json=content, params={"dryRun": "All"})
        assert answer.status_code in (201, 403), answer.text
        return "" if answer.status_code == 201 else str(answer.json()["message"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admission(peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Admission]:
    given = os.environ.get(GIVEN)
    if given:
        async with _client(Path(given)) as http:
            version = (await http.get("/version")).json()
            if (int(version["major"]), int(version["minor"].rstrip("+"))) < (1, 23):
                pytest.skip("a given cluster needs Kubernetes 1.23: before, it does not apply PodSecurity")
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            await _create(http, NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
            try:
                yield Admission(http)
            finally:
                await http.delete(f"{NAMESPACES}/{NAMESPACE}")
        return
    if not (PARTS / "kube-apiserver.zst").exists():
        pytest.skip("no real kube-apiserver beside this checkout (shared/real/kube)")
    options = ["--enable-admission-plugins=PodSecurityPolicy"]
    with kube_server(tmp_path_factory.mktemp("kube"), peer("etcd"), options) as server:
        async with _client(server.kubeconfig) as http:
            await _create(http, NAMESPACES, {"metadata": {"name": NAMESPACE}})
            await _create(http, POLICIES, RESTRICTED)
            yield Admission(http)


def _client(kubeconfig: Path) -> httpx2.AsyncClient:
    config = lightkube.KubeConfig.from_file(kubeconfig).get()
    assert config is not None
    return httpx2.AsyncClient(**ConnectionParams(timeout=httpx2.Timeout(60)).httpx_params(config))


async def _create(http: httpx2.AsyncClient, path: str, content: Object) -> None:
    answer = await http.post(path, json=content)
    assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def helm(peer: Callable[[str], Path]) -> Helm:
    return Helm(peer("helm"))


def claimed(rendered: Rendered, component: str) -> list[Object]:
    """Return the volumes that the controller of a StatefulSet adds to its pods."""
    templates = rendered.of("StatefulSet").get(component, {}).get("spec", {}).get("volumeClaimTemplates", [])
    names = [one["metadata"]["name"] for one in templates]
    return [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{component}-0"}} for name in names]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("tier", [1, 2, 3])
async def test_default_tier_is_admitted(helm: Helm, admission: Admission, tier: int) -> None:
    more = [f"{name}.{part}" for name in ("hub", "relay") for part in ("enabled=true", "insecure=true")]
    images = [f"{name}.image.repository=registry.example/gpufleet-hub" for name in ("hub", "relay")]
    rendered = helm.render(Values((f"tier={tier}", *(more + images if tier == 3 else ()))))
    pods = {
        name: {**pod, "volumes": [*pod["volumes"], *claimed(rendered, name)]} for name, pod in rendered.pods().items()
    }
    assert {name: await admission.refusal(pod) for name, pod in pods.items()} == dict.fromkeys(pods, "")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("assignments", "named"),
    [
        (("agent.holders.pods=true",), "hostPath"),
        (("agent.holders.processes=true",), "SYS_PTRACE"),
        (("agent.kernelLog=true",), "rivileged"),
        (("agent.hostNetwork=true",), "ost network"),
        (("agent.hostFiles=true",), "hostPath"),
    ],
)
async def test_value_with_a_privilege_is_refused(
    helm: Helm, admission: Admission, assignments: tuple[str, ...], named: str
) -> None:
    """The admission is effective, and names what the documentation of the value names."""
    pod = helm.render(Values(("tier=3", *assignments))).pods()["agent"]
    refusal = await admission.refusal(pod)
    assert named.lower() in refusal.lower().replace("hostnetwork", "host network")
