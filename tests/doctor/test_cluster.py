"""Permissions of a cluster collector, as `doctor cluster-agent` finds them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.cluster.permissions import required_permissions
from gpufleet.config.cluster import ClusterAgentConfig
from gpufleet.doctor import CheckVerdict
from gpufleet.doctor.cluster import examine_permissions
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from tests.fakes.kube_api import FakeKubeApi, Rule, write_kubeconfig
from tests.support.command import gpufleet
from tests.support.processes import free_port


@pytest.fixture
async def api() -> AsyncIterator[FakeKubeApi]:
    async with FakeKubeApi() as api:
        yield api


async def verdicts(kubeconfig: Path) -> dict[str, tuple[CheckVerdict, str]]:
    connection = ApiConnection(ApiAccess(kubeconfig=str(kubeconfig)))
    results = await examine_permissions(connection, required_permissions(ClusterAgentConfig()), "gpufleet")
    await connection.close()
    return {one.name: (one.verdict, one.fix) for one in results}


async def test_each_missing_rule_is_named(api: FakeKubeApi, tmp_path: Path) -> None:
    api.tokens["narrow"] = (Rule("", "nodes", ("list", "watch")), Rule("", "pods", ("list",)))
    found = await verdicts(api.kubeconfig(tmp_path, "narrow"))
    failed = [name for name, (verdict, _) in found.items() if verdict is CheckVerdict.FAILED]
    assert failed == [
        *("get namespaces", "list watch pods", "list watch resourceslices.resource.k8s.io"),
        *("list watch resourceclaims.resource.k8s.io", "get update leases.coordination.k8s.io"),
    ]
    assert 'apiGroups: [""], resources: [namespaces], resourceNames: [kube-system]' in found["get namespaces"][1]
    assert "namespace gpufleet" in found["get update leases.coordination.k8s.io"][1]
    assert found["list watch nodes"][0] is CheckVerdict.OK
    assert found["list watch virtualmachineinstances.kubevirt.io"][0] is CheckVerdict.NOT_APPLICABLE
    assert found["create leases.coordination.k8s.io"][0] is CheckVerdict.UNKNOWN
    assert {method for method, _, _ in api.requests} == {"GET"}


async def test_permitted_collector_has_no_failed_check(api: FakeKubeApi, tmp_path: Path) -> None:
    found = await verdicts(api.kubeconfig(tmp_path))
    assert {verdict for verdict, _ in found.values()} == {
        CheckVerdict.OK,
        CheckVerdict.UNKNOWN,
        CheckVerdict.NOT_APPLICABLE,
    }


def test_unreachable_api_server_is_unknown(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{free_port()}", {"token": "t"})
    environment = {"GPUFLEET_CLUSTER_AGENT_LEASE__ENABLED": "false"}
    done = gpufleet("doctor", "cluster-agent", "--kubeconfig", str(kubeconfig), "--json", env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"unknown"') == 6
