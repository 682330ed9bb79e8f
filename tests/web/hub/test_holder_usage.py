"""`/v1/usage` of pods and jobs, and by holder: shares, hand-overs, uncertain holdings and time without a holder."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.hub.query import holding_reads
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.access import Role
from gpufleet.model.api.usage import DeviceInterval, DeviceUsage, UsageAnswer, UsageDimension
from gpufleet.model.catalogue import Lane
from gpufleet.model.holdings import CertainPeriod, Holder, HolderKind, HoldingVerdict, Owner, Share
from gpufleet.model.machine import PCI_READER, Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.batches import gpu_sample, gpu_view
from tests.security.guarded import guarded
from tests.support.waiting import wait_until_async
from tests.web.hub.site import running_site
from tests.web.hub.test_workload_allocations import FIRST, NODES, ONE, SECOND, TWO, VM, Cluster, job, pod


def used_throughout(intervals: Sequence[DeviceInterval]) -> list[DeviceUsage]:
    """Return that every device was used all the time."""
    return [DeviceUsage(used_seconds=(one.end - one.start) / 1e9) for one in intervals]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_site(tmp_path) as site:
        site.store.device_usage = used_throughout  # type: ignore[method-assign]
        yield Cluster(site)


async def usage(cluster: Cluster, group_by: str, start: float = 0, end: float = 30, query: str = "") -> UsageAnswer:
    window = f"start={cluster.time(start)}&end={cluster.time(end)}"
    status, document = await cluster.site.request(f"/v1/usage?group_by={group_by}&{window}{query}")
    assert status == 200, document
    return msgspec.convert(document, UsageAnswer)


def minutes(answer: UsageAnswer, *fields: str) -> dict[str | None, tuple[float, ...]]:
    """Return minutes by the value of the first dimension."""
    names = fields or ("held_gpu_hours", "used_gpu_hours")
    return {
        row.group[answer.group_by[0]]: tuple(round(getattr(row, name) * 60, 6) for name in names)
        for row in answer.rows
        if row.holder_absent is None
    }


async def two_pods(cluster: Cluster) -> None:
    for name, uid, tenant in (("a", FIRST, "acme"), ("b", SECOND, "bravo")):
        assert await cluster.put(name, tenant, pod_uid=uid) == 201


async def test_pod_has_the_time_of_its_holdings(cluster: Cluster) -> None:
    await two_pods(cluster)
    before, after = cluster.held(ONE, pod(FIRST), 5, 10.5), cluster.held(ONE, pod(SECOND), 10.5)
    await cluster.report(30, {ONE: 1.0, TWO: 2.0}, [before, after, cluster.held(TWO, pod(SECOND), 20, 22)])
    answer = await usage(cluster, "tenant")
    assert minutes(answer) == {"acme": (5.5, 5.5), "bravo": (21.5, 21.5)}
    assert (answer.total.gpus, answer.unresolved) == (2, ())
    assert answer.total.held_gpu_hours * 60 == pytest.approx(27)
    clipped = await usage(cluster, "allocation", 10, 21)
    assert minutes(clipped) == {"a": (0.5, 0.5), "b": (11.5, 11.5)}


async def test_validity_bounds_the_time_of_a_pod(cluster: Cluster) -> None:
    spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": FIRST}, "tenant": "acme"}
    times = {"valid_from": cluster.time(10), "valid_to": cluster.time(20)}
    await cluster.site.request("/v1/allocations/a", "PUT", {**spec, **times})
    await cluster.report(30, {ONE: 1.0}, [cluster.held(ONE, pod(FIRST), 5)])
    assert minutes(await usage(cluster, "tenant")) == {"acme": (10, 10)}


async def test_tenants_share_a_time_sliced_device(cluster: Cluster) -> None:
    await two_pods(cluster)
    sliced = [
        cluster.held(ONE, pod(FIRST), 0, 20, share=Share.TIMESLICE, replicas=1),
        cluster.held(ONE, pod(SECOND), 10, 30, share=Share.TIMESLICE, replicas=3),
    ]
    await cluster.report(30, {ONE: 1.0}, sliced)
    answer = await usage(cluster, "tenant")
    fields = ("held_gpu_hours", "used_gpu_hours", "shared_gpu_hours", "replica_hours")
    assert minutes(answer, *fields) == {"acme": (12.5, 10, 2.5, 20), "bravo": (17.5, 10, 7.5, 60)}
    assert (answer.total.held_gpu_hours * 60, answer.total.used_gpu_hours * 60) == pytest.approx((30, 30))
    assert answer.total.unknown_gpu_hours == pytest.approx(0.0)


async def test_device_shared_with_a_pod_without_allocation_is_not_owned_alone(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    claims = [cluster.held(ONE, pod(uid), 0, 30, share=Share.DRA) for uid in (FIRST, SECOND)]
    await cluster.report(30, {ONE: 1.0}, claims)
    answer = await usage(cluster, "allocation")
    assert minutes(answer) == {"a": (15, 0)}
    assert (answer.total.held_gpu_hours * 60, answer.total.unknown_gpu_hours * 60) == pytest.approx((15, 15))


async def test_mig_device_of_a_pod_counts_as_its_share(cluster: Cluster) -> None:
    await two_pods(cluster)
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=ONE.key)
    await cluster.report_mig(30, {ONE: 7, mig: 2}, [cluster.held(mig, pod(FIRST), 0, 21)])
    answer = await usage(cluster, "allocation")
    assert minutes(answer) == {"a": (6, 6)}
    assert [(one.allocation, one.reason) for one in answer.unresolved] == [("b", Reason.NOT_ATTRIBUTED)]


@pytest.mark.parametrize("later", ["off", "lost", "divided", "recreated"])
async def test_mig_device_of_a_pod_keeps_its_share(cluster: Cluster, later: str) -> None:
    """After the pod, MIG mode is switched off, the GPU is lost, or it is divided again and then lost.

    A MIG device at the place of an earlier one has its UUID, and can have another size.
    """
    await two_pods(cluster)
    before, after = (View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{n}", parent=ONE.key) for n in (1, 2))
    held = cluster.held(before, pod(FIRST), 0, 21)
    await cluster.report_mig(22, {ONE: 7, before: 2}, [held])
    billed = minutes(await usage(cluster, "allocation"))
    assert billed == {"a": (6, 6)}
    by_pod = minutes(await usage(cluster, "pod"))
    lost = Absent(Reason.GPU_LOST)
    if later == "lost":
        await cluster.report_mig(25, {ONE: lost, before: lost})
    elif later == "divided":
        await cluster.report_mig(24, {ONE: 7, after: 3})
        await cluster.report_mig(25, {ONE: lost, after: lost})
    elif later == "recreated":
        await cluster.report_mig(25, {ONE: 7, before: 4})
    else:
        await cluster.report(25, {ONE: 1.0})
    assert minutes(await usage(cluster, "allocation")) == billed
    assert minutes(await usage(cluster, "pod")) == by_pod


async def test_pods_of_a_stateful_set_have_their_time_beside_an_exporter(cluster: Cluster) -> None:
    """The agent reads the UIDs of the pods. The labels of the exporter have the name that both pods have."""
    await two_pods(cluster)
    before, after = (Holder(kind=HolderKind.POD, id=uid, name="w-0", namespace="ml") for uid in (FIRST, SECOND))
    by_name = Holder(kind=HolderKind.POD, id="ml/w-0", name="w-0", namespace="ml")
    methods, verdict = ("exporter_labels",), HoldingVerdict.OBSERVED_ONLY
    imported = cluster.held(ONE, by_name, 5.25, methods=methods, verdict=verdict, container="")
    await cluster.report(10, {ONE: 1.0}, [cluster.held(ONE, before, 5), imported])
    await cluster.report(25, {ONE: 2.0}, [cluster.held(ONE, before, 5, 20), cluster.held(ONE, after, 20), imported])
    assert minutes(await usage(cluster, "allocation")) == {"a": (15, 15), "b": (10, 10)}
    assert minutes(await usage(cluster, "pod")) == {"ml/w-0": (25, 25)}
    assert (await cluster.shown("a"), await cluster.shown("b")) == ({1.0}, {2.0})
    assert [one["scope"] for one in (await cluster.series("b"))["series"]] == ["own"]


async def test_share_of_a_mig_device_is_in_doubt_if_it_was_never_reported(cluster: Cluster) -> None:
    await two_pods(cluster)
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=ONE.key)
    absent = Absent(Reason.NOT_PERMITTED)
    await cluster.report_mig(22, {ONE: absent, mig: 2}, [cluster.held(mig, pod(FIRST), 0, 21)])
    answer = await usage(cluster, "allocation")
    assert (answer.total.held_gpu_hours, {one.allocation: one.reason for one in answer.unresolved}) == (
        0,
        {"a": Reason.NOT_REPORTED, "b": Reason.NOT_ATTRIBUTED},
    )


@pytest.mark.parametrize(
    ("verdict", "reason", "devices", "held"),
    [
        (HoldingVerdict.UNKNOWN, Reason.NOT_ATTRIBUTED, 1, {"a": (25, 0)}),
        (HoldingVerdict.CONFLICT, Reason.AMBIGUOUS_TARGET, None, {}),
    ],
)
async def test_uncertain_holding_is_unknown_time_with_a_reason(
    cluster: Cluster, verdict: HoldingVerdict, reason: Reason, devices: int | None, held: dict[str, tuple[float, ...]]
) -> None:
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    await cluster.report(30, {ONE: 1.0}, [cluster.held(ONE, pod(FIRST), 5, verdict=verdict)])
    answer = await usage(cluster, "allocation")
    assert minutes(answer) == held
    (one,) = answer.unresolved
    assert (one.allocation, one.reason, one.devices) == ("a", reason, devices)
    assert one.detail


async def test_outage_of_a_source_leaves_the_past_of_a_pod(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    certain = CertainPeriod(verdict=HoldingVerdict.AGREED, until=cluster.at(20))
    held = cluster.held(ONE, pod(FIRST), 5, verdict=HoldingVerdict.UNKNOWN, certain=certain)
    for minute in (10, 25):
        await cluster.report(minute, {ONE: float(minute)}, [held] if minute == 25 else [])
    assert minutes(await usage(cluster, "allocation")) == {"a": (25, 15)}
    assert minutes(await usage(cluster, "pod")) == {"ml/pod-1": (25, 15)}
    assert await cluster.shown("a") == {10.0}


async def test_missing_devices_of_a_pod_are_unknown(cluster: Cluster) -> None:
    spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": FIRST}, "expected": {"H100": 2}}
    await cluster.site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": cluster.time(0)})
    await cluster.report(30, {ONE: 1.0}, [cluster.held(ONE, pod(FIRST), 10)])
    answer = await usage(cluster, "allocation")
    assert minutes(answer) == {"a": (60, 20)}
    assert [one.devices for one in answer.unresolved] == [2]


async def test_job_counts_once_for_its_array_and_its_task(cluster: Cluster) -> None:
    for name, id_ in (("array", "123"), ("task", "123_4")):
        assert await cluster.put(name, "acme", "slurm_job", job_id=id_) == 201
    tasks = [job("130", array_job="123", array_task="4"), job("123", array_job="123", array_task="5")]
    for node, view, task in zip(NODES, (ONE, TWO), tasks, strict=True):
        await cluster.report(30, {view: 1.0}, [cluster.held(view, task, 10, methods=("slurm",))], node)
    assert minutes(await usage(cluster, "allocation")) == {"array": (40, 40), "task": (20, 20)}
    assert minutes(await usage(cluster, "tenant")) == {"acme": (40, 40)}


async def test_reused_id_of_a_task_leaves_the_past_of_its_array(cluster: Cluster) -> None:
    """Task 4 of job array 123 has the job id 130. After a reset of SLURM's ids, a job without array has it."""
    for name, id_ in (("array", "123"), ("task", "123_4")):
        assert await cluster.put(name, "acme", "slurm_job", job_id=id_) == 201
    first, second = job("130", array_job="123", array_task="4"), job("130")
    await cluster.report(12, {ONE: 1.0}, [cluster.held(ONE, first, 1, 9, methods=("slurm",))])
    assert minutes(await usage(cluster, "allocation")) == {"array": (8, 8), "task": (8, 8)}
    await cluster.report(30, {ONE: 2.0}, [cluster.held(ONE, second, 20, methods=("slurm",))])
    assert minutes(await usage(cluster, "allocation")) == {"array": (8, 8), "task": (8, 8)}


