"""Names of pods, jobs and virtual machines: which holders a target means, and what the store is queried for."""

import pytest

from gpufleet.fleet.attribution.holder_targets import (
    HolderName,
    ambiguous_since,
    holder_names,
    holding_query,
    names_holder,
)
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, AllocationKind, AllocationSpec, Target
from gpufleet.model.holdings import HET_COMPONENT, HET_JOB, Holder, HolderKind, Owner
from gpufleet.model.stored.holdings import StoredJob

VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"


def spec(kind: AllocationKind, name: str) -> AllocationSpec:
    return AllocationSpec(kind=kind, target=Target(cluster="c", **{REQUIRED_TARGET_FIELD[kind]: name}))


def job(name: str) -> AllocationSpec:
    return spec(AllocationKind.SLURM_JOB, name)


PLAIN = Holder(kind=HolderKind.JOB, id="123")
TASK = Holder(kind=HolderKind.JOB, id="130", array_job="123", array_task="4")
LAST_TASK = Holder(kind=HolderKind.JOB, id="123", array_job="123", array_task="5")
IMPORTED = Holder(kind=HolderKind.JOB, id="123_4")


def component(id_: str, number: int) -> Holder:
    owners = (Owner(kind=HET_COMPONENT, name=f"123+{number}"), Owner(kind=HET_JOB, name="123"))
    return Holder(kind=HolderKind.JOB, id=id_, owners=owners)


FIRST_COMPONENT, COMPONENT = component("123", 0), component("124", 1)
WITHOUT_NUMBER = Holder(kind=HolderKind.JOB, id="125", owners=(Owner(kind=HET_JOB, name="123"),))


@pytest.mark.parametrize(
    ("name", "holders"),
    [
        ("123", [PLAIN, TASK, LAST_TASK, FIRST_COMPONENT, COMPONENT, WITHOUT_NUMBER, IMPORTED]),
        ("123_4", [TASK, IMPORTED]),
        ("123_5", [LAST_TASK]),
        ("130", [TASK]),
        ("124", [COMPONENT]),
        ("125", [WITHOUT_NUMBER]),
        ("123+0", [FIRST_COMPONENT]),
        ("123+1", [COMPONENT]),
        ("123+2", []),
        ("124+1", []),
        ("123_1", []),
        ("12", []),
        ("4", []),
    ],
)
def test_job_is_named_as_slurm_names_it(name: str, holders: list[Holder]) -> None:
    every = [PLAIN, TASK, LAST_TASK, FIRST_COMPONENT, COMPONENT, WITHOUT_NUMBER, IMPORTED]
    assert [one for one in every if names_holder(job(name), one)] == holders


def test_query_finds_every_named_holder() -> None:
    query = holding_query(job("123_4"), 1, 2, 3)
    assert query is not None
    assert (query.kind, set(query.ids), query.groups) == (HolderKind.JOB, {"123", "123_4"}, ("123",))
    assert (query.cluster, query.start, query.end, query.limit) == ("c", 1, 2, 3)
    of_component = holding_query(job("123+1"), 1, 2, 3)
    assert of_component is not None
    assert (set(of_component.ids), of_component.groups) == ({"123", "123+1"}, ("123",))
    pod = holding_query(spec(AllocationKind.KUBERNETES_POD, "u"), 1, 2, 3)
    assert pod is not None
    assert (pod.kind, pod.ids, pod.groups) == (HolderKind.POD, ("u",), ())
    assert holding_query(spec(AllocationKind.BARE_METAL, "m"), 1, 2, 3) is None


def test_holder_of_another_kind_is_not_named() -> None:
    assert not names_holder(job("123"), Holder(kind=HolderKind.POD, id="123"))
    assert not names_holder(spec(AllocationKind.KUBERNETES_POD, "123"), PLAIN)
    assert names_holder(spec(AllocationKind.GPU_SLICE, VM.upper()), Holder(kind=HolderKind.VM, id=VM))


@pytest.mark.parametrize("holder", [LAST_TASK, FIRST_COMPONENT])
def test_part_with_the_id_of_the_whole_is_not_the_whole(holder: Holder) -> None:
    """Otherwise the part would conflict with the allocation of another part."""
    assert HolderName(HolderKind.JOB, "123") not in [name._replace(slurm_cluster=None) for name in holder_names(holder)]


ALPHA = Holder(kind=HolderKind.JOB, id="123", slurm_cluster="alpha")
BETA = Holder(kind=HolderKind.JOB, id="130", array_job="123", array_task="4", slurm_cluster="beta")


@pytest.mark.parametrize(
    ("name", "holders"),
    [
        ("123", [PLAIN, ALPHA, BETA]),
        ("alpha/123", [ALPHA]),
        ("Alpha/123", [ALPHA]),
        ("beta/123", [BETA]),
        ("beta/123_4", [BETA]),
        ("beta/130", [BETA]),
        ("alpha/130", []),
        ("gamma/123", []),
    ],
)
def test_slurm_cluster_before_the_id_selects_its_jobs(name: str, holders: list[Holder]) -> None:
    assert [one for one in (PLAIN, ALPHA, BETA) if names_holder(job(name), one)] == holders
    query = holding_query(job(name), 1, 2, 3)
    assert query is not None
    assert all({one.id, one.array_job} & {*query.ids, *query.groups} for one in holders)


@pytest.mark.parametrize(
    ("name", "end", "expected"),
    [
        ("123", 100, 20),
        ("123", 20, None),  # the second cluster has not used the id yet
        ("alpha/123", 100, None),
        ("130", 100, None),
    ],
)
def test_id_of_two_slurm_clusters_is_ambiguous(name: str, end: int, expected: int | None) -> None:
    jobs = [StoredJob(holder=ALPHA, first=5, last=10), StoredJob(holder=BETA, first=20, last=30)]
    assert ambiguous_since(job(name), jobs, 0, end) == expected
    assert ambiguous_since(job(name), jobs, 31, 100) is None
