"""Pods of the chart at the admission of a real API server, by the pod security level `restricted`.

The cluster of GPUFLEET_TEST_KUBECONFIG applies the level by the label of a namespace (PodSecurity, Kubernetes 1.23 and
newer). The kube-apiserver 1.20.2 of the tests applies the same limits by a PodSecurityPolicy. A policy adds what a pod
leaves out, so it cannot show that a pod drops all capabilities by itself: rules of `test_chart` do.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from gpufleet.holders.kubernetes.resources import PODS, ApiResource
from tests.support.helm import Helm, Object, Rendered, Values
from tests.support.kube import GIVEN, PARTS, SERVICE_ACCOUNTS, KubeCluster, kube_server

pytestmark = [pytest.mark.system, pytest.mark.slow]

POLICIES = ApiResource("policy", "v1beta1", "podsecuritypolicies", is_namespaced=False)
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


@pytest.fixture(scope="module")
def helm(peer: Callable[[str], Path]) -> Helm:
    return Helm(peer("helm"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admission(
    helm: Helm, peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeCluster]:
    """Return a cluster that admits restricted pods only, with the service accounts of the chart."""
    given, folder = os.environ.get(GIVEN), tmp_path_factory.mktemp("kube")
    if given is None and not (PARTS / "kube-apiserver.zst").exists():
        pytest.skip("no real kube-apiserver beside this checkout (shared/real/kube)")
    async with contextlib.AsyncExitStack() as stack:
        if given is None:
            options = ["--enable-admission-plugins=PodSecurityPolicy"]
            started = stack.enter_context(kube_server(folder, peer("etcd"), options))
            cluster = KubeCluster(started.kubeconfig, folder, started, "restricted")
        else:
            cluster = KubeCluster(Path(given), folder, None, "restricted")
        await stack.enter_async_context(cluster)
        if given is None:
            await cluster.create(POLICIES, RESTRICTED)
        elif await cluster.version() < (1, 23):
            pytest.skip("a given cluster needs Kubernetes 1.23: before, it does not apply PodSecurity")
        for account in render(helm, 3).of("ServiceAccount").values():
            account["metadata"]["namespace"] = cluster.namespace
            await cluster.create(SERVICE_ACCOUNTS, account)
        yield cluster


def render(helm: Helm, tier: int, *assignments: str) -> Rendered:
    """Return a tier with hub and relay."""
    more = [f"{name}.{part}" for name in ("hub", "relay") for part in ("enabled=true", "insecure=true")]
    images = [f"{name}.image.repository=registry.example/gpufleet-hub" for name in ("hub", "relay")]
    return helm.render(Values((f"tier={tier}", *more, *images, *assignments)))


def claimed(rendered: Rendered, component: str) -> list[Object]:
    """Return the volumes that the controller of a StatefulSet adds to its pods."""
    templates = rendered.of("StatefulSet").get(component, {}).get("spec", {}).get("volumeClaimTemplates", [])
    names = [one["metadata"]["name"] for one in templates]
    return [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{component}-0"}} for name in names]


async def refusal(cluster: KubeCluster, pod: Object) -> str:
    content = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}
    return await cluster.refusal(PODS, content)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("tier", [1, 2, 3])
async def test_default_tier_is_admitted(helm: Helm, admission: KubeCluster, tier: int) -> None:
    rendered = render(helm, tier)
    pods = {
        name: {**pod, "volumes": [*pod["volumes"], *claimed(rendered, name)]} for name, pod in rendered.pods().items()
    }
    assert {name: await refusal(admission, pod) for name, pod in pods.items()} == dict.fromkeys(pods, "")


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
    helm: Helm, admission: KubeCluster, assignments: tuple[str, ...], named: str
) -> None:
    """The admission is effective, and names what the documentation of the value names."""
    pod = helm.render(Values(("tier=3", *assignments))).pods()["agent"]
    found = await refusal(admission, pod)
    assert named.lower() in found.lower().replace("hostnetwork", "host network")