async def test_jobs_of_two_slurm_clusters_are_not_added(cluster: Cluster) -> None:
    for name, target in (("plain", "123"), ("alpha", "alpha/123")):
        assert await cluster.put(name, "acme", "slurm_job", job_id=target) == 201
    for node, view, name in zip(NODES, (ONE, TWO), ("alpha", "beta"), strict=True):
        holder = job("123", slurm_cluster=name, user=name)
        await cluster.report(30, {view: 1.0}, [cluster.held(view, holder, 10, methods=("slurm",))], node)
    answer = await usage(cluster, "allocation")
    assert minutes(answer) == {"alpha": (20, 20)}
    assert [(one.allocation, one.devices, one.reason) for one in answer.unresolved] == [
        ("plain", None, "ambiguous_target")
    ]
    assert minutes(await usage(cluster, "job")) == {"alpha/123": (20, 20), "beta/123": (20, 20)}
    assert minutes(await usage(cluster, "user")) == {"alpha": (20, 20), "beta": (20, 20)}


async def test_job_of_another_slurm_cluster_changes_no_past_bill(cluster: Cluster) -> None:
    assert await cluster.put("plain", "acme", "slurm_job", job_id="123") == 201
    for minute, node, view, name in ((15, NODES[0], ONE, "alpha"), (30, NODES[1], TWO, "beta")):
        holder = job("123", slurm_cluster=name)
        held = cluster.held(view, holder, minute - 10, minute - 2, methods=("slurm",))
        await cluster.report(minute, {view: 1.0}, [held], node)
        assert minutes(await usage(cluster, "allocation", 0, 15)) == {"plain": (8, 8)}
        assert not (await usage(cluster, "allocation", 0, 15)).unresolved
    answer = await usage(cluster, "allocation")
    assert minutes(answer) == {"plain": (8, 8)}
    assert [(one.allocation, one.reason) for one in answer.unresolved] == [("plain", "ambiguous_target")]


