"""Names of workloads from owner chains."""

import pytest

from gpufleet.fleet.workload_names import name_workload
from gpufleet.model.holdings import Owner
from gpufleet.model.kubernetes import WorkloadNames

GROUPS = {
    "ReplicaSet": "apps/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
}


def owner(kind: str) -> Owner:
    return Owner(kind=kind, name=f"a-{kind}", api_version=GROUPS.get(kind, "example.com/v1"))


def top(kind: str, **named: str) -> WorkloadNames:
    return WorkloadNames(owner_kind=kind, owner_name=f"a-{kind}", **named)


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ("ReplicaSet Deployment", top("Deployment", deployment="a-Deployment")),
        ("ReplicaSet", top("ReplicaSet")),
        ("StatefulSet LeaderWorkerSet", top("LeaderWorkerSet", statefulset="a-StatefulSet")),
        ("Job CronJob", top("CronJob", job="a-Job")),
        ("Job Deployment", top("Deployment", job="a-Job")),
        ("RayCluster", top("RayCluster")),
        ("", WorkloadNames()),
    ],
)
def test_at_most_one_name_and_the_top_owner(kinds: str, names: WorkloadNames) -> None:
    assert name_workload([owner(kind) for kind in kinds.split()]) == names


def test_job_of_another_group_is_only_an_owner() -> None:
    volcano = Owner(kind="Job", name="v", api_version="batch.volcano.sh/v1alpha1")
    assert name_workload([volcano], "q") == WorkloadNames(owner_kind="Job", owner_name="v", queue="q")
