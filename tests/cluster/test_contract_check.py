"""`gpufleet contract check --on cluster` with the credentials of a collector, at the fake and at a real API server."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpufleet.cluster.permissions import required_permissions
from gpufleet.config.cluster import ClusterAgentConfig, CollectConfig
from tests.cluster.test_permissions import wait_for_rules
from tests.fakes.kube_api import Rule, write_kubeconfig
from tests.support.command import Done, gpufleet
from tests.support.kube import ClusterUnderTest
from tests.support.processes import free_port

TIER_1 = CollectConfig(resource_slices=False, resource_claims=False, virtual_machines=False)
RULES = tuple(
    Rule(one.group, one.resource, one.verbs) for one in required_permissions(ClusterAgentConfig(collect=TIER_1))
)


def check(kubeconfig: Path | str, *options: str) -> Done:
    environment = {"GPUFLEET_CLUSTER_AGENT_LEASE__NAMESPACE": "gpufleet"}
    return gpufleet("contract", "check", "--on", "cluster", "--kubeconfig", str(kubeconfig), *options, env=environment)


async def checked(cluster: ClusterUnderTest, name: str, rules: Sequence[Rule]) -> Done:
    """Run the check with an account that has these rules."""
    file = cluster.folder / f"{name}.token"
    file.write_text(await cluster.token(rules))
    kubeconfig = cluster.user(file)
    await wait_for_rules(str(kubeconfig), rules)
    return await asyncio.to_thread(check, kubeconfig, "--json")


async def test_item_is_met_by_the_rules_of_the_collector_only(cluster: ClusterUnderTest) -> None:
    met = await checked(cluster, "complete", RULES)
    assert met.returncode == 0, met.stderr
    (item,) = json.loads(met.stdout)
    assert (item["item"], item["status"]) == ("permission.api", "met")

    narrow = await checked(cluster, "narrow", [one for one in RULES if one.plural != "pods"])
    assert narrow.returncode == 1
    (item,) = json.loads(narrow.stdout)
    assert (item["item"], item["status"]) == ("permission.api", "not_met")
    assert "list watch pods" in item["found"]
    assert "list watch nodes" not in item["found"]


def test_item_is_unknown_without_an_answer(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{free_port()}", {"token": "t"})
    done = check(kubeconfig, "--json")
    assert (done.returncode, [one["status"] for one in json.loads(done.stdout)]) == (0, ["unknown"])


@pytest.mark.parametrize("tier", ["0", "4"])
def test_tier_without_a_collector_has_no_item(tier: str, tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{free_port()}", {"token": "t"})
    done = check(kubeconfig, "--tier", tier, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