async def test_reused_job_id_does_not_change_the_past(cluster: Cluster) -> None:
    assert await cluster.put("plain", "acme", "slurm_job", job_id="123") == 201
    alpha, beta = (job("123", slurm_cluster=name) for name in ("alpha", "beta"))
    await cluster.report(-5, {ONE: 9.0}, [cluster.held(ONE, alpha, -20, -10)])
    await cluster.report(15, {TWO: 1.0}, [cluster.held(TWO, beta, 5, 13)], NODES[1])
    for holdings in ((), [cluster.held(ONE, alpha, 25)]):
        await cluster.report(29, {ONE: 8.0}, holdings)
        answer = await usage(cluster, "allocation", 0, 20)
        assert (minutes(answer), answer.unresolved) == ({"plain": (8, 8)}, ())


@pytest.mark.parametrize(
    ("valid", "held"),
    [((20, 30), (2, 15)), ((0, 10), (15, 25)), ((0, 10), (15, None))],
    ids=["before", "after", "present"],
)
async def test_reason_does_not_come_from_another_use_of_a_job_id(
    cluster: Cluster, valid: tuple[float, float], held: tuple[float, float | None]
) -> None:
    """The job of an allocation never had a device; another job has the same id at another time."""
    target = {"kind": "slurm_job", "target": {"cluster": "local", "job_id": "123"}, "tenant": "acme"}
    spec = {**target, "valid_from": cluster.time(valid[0]), "valid_to": cluster.time(valid[1])}
    assert (await cluster.site.request("/v1/allocations/a", "PUT", spec))[0] == 201
    await cluster.report(29, {ONE: 1.0}, [cluster.held(ONE, job("123"), *held, methods=("slurm",))])
    (own,) = (await usage(cluster, "allocation", *valid)).unresolved
    answer = await usage(cluster, "allocation", 0, 30)
    assert (minutes(answer), answer.unresolved) == ({}, (own,))


async def test_pod_on_the_machine_of_another_tenant_is_contested(cluster: Cluster) -> None:
    await cluster.report(30, {ONE: 1.0}, [cluster.held(ONE, pod(FIRST), 0)])
    assert await cluster.put("node", "acme", "bare_metal", machine="gpu-1") == 201
    assert await cluster.put("a", "bravo", pod_uid=FIRST) == 201
    answer = await usage(cluster, "tenant")
    assert minutes(answer) == {"acme": (30, 0), "bravo": (30, 0)}
    assert answer.total.held_gpu_hours * 60 == pytest.approx(30)


@pytest.mark.parametrize(
    ("verdict", "tenant", "expected"),
    [
        (HoldingVerdict.CONFLICT, "bravo", {"acme": (30, 10)}),
        (HoldingVerdict.UNKNOWN, "bravo", {"acme": (30, 10), "bravo": (20, 0)}),
        (HoldingVerdict.CONFLICT, "acme", {"acme": (30, 30)}),
    ],
)
async def test_possible_pod_of_another_tenant_contests_the_machine(
    cluster: Cluster, verdict: HoldingVerdict, tenant: str, expected: dict[str | None, tuple[float, ...]]
) -> None:
    await cluster.report(30, {ONE: 1.0}, [cluster.held(ONE, pod(FIRST), 10, verdict=verdict)])
    assert await cluster.put("node", "acme", "bare_metal", machine="gpu-1") == 201
    assert await cluster.put("a", tenant, pod_uid=FIRST) == 201
    assert minutes(await usage(cluster, "tenant")) == expected


async def test_conflict_does_not_contest_the_certain_pod_of_a_device(cluster: Cluster) -> None:
    await two_pods(cluster)
    held = [cluster.held(ONE, pod(FIRST), 0), cluster.held(ONE, pod(SECOND), 10, verdict=HoldingVerdict.CONFLICT)]
    await cluster.report(30, {ONE: 1.0}, held)
    assert minutes(await usage(cluster, "tenant")) == {"acme": (30, 30)}


async def test_too_many_holdings_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await two_pods(cluster)
    held = [cluster.held(ONE, pod(FIRST), 5, 10), cluster.held(ONE, pod(SECOND), 10)]
    await cluster.report(30, {ONE: 1.0}, held)
    for module in ("holding_reads", "holder_usage"):
        monkeypatch.setattr(f"gpufleet.hub.query.{module}.MAX_HOLDINGS", 1)
    for by in ("tenant", "namespace"):
        status, document = await cluster.site.request(f"/v1/usage?group_by={by}&start={cluster.time(0)}")
        assert (status, document["error"], document["field"]) == (400, "bad_request", "start")


async def test_query_with_many_targets_is_split(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding_reads, "CHUNK", 1)
    await two_pods(cluster)
    for node, uid in zip(NODES, (FIRST, SECOND), strict=True):
        await cluster.report(30, {ONE: 1.0}, [cluster.held(ONE, pod(uid), 10)], node)
    assert minutes(await usage(cluster, "tenant")) == {"acme": (20, 20), "bravo": (20, 20)}


DEPLOYMENT = Owner(kind="Deployment", name="web")


async def report_example(cluster: Cluster) -> None:
    """Report the example of docs/usage.md."""
    train = Holder(kind=HolderKind.POD, id=FIRST, name="train-0", namespace="research")
    web = [
        Holder(kind=HolderKind.POD, id=f"web-{n}", name=f"web-{n}", namespace=space, owners=(DEPLOYMENT,))
        for n, space in enumerate(("shop", "shop", "search"))
    ]
    sliced = [
        cluster.held(TWO, holder, since, until, share=Share.TIMESLICE, replicas=1)
        for holder, since, until in ((web[0], 0, 30), (web[1], 0, 15), (web[2], 0, 30))
    ]
    work = cluster.held(gpu_view(3), job("4711", account="physics", queue="gpu"), 0, 15, methods=("slurm",))
    holdings = [cluster.held(ONE, train, 0, 30), *sliced, work]
    for at in (0, 30):
        await cluster.report(at, {ONE: 1.0, TWO: 2.0, gpu_view(3): 3.0}, holdings)


async def test_documented_example_by_namespace(cluster: Cluster) -> None:
    await report_example(cluster)
    answer = await usage(cluster, "namespace")
    fields = ("held_gpu_hours", "used_gpu_hours", "shared_gpu_hours", "replica_hours", "unattributed_gpu_hours")
    found = [
        (
            row.group[UsageDimension.NAMESPACE],
            row.holder_absent,
            *(round(getattr(row, name) * 60, 6) for name in fields),
        )
        for row in (*answer.rows, msgspec.structs.replace(answer.total, group={UsageDimension.NAMESPACE: "total"}))
    ]
    assert found == [
        ("research", None, 30, 30, 0, 0, 0),
        ("search", None, 12.5, 0, 12.5, 30, 0),
        ("shop", None, 17.5, 0, 17.5, 45, 0),
        (None, None, 15, 15, 0, 0, 0),
        (None, Reason.NOT_REPORTED, 15, 15, 0, 0, 15),
        ("total", None, 90, 90, 0, 75, 15),
    ]
    assert [row.gpus for row in (*answer.rows, answer.total)] == [1, 1, 1, 1, 1, 3]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("owner", {"Deployment/web": (30, 30), None: (45, 45)}),
        (
            "pod",
            {"research/train-0": (30, 30), "shop/web-0": (12.5, 0), "shop/web-1": (5, 0), "search/web-2": (12.5, 0)},
        ),
        ("job", {"4711": (15, 15)}),
        ("user", {"ada": (15, 15)}),
        ("account", {"physics": (15, 15)}),
        ("queue", {"gpu": (15, 15)}),
    ],
)
async def test_every_dimension_of_holders(
    cluster: Cluster, by: str, expected: dict[str | None, tuple[float, float]]
) -> None:
    await report_example(cluster)
    found = minutes(await usage(cluster, by))
    assert {name: found[name] for name in expected} == expected
    assert {name for name in found if name is not None} == {name for name in expected if name is not None}


async def test_past_time_keeps_the_account_of_a_running_job(cluster: Cluster) -> None:
    lab, physics = (job("4711", account=account) for account in ("lab", "physics"))
    await cluster.report(10, {ONE: 1.0}, [cluster.held(ONE, lab, 0)])
    before = minutes(await usage(cluster, "account", 0, 20))
    held = [cluster.held(ONE, lab, 0, 20), cluster.held(ONE, physics, 20)]
    await cluster.report(20, {ONE: 1.0}, held)
    assert minutes(await usage(cluster, "account", 0, 20)) == before == {"lab": (20, 20)}
    assert minutes(await usage(cluster, "account")) == {"lab": (20, 20), "physics": (10, 10)}
    assert minutes(await usage(cluster, "job")) == {"4711": (30, 30)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (job("130", array_job="123", array_task="4", account="lab"), job("130", user="bob", account="physics")),
        (job("130", account="lab", queue="gpu"), job("130", user="")),
        (job("130", user=""), job("130", account="lab", queue="gpu")),
    ],
)
async def test_later_job_with_the_same_id_leaves_the_past(cluster: Cluster, before: Holder, after: Holder) -> None:
    dimensions = ("job", "user", "account", "queue")
    ended = cluster.held(ONE, before, 0, 8)
    await cluster.report(10, {ONE: 1.0}, [ended])
    earlier = [minutes(await usage(cluster, by, 0, 9)) for by in dimensions]
    await cluster.report(30, {ONE: 1.0}, [cluster.held(ONE, after, 9)])
    assert [minutes(await usage(cluster, by, 0, 9)) for by in dimensions] == earlier
    both = [minutes(await usage(cluster, by)) for by in dimensions]
    later = [minutes(await usage(cluster, by, 9)) for by in dimensions]
    for found, first, last in zip(both, earlier, later, strict=True):
        held = {name: first.get(name, (0, 0))[0] + last.get(name, (0, 0))[0] for name in {*first, *last}}
        assert {name: value for name, (value, _) in found.items()} == held


async def test_machine_without_the_user_of_a_job_leaves_its_past(cluster: Cluster) -> None:
    """A job ran on one machine. Another machine, without SLURM's user and account of the job, reports it last."""
    await cluster.report(20, {ONE: 1.0}, [cluster.held(ONE, job("130", account="lab"), 0, 20)])
    await cluster.report(30, {TWO: 1.0}, [cluster.held(TWO, job("130", user=""), 0, methods=("cgroup",))], NODES[1])
    assert minutes(await usage(cluster, "user,account")) == {"ada": (50, 50)}
    assert minutes(await usage(cluster, "account,user")) == {"lab": (50, 50)}


async def test_holders_combine_with_cluster_and_model(cluster: Cluster) -> None:
    await report_example(cluster)
    answer = await usage(cluster, "cluster,namespace,model", query="&cluster=local")
    assert {tuple(row.group.values())[:2] for row in answer.rows} == {
        ("local", "research"), ("local", "search"), ("local", "shop"), ("local", None)
    }  # fmt: skip
    assert (await usage(cluster, "namespace", query="&cluster=other")).rows == ()
    assert (await usage(cluster, "tenant", query="&cluster=other")).total.gpus == 0


async def test_dimensions_of_holders_and_allocations_are_not_combined(cluster: Cluster) -> None:
    status, document = await cluster.site.request("/v1/usage?group_by=tenant,namespace")
    assert (status, document["field"]) == (400, "group_by")


async def test_gpu_counts_from_its_first_to_its_last_report(cluster: Cluster) -> None:
    """A GPU that is not reported any more does not count. Its holding ends with its last report."""
    for minute, machine in ((30 - 26 * 60, NODES[0]), (30 - 25 * 60, NODES[0]), (30, NODES[1])):
        await cluster.report(minute, {ONE if machine is NODES[0] else TWO: 1.0}, machine=machine)
    answer = await usage(cluster, "namespace", 30 - 26 * 60, 30 - 24 * 60)
    (row,) = answer.rows
    assert (row.holder_absent, row.gpus) == (Reason.NOT_REPORTED, 1)
    assert 59 < row.held_gpu_hours * 60 <= 120


async def test_device_that_was_never_reported_counts_while_it_is_held(cluster: Cluster) -> None:
    await cluster.report(30, {ONE: 1.0}, [cluster.held(gpu_view(9), pod(FIRST), 10, 20)])
    answer = await usage(cluster, "model,namespace", 0, 20)
    found = {tuple(row.group.values()): round(row.held_gpu_hours * 60, 6) for row in answer.rows}
    assert found[None, "ml"] == 10


async def test_tenant_sees_its_own_pods_and_no_holders(tmp_path: Path) -> None:
    async with guarded(tmp_path) as site:
        acme, admin = site.secrets[Role.TENANT], site.secrets[Role.ADMIN]
        _, bravo = await site.make(Role.TENANT, tenant="bravo")
        source = Cluster(None)  # type: ignore[arg-type]
        held = [source.held(ONE, pod(uid), 0, 30, share=Share.TIMESLICE, replicas=1) for uid in (FIRST, SECOND)]
        report = MachineReport(machine=NODES[0], samples=(gpu_sample(ONE, source.at(30)),), holdings=tuple(held))
        document = encode(
            Batch(cluster="local", sender="s", epoch="1" * 32, seq=1, sent_at=source.at(30), reports=(report,))
        )
        assert (await site.post(document, site.secrets[Role.SENDER])).status == 200

        async def stored() -> bool:
            return bool(site.store.seqs)

        await wait_until_async(stored, what="the batch to be stored")
        for name, uid, tenant in (("a", FIRST, "acme"), ("b", SECOND, "bravo")):
            spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": uid}, "tenant": tenant}
            spec |= {"valid_from": source.time(0)}
            assert (await site.request(f"/v1/allocations/{name}", admin, "PUT", spec)).status == 201
        window = f"start={source.time(0)}&end={source.time(30)}"
        for token, own, other in ((acme, "a", "bravo"), (bravo, "b", "acme")):
            reply = await site.request(f"/v1/usage?group_by=allocation,tenant&{window}", token)
            answer: Any = json.loads(reply.body)
            assert [row["group"]["allocation"] for row in answer["rows"]] == [own]
            assert answer["total"]["held_gpu_hours"] == pytest.approx(0.25)
            assert other not in reply.body.decode()
            assert "pod-" not in reply.body.decode()
            for by in ("namespace", "owner", "pod", "job", "user", "account", "queue", "model,pod"):
                refused = await site.request(f"/v1/usage?group_by={by}&{window}", token)
                assert (refused.status, json.loads(refused.body)["error"]) == (403, "forbidden")
        allowed = await site.request(f"/v1/usage?group_by=pod&{window}", site.secrets[Role.OPERATOR])
        assert allowed.status == 200


@pytest.mark.parametrize("slots", [1, 2])
async def test_passed_through_gpu_counts_once(cluster: Cluster, slots: int) -> None:
    """A virtual machine has the GPU in the first slot, and reports it from inside."""
    vm = Holder(kind=HolderKind.VM, id=VM, name="train", namespace="ml")
    views = [View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=f"0000:0{n}:00.0") for n in range(1, slots + 1)]
    inside = gpu_sample(gpu_view(7, side=Side.GUEST), cluster.at(30), gpu_power_watts=77.0)
    state = Sample(view=None, reader="guests", lane=Lane.FAST, measured_at=cluster.at(30), values={"guest_state": "ok"})
    guest = MachineReport(
        machine=Machine(name="ml/train", kind=MachineKind.GUEST, system_uuid=VM, hypervisor="gpu-1"),
        samples=(msgspec.structs.replace(inside, provenance=Provenance.SLICE_GUEST), state),
    )
    for minute in (0, 30):
        host = MachineReport(
            machine=NODES[0],
            samples=tuple(
                msgspec.structs.replace(
                    gpu_sample(view, cluster.at(minute)),
                    reader=PCI_READER,
                    values={"gpu_pci_driver": "vfio-pci", "gpu_pci_address": view.pci_address or ""},
                )
                for view in views
            ),
            holdings=(cluster.held(views[0], vm, 0, methods=("libvirt",)),),
        )
        sender = NODES[0].machine_id or ""
        batch = Batch(
            cluster="local",
            sender=sender,
            epoch=sender,
            seq=minute + 1,
            sent_at=cluster.at(minute),
            reports=(host, guest) if minute else (host,),
        )
        await cluster.site.post(encode(batch))
    answer = await usage(cluster, "namespace")
    assert minutes(answer, "held_gpu_hours") == {"ml": (30,)}
    assert answer.total.gpus == slots


async def test_gpu_divided_into_vgpus_does_not_count_beside_them(cluster: Cluster) -> None:
    vgpus = [
        View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=f"{n}77c546c-c5a2-4093-bc1b-8051983e7a61", parent=ONE.key)
        for n in (1, 2)
    ]
    vm = Holder(kind=HolderKind.VM, id=VM, name="train", namespace="ml")
    held = [cluster.held(vgpus[0], vm, 0, share=Share.VGPU, methods=("libvirt",))]
    for minute in (0, 30):
        await cluster.report(minute, dict.fromkeys([ONE, *vgpus], 1.0), held)
    answer = await usage(cluster, "namespace", 5)
    assert minutes(answer, "held_gpu_hours") == {"ml": (25,)}
    assert (answer.total.gpus, answer.total.held_gpu_hours * 60) == pytest.approx((2, 50))


async def test_division_into_vgpus_leaves_the_time_before(cluster: Cluster) -> None:
    vgpu = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="177c546c-c5a2-4093-bc1b-8051983e7a61", parent=ONE.key)
    vm = Holder(kind=HolderKind.VM, id=VM, name="train", namespace="ml")
    await cluster.report(0, {ONE: 1.0}, [cluster.held(ONE, pod(FIRST), 2, 10)])
    before = await usage(cluster, "pod", 0, 20)
    held = cluster.held(vgpu, vm, 25, share=Share.VGPU, methods=("libvirt",))
    await cluster.report(20, {ONE: 1.0, vgpu: 1.0}, [held], values={"vgpu_type": "A100-4C"})
    assert (await usage(cluster, "pod", 0, 20)) == before
    assert before.total.held_gpu_hours * 60 == pytest.approx(20)
    answer = await usage(cluster, "pod")
    assert (answer.total.gpus, answer.total.held_gpu_hours * 60) == pytest.approx((2, 30))


async def test_report_of_a_host_leaves_the_past_of_its_guest(cluster: Cluster) -> None:
    """The agent on the host reports the GPU of the guest on its bus from minute 20 on."""
    machine = Machine(name="train", kind=MachineKind.GUEST, system_uuid=VM, hypervisor=NODES[0].name)
    inside = gpu_view(7, side=Side.GUEST)
    sample = gpu_sample(inside, cluster.at(0), gpu_power_watts=77.0, gpu_pci_address=inside.pci_address or "")
    sample = msgspec.structs.replace(sample, provenance=Provenance.SLICE_GUEST)
    guest = MachineReport(machine=machine, samples=(sample,))
    sender = NODES[0].machine_id or ""

    async def post(seq: int, minute: float, *reports: MachineReport) -> None:
        at = cluster.at(minute)
        batch = Batch(cluster="local", sender=sender, epoch=sender, seq=seq, sent_at=at, reports=reports)
        await cluster.site.post(encode(batch))

    for seq in (1, 2):  # the hypervisor is known once the host was reported
        await post(seq, 0, MachineReport(machine=NODES[0]), guest)
    before = await usage(cluster, "pod", 0, 20)
    assert before.total.held_gpu_hours * 60 == pytest.approx(20)
    view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:01:00.0")
    bus = gpu_sample(view, cluster.at(20), gpu_pci_driver="vfio-pci", gpu_pci_address="0000:01:00.0")
    host = MachineReport(machine=NODES[0], samples=(msgspec.structs.replace(bus, reader=PCI_READER),))
    await post(3, 20, host, MachineReport(machine=machine))
    assert (await usage(cluster, "pod", 0, 20)) == before
    answer = await usage(cluster, "pod")
    assert (answer.total.gpus, answer.total.held_gpu_hours * 60) == pytest.approx((1, 30))
