"""Allocations of pods and jobs answer with the devices that holdings name, for the time of each holding."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.event import Event
from gpufleet.model.holdings import HET_COMPONENT, HET_JOB, Holder, HolderKind, Holding, HoldingVerdict, Owner, Share
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.batches import gpu_sample, gpu_view
from tests.web.hub.site import Site, now, running_site

MINUTE = 60 * NANOS
NODES = [
    Machine(name=f"gpu-{n}", machine_id=f"{n}" * 32, system_uuid=f"00000000-0000-4000-8000-00000000000{n}")
    for n in (1, 2)
]
PODS = [f"{n}{n}{n}{n}{n}{n}{n}{n}-0000-4000-8000-000000000000" for n in (1, 2)]
FIRST, SECOND = PODS


def pod(uid: str) -> Holder:
    return Holder(kind=HolderKind.POD, id=uid, name=f"pod-{uid[0]}", namespace="ml")


class Cluster:
    """A hub, and nodes that report values and holdings at minutes of the last half hour."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.start = now() - 30 * MINUTE
        self._seq = 0

    async def report(
        self,
        minute: float,
        powers: dict[View, float],
        holdings: Sequence[Holding] = (),
        machine: Machine = NODES[0],
        events: Sequence[Event] = (),
        values: Mapping[str, Value | Absent] = {},
        provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
    ) -> None:
        samples = tuple(
            gpu_sample(view, self.at(minute), gpu_power_watts=power, gpu_pci_address=view.pci_address or "", **values)
            for view, power in powers.items()
        )
        samples = tuple(msgspec.structs.replace(one, provenance=provenance) for one in samples)
        await self._post(minute, samples, holdings, machine, events)

    async def report_lost(self, minute: float, view: View, holdings: Sequence[Holding] = ()) -> None:
        """Report a GPU as lost."""
        values: dict[str, Value | Absent] = {"gpu_state": "lost", "gpu_power_watts": Absent(Reason.GPU_LOST)}
        await self._post(minute, [gpu_sample(view, self.at(minute), **values)], holdings, NODES[0])

    async def report_mig(
        self, minute: float, sizes: Mapping[View, int | Absent], holdings: Sequence[Holding] = ()
    ) -> None:
        """Report slices of MIG devices, and how many of them their GPUs can have."""
        names = {ViewKind.GPU: "gpu_mig_devices_max", ViewKind.MIG: "mig_compute_slices"}
        at = self.at(minute)
        samples = []
        for view, size in sizes.items():
            values: dict[str, Value | Absent] = {names[view.kind]: size}
            if view.kind is ViewKind.MIG:
                values["mig_profile"] = size if isinstance(size, Absent) else f"{size}g.{10 * size}gb"
            samples.append(gpu_sample(view, at, **values))
        await self._post(minute, samples, holdings, NODES[0])

    async def _post(
        self,
        minute: float,
        samples: Sequence[Sample],
        holdings: Sequence[Holding],
        machine: Machine,
        events: Sequence[Event] = (),
    ) -> None:
        self._seq += 1
        at = self.at(minute)
        report = MachineReport(machine=machine, samples=tuple(samples), holdings=tuple(holdings), events=tuple(events))
        sender = machine.machine_id or ""
        await self.site.post(
            encode(Batch(cluster="local", sender=sender, epoch=sender, seq=self._seq, sent_at=at, reports=(report,)))
        )

    def at(self, minute: float) -> int:
        return self.start + int(minute * MINUTE)

    def held(self, view: View, holder: Holder, since: float, until: float | None = None, **more: Any) -> Holding:
        fields = {"verdict": HoldingVerdict.AGREED, "methods": ("kubelet",), "container": "main", **more}
        return Holding(
            view=view.key,
            holder=holder,
            since=self.at(since),
            until=None if until is None else self.at(until),
            **fields,
        )

    async def put(self, name: str, tenant: str, kind: str = "kubernetes_pod", **target: object) -> int:
        spec = {"kind": kind, "target": {"cluster": "local", **target}, "tenant": tenant}
        spec |= {"valid_from": to_datetime(self.start).isoformat()}
        return (await self.site.request(f"/v1/allocations/{name}", "PUT", spec))[0]

    async def metrics(self, name: str) -> Any:
        return (await self.site.request(f"/v1/allocations/{name}/metrics"))[1]

    async def series(self, name: str, step: str = "60s", metric: str = "gpu_power_watts") -> Any:
        window = f"start={self.time(0)}&end={self.time(31)}&step={step}"
        return (await self.site.request(f"/v1/allocations/{name}/series?metric={metric}&{window}"))[1]

    async def shown(self, name: str, step: str = "60s") -> set[float]:
        series = (await self.series(name, step))["series"]
        return {point["value"] for one in series for point in one["points"] if point["value"] is not None}

    async def events(self, name: str) -> list[Any]:
        return list((await self.site.request(f"/v1/events?allocation={name}&since={self.time(0)}"))[1]["events"])

    def time(self, minute: float) -> str:
        return to_datetime(self.at(minute)).isoformat().replace("+00:00", "Z")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_site(tmp_path) as site:
        yield Cluster(site)


def powers(answer: Any) -> dict[str, float | None]:
    return {one["uuid"]: one["readings"]["gpu_power_watts"].get("value") for one in answer["devices"]}


def numbers(document: Any) -> list[float]:
    """Every number of a JSON document. Digits of its texts, such as timestamps, do not count."""
    if isinstance(document, dict | list):
        items = document.values() if isinstance(document, dict) else document
        return [number for item in items for number in numbers(item)]
    return [document] if isinstance(document, int | float) else []


ONE, TWO = gpu_view(1), gpu_view(2)


async def test_pod_answers_with_its_own_devices(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    nothing = await cluster.metrics("a")
    assert (nothing["source"], nothing["reason"]) == ("unavailable", "not_attributed")

    await cluster.report(30, {ONE: 101.0, TWO: 102.0}, [cluster.held(ONE, pod(FIRST), 5)])
    answer = await cluster.metrics("a")
    assert (answer["source"], answer["reason"]) == ("host_local_probe", None)
    assert powers(answer) == {"GPU-1": 101.0}
    assert answer["devices"][0]["holding"] == {
        "share": "exclusive",
        "containers": ["main"],
        "since": cluster.time(5),
    }
    assert (answer["aggregate"]["coverage"], answer["host"], answer["host_dimensions"]) == ("1 of 1 devices", {}, [])
    assert answer["machine"] == answer["devices"][0]["machine"]


async def test_next_card_in_a_slot_is_not_shown_for_a_gpu_on_another_machine(cluster: Cluster) -> None:
    """The holding of the GPU has not ended yet."""
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    held, slot = cluster.held(ONE, pod(FIRST), 5), msgspec.structs.replace(ONE, uuid=None)
    await cluster.report(6, {ONE: 101.0})
    await cluster.report(20, {ONE: 102.0}, machine=NODES[1])
    await cluster.report_lost(30, slot, [held])
    (device,) = (await cluster.metrics("a"))["devices"]
    assert (device["uuid"], "gpu_state" in device["readings"]) == (ONE.uuid, False)


async def test_hand_over_within_a_step_shows_each_pod_its_own_values(cluster: Cluster) -> None:
    for name, uid, tenant in (("a", FIRST, "acme"), ("b", SECOND, "bravo")):
        assert await cluster.put(name, tenant, pod_uid=uid) == 201
    error = [
        Event(view=ONE, kind="xid", code=code, at=cluster.at(at), attributes={"pid": str(code)})
        for code, at in ((31, 10.2), (43, 10.8))
    ]
    before, after = cluster.held(ONE, pod(FIRST), 5, 10.5), cluster.held(ONE, pod(SECOND), 10.5)
    for at, power in ((4, 1.0), (6, 2.0), (10.25, 3.0)):
        await cluster.report(at, {ONE: power})
    await cluster.report(10.75, {ONE: 4.0}, [before, after], events=error)
    await cluster.report(30, {ONE: 5.0}, [after])
    for step in ("60s", "1s"):
        assert await cluster.shown("a", step) == {2.0, 3.0}
        assert await cluster.shown("b", step) == {4.0, 5.0}
    assert await cluster.shown("a", "1h") == {3.0}
    assert await cluster.shown("b", "1h") == {5.0}
    assert [one["code"] for one in await cluster.events("a")] == [31]
    assert [one["code"] for one in await cluster.events("b")] == [43]
    ended = await cluster.metrics("a")
    assert (ended["source"], ended["reason"], ended["devices"]) == ("unavailable", "not_attributed", [])
    assert powers(await cluster.metrics("b")) == {"GPU-1": 5.0}


async def test_nothing_measured_before_the_holding_is_answered(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    await cluster.report(29.9, {ONE: 101.0}, [cluster.held(ONE, pod(FIRST), 29.95)])
    answer = await cluster.metrics("a")
    assert powers(answer) == {"GPU-1": None}
    assert 101.0 not in numbers(answer)


@pytest.mark.parametrize("kind", ["pod", "bare metal"])
async def test_xid_of_before_the_allocation_is_not_in_its_series(cluster: Cluster, kind: str) -> None:
    """XID 31 is of before the allocation. XID 79 is of its time, also in a series that begins after it."""
    held = cluster.held(ONE, pod(FIRST), 5)
    for at, code, occurred in ((4, 31, 3), (6, 31, 3), (10, 79, 9), (20, 79, 9)):
        xid = {"gpu_last_xid": code, "gpu_last_xid_timestamp_seconds": cluster.at(occurred) / NANOS}
        await cluster.report(at, {ONE: 1.0}, [held], values=xid)
    target = {"pod_uid": FIRST} if kind == "pod" else {"machine": "gpu-1"}
    spec = {"kind": "kubernetes_pod" if kind == "pod" else "bare_metal", "target": {"cluster": "local", **target}}
    status, _ = await cluster.site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": cluster.time(5)})
    assert status == 201
    for start, expected in ((0, [79, 79]), (15, [79])):
        window = f"start={cluster.time(start)}&end={cluster.time(31)}&step=60s"
        path = f"/v1/allocations/a/series?metric=gpu_last_xid&{window}"
        (series,) = (await cluster.site.request(path))[1]["series"]
        assert [one["value"] for one in series["points"] if one["value"] is not None] == expected


@pytest.mark.parametrize(("occurred", "shown"), [(-80, False), (-60, False), (-40, True), (-20, True), (20, True)])
async def test_xid_of_a_long_holding_is_shown(cluster: Cluster, occurred: int, shown: bool) -> None:
    """The pod has the GPU since minute -70, and another pod had it together with this one until minute -50."""
    spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": FIRST}, "valid_from": cluster.time(-90)}
    await cluster.site.request("/v1/allocations/a", "PUT", spec)
    xid = {"gpu_last_xid": 79, "gpu_last_xid_timestamp_seconds": cluster.at(occurred) / NANOS}
    xid |= {"gpu_xid_watched_since_timestamp_seconds": cluster.at(occurred) / NANOS, "gpu_xid_events_total": 1}
    held = [cluster.held(ONE, pod(FIRST), -70), cluster.held(ONE, pod(SECOND), -75, -50)]
    await cluster.report(30, {ONE: 1.0}, held, values=xid)
    readings = (await cluster.metrics("a"))["devices"][0]["readings"]
    names = ("gpu_last_xid", "gpu_xid_events_total")
    assert [readings[name].get("value") for name in names] == ([79, 1] if shown else [None, None])


@pytest.mark.parametrize("kind", ["pod", "bare metal"])
@pytest.mark.parametrize(("codes", "shown"), [([31, 31], None), ([31, 79], 79), ([None, 31], 31)])
async def test_imported_xid_is_shown_once_it_has_changed(
    cluster: Cluster, kind: str, codes: list[int | None], shown: int | None
) -> None:
    """Imported pages do not report when an XID occurred. XID 31 is that of an earlier tenant."""
    held = cluster.held(ONE, pod(FIRST), 5)
    for at, code in ((4, 31), *zip((10, 29.5), codes, strict=True)):
        values: dict[str, Any] = {"gpu_last_xid": Absent(Reason.NO_DATA) if code is None else code}
        await cluster.report(at, {ONE: 1.0}, [held], values=values, provenance=Provenance.IMPORTED)
    target = {"pod_uid": FIRST} if kind == "pod" else {"machine": "gpu-1"}
    spec = {"kind": "kubernetes_pod" if kind == "pod" else "bare_metal", "target": {"cluster": "local", **target}}
    status, _ = await cluster.site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": cluster.time(5)})
    assert status == 201
    answer = await cluster.metrics("a")
    reading = answer["devices"][0]["readings"]["gpu_last_xid"]
    assert (answer["source"], reading.get("value"), reading.get("absent")) == (
        "imported",
        shown,
        None if shown else "no_data",
    )
    window = f"start={cluster.time(0)}&end={cluster.time(31)}&step=60s"
    (_, series) = await cluster.site.request(f"/v1/allocations/a/series?metric=gpu_last_xid&{window}")
    points = [one["value"] for found in series["series"] for one in found["points"] if one["value"] is not None]
    assert points == ([] if shown is None else [shown])


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [(HoldingVerdict.CONFLICT, "ambiguous_target"), (HoldingVerdict.UNKNOWN, "not_attributed")],
)
async def test_uncertain_holding_gives_no_values(cluster: Cluster, verdict: HoldingVerdict, reason: str) -> None:
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    await cluster.report(30, {ONE: 101.0}, [cluster.held(ONE, pod(FIRST), 5, verdict=verdict)])
    answer = await cluster.metrics("a")
    assert (answer["source"], answer["reason"], answer["devices"]) == ("unavailable", reason, [])
    assert answer["aggregate"]["coverage"] == "0 of 1 devices"
    past = await cluster.series("a")
    assert (past["source"], past["reason"], past["series"]) == ("unavailable", reason, [])
    assert await cluster.events("a") == []


async def test_shared_device_answers_with_its_scope(cluster: Cluster) -> None:
    error = Event(view=ONE, kind="xid", code=31, at=cluster.at(20), attributes={"pid": "4711"})
    holdings = [
        cluster.held(ONE, pod(uid), 5, share=Share.TIMESLICE, replicas=number + 1) for number, uid in enumerate(PODS)
    ]
    for name, uid, tenant in (("a", FIRST, "acme"), ("b", SECOND, "bravo")):
        assert await cluster.put(name, tenant, pod_uid=uid) == 201
    await cluster.report(30, {ONE: 101.0}, holdings, events=[error])
    for name, other in (("a", SECOND), ("b", FIRST)):
        answer = await cluster.metrics(name)
        (device,) = answer["devices"]
        assert device["readings"]["gpu_power_watts"]["scope"] == "shared_device"
        assert (device["holding"]["share"], device["holding"]["replicas"]) == ("timeslice", "ab".index(name) + 1)
        assert answer["aggregate"]["devices"] == 1
        assert answer["aggregate"]["metrics"]["gpu_power_watts"]["value"] is None
        assert other not in str(answer)
        assert [one["scope"] for one in (await cluster.series(name))["series"]] == ["shared_device"]
        assert [one["attributes"] for one in await cluster.events(name)] == [{}]


def job(id_: str, **more: Any) -> Holder:
    return Holder(kind=HolderKind.JOB, id=id_, **{"user": "ada", **more})


def component_owners(id_: str, number: int) -> tuple[Owner, ...]:
    return Owner(kind=HET_COMPONENT, name=f"{id_}+{number}"), Owner(kind=HET_JOB, name=id_)


async def test_job_answers_from_every_machine(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", "slurm_job", job_id="4711") == 201
    for node, views in zip(NODES, ((ONE, TWO), (gpu_view(3), gpu_view(4))), strict=True):
        held = [cluster.held(view, job("4711", nodes=2, gpus=4), 5, methods=("slurm",)) for view in views]
        await cluster.report(30, {view: 100.0 + view.index if view.index else 100.0 for view in views}, held, node)
    answer = await cluster.metrics("a")
    assert (answer["source"], answer["machine"], answer["aggregate"]["coverage"]) == (
        "host_local_probe",
        None,
        "4 of 4 devices",
    )
    assert sorted(powers(answer)) == ["GPU-1", "GPU-2", "GPU-3", "GPU-4"]
    assert len({one["machine"] for one in answer["devices"]}) == 2
    assert {one["device"].rpartition("/")[2] for one in (await cluster.series("a"))["series"]} == set(powers(answer))


@pytest.mark.parametrize(
    ("target", "devices"),
    [
        ("123", ["GPU-1", "GPU-2"]),
        ("123_4", ["GPU-1"]),
        ("123_5", ["GPU-2"]),
        ("130", ["GPU-1"]),
        ("123_6", []),
        ("200", ["GPU-3", "GPU-4"]),
        ("201", ["GPU-4"]),
        ("200+0", ["GPU-3"]),
        ("200+1", ["GPU-4"]),
        ("200+2", []),
    ],
)
async def test_job_is_named_as_slurm_names_it(cluster: Cluster, target: str, devices: list[str]) -> None:
    """The last task of an array has the array's own job id, and so has the first component of a heterogeneous job."""
    assert await cluster.put("a", "acme", "slurm_job", job_id=target) == 201
    holders = [
        job("130", array_job="123", array_task="4"),
        job("123", array_job="123", array_task="5"),
        job("200", owners=component_owners("200", 0)),
        job("201", owners=component_owners("200", 1)),
    ]
    views = [gpu_view(number) for number in range(1, 5)]
    held = [cluster.held(view, holder, 5) for view, holder in zip(views, holders, strict=True)]
    await cluster.report(30, dict.fromkeys(views, 100.0), held)
    assert sorted(powers(await cluster.metrics("a"))) == devices


async def test_job_id_of_two_slurm_clusters_needs_its_cluster(cluster: Cluster) -> None:
    for name, target in (("plain", "123"), ("alpha", "alpha/123"), ("beta", "beta/123")):
        assert await cluster.put(name, "acme", "slurm_job", job_id=target) == 201
    await cluster.report(10, {ONE: 101.0}, [cluster.held(ONE, job("123", slurm_cluster="alpha"), 5, 15)])
    assert powers(await cluster.metrics("plain")) == {}
    assert await cluster.shown("plain") == await cluster.shown("alpha") == {101.0}
    held = [cluster.held(TWO, job("123", slurm_cluster="beta"), 20)]
    await cluster.report(30, {TWO: 102.0}, held, NODES[1])
    answer = await cluster.metrics("plain")
    assert (answer["source"], answer["reason"], answer["devices"]) == ("unavailable", "ambiguous_target", [])
    assert await cluster.shown("plain") == {101.0}  # the time in which only one cluster had the id does not change
    assert powers(await cluster.metrics("beta")) == {"GPU-2": 102.0}
    assert await cluster.shown("alpha") == {101.0}


async def test_tenants_with_one_job_id_in_two_slurm_clusters(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", "slurm_job", job_id="alpha/123") == 201
    assert await cluster.put("b", "bravo", "slurm_job", job_id="beta/123") == 201
    for node, view, name in ((NODES[0], ONE, "alpha"), (NODES[1], TWO, "beta")):
        await cluster.report(30, {view: 100.0}, [cluster.held(view, job("123", slurm_cluster=name), 5)], node)
    assert [sorted(powers(await cluster.metrics(name))) for name in "ab"] == [["GPU-1"], ["GPU-2"]]
    assert await cluster.put("c", "bravo", "slurm_job", job_id="123") == 409


async def test_expected_number_is_judged(cluster: Cluster) -> None:
    spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": FIRST}, "expected": {"H100": 2}}
    await cluster.site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": cluster.time(0)})
    await cluster.report(30, {ONE: 101.0, TWO: 102.0}, [cluster.held(ONE, pod(FIRST), 5)])
    answer = await cluster.metrics("a")
    assert (answer["source"], answer["reason"]) == ("unavailable", "gpu_count_differs")
    assert answer["aggregate"]["coverage"] == "0 of 2 devices"
    assert answer["devices"][0]["readings"]["gpu_power_watts"]["last_known"] == 101.0
    await cluster.report(30, {ONE: 101.0, TWO: 102.0}, [cluster.held(view, pod(FIRST), 5) for view in (ONE, TWO)])
    assert (await cluster.metrics("a"))["aggregate"]["coverage"] == "2 of 2 devices"


async def test_two_exclusive_holders_of_a_device_have_no_values(cluster: Cluster) -> None:
    for name, uid, tenant in (("a", FIRST, "acme"), ("b", SECOND, "bravo")):
        assert await cluster.put(name, tenant, pod_uid=uid) == 201
    await cluster.report(10, {ONE: 1.0})
    held = [cluster.held(ONE, pod(FIRST), 5), cluster.held(ONE, pod(SECOND), 20)]
    await cluster.report(30, {ONE: 101.0}, held)
    for name in "ab":
        answer = await cluster.metrics(name)
        assert (answer["source"], answer["reason"], answer["devices"]) == ("unavailable", "ambiguous_target", [])
    assert await cluster.shown("a") == {1.0}
    assert await cluster.shown("b") == set()


@pytest.mark.parametrize(("tenant", "answers"), [("acme", True), ("bravo", False)])
async def test_pod_on_the_machine_of_another_tenant_is_ambiguous(cluster: Cluster, tenant: str, answers: bool) -> None:
    await cluster.report(30, {ONE: 101.0}, [cluster.held(ONE, pod(FIRST), 5)])
    assert await cluster.put("node", "acme", "bare_metal", machine="gpu-1") == 201
    assert await cluster.put("a", tenant, pod_uid=FIRST) == 201
    for name in ("node", "a"):
        answer = await cluster.metrics(name)
        assert answer["reason"] == (None if answers else "ambiguous_target")
        assert bool(answer["devices"]) is answers
        assert bool((await cluster.series(name))["series"]) is answers


async def test_target_of_two_tenants_is_rejected(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    assert await cluster.put("b", "bravo", pod_uid=FIRST) == 409
    assert await cluster.put("c", "acme", "slurm_job", job_id="123") == 201
    assert await cluster.put("e", "acme", "slurm_job", job_id="123_4") == 201
    for part in ("123_4", "123+1"):
        assert await cluster.put("d", "bravo", "slurm_job", job_id=part) == 409


async def test_components_can_have_different_tenants(cluster: Cluster) -> None:
    """The first component has the id of the heterogeneous job."""
    held = []
    for number, (tenant, view) in enumerate((("acme", ONE), ("bravo", TWO))):
        assert await cluster.put(tenant, tenant, "slurm_job", job_id=f"200+{number}") == 201
        held.append(cluster.held(view, job(f"20{number}", owners=component_owners("200", number)), 5))
    await cluster.report(30, {ONE: 101.0, TWO: 102.0}, held)
    for tenant, device in (("acme", "GPU-1"), ("bravo", "GPU-2")):
        answer = await cluster.metrics(tenant)
        assert (answer["reason"], list(powers(answer))) == (None, [device])


async def test_task_by_its_own_job_id_is_ambiguous_between_tenants(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", "slurm_job", job_id="123_4") == 201
    assert await cluster.put("b", "bravo", "slurm_job", job_id="130") == 201
    await cluster.report(30, {ONE: 101.0}, [cluster.held(ONE, job("130", array_job="123", array_task="4"), 5)])
    for name in "ab":
        answer = await cluster.metrics(name)
        assert (answer["reason"], answer["devices"]) == ("ambiguous_target", [])


VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"


async def test_devices_of_a_virtual_machine_are_counted_by_its_hypervisor(cluster: Cluster) -> None:
    assert await cluster.put("a", "acme", "gpu_slice", vm_uuid=VM) == 201
    vm = Holder(kind=HolderKind.VM, id=VM, name="vm")
    await cluster.report(30, {ONE: 101.0, TWO: 102.0}, [cluster.held(view, vm, 5) for view in (ONE, TWO)])
    answer = await cluster.metrics("a")
    assert (answer["source"], answer["reason"]) == ("unavailable", "guest_not_collected")
    assert answer["aggregate"]["coverage"] == "0 of 2 devices"
    assert powers(answer) == {"GPU-1": None, "GPU-2": None}
    assert 101.0 not in numbers(answer)
    assert "expected" not in answer["allocation"]["spec"]


@pytest.mark.parametrize("verdict", [HoldingVerdict.UNKNOWN, HoldingVerdict.CONFLICT])
async def test_possible_pod_of_another_tenant_hides_the_machine(cluster: Cluster, verdict: HoldingVerdict) -> None:
    await cluster.report(10, {ONE: 66.0})
    await cluster.report(30, {ONE: 101.0}, [cluster.held(ONE, pod(SECOND), 5, verdict=verdict)])
    assert await cluster.put("node", "acme", "bare_metal", machine="gpu-1") == 201
    assert await cluster.put("b", "bravo", pod_uid=SECOND) == 201
    answer = await cluster.metrics("node")
    assert (answer["reason"], answer["devices"]) == ("ambiguous_target", [])
    assert await cluster.shown("node") == set()


async def test_more_holdings_than_can_be_read_give_no_values(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holdings beyond the limit could name another holder of the device."""
    assert await cluster.put("a", "acme", pod_uid=FIRST) == 201
    assert await cluster.put("b", "bravo", pod_uid=SECOND) == 201
    assert await cluster.put("node", "carol", "bare_metal", machine="gpu-2") == 201
    others = [cluster.held(gpu_view(number), job(str(number)), 5) for number in range(3, 8)]
    await cluster.report(30, {ONE: 101.0}, [cluster.held(ONE, pod(FIRST), 5), *others])
    await cluster.report(30, {TWO: 102.0}, others, NODES[1])
    monkeypatch.setattr("gpufleet.hub.query.holding_reads.MAX_HOLDINGS", 4)
    window = f"start={cluster.time(0)}&end={cluster.time(31)}&step=60s"
    for name in ("a", "node"):
        answer = await cluster.metrics(name)
        assert (answer["source"], answer["reason"], answer["devices"]) == ("unavailable", "ambiguous_target", [])
        status, document = await cluster.site.request(f"/v1/allocations/{name}/series?metric=gpu_power_watts&{window}")
        assert (status, document["error"], document["field"]) == (400, "bad_request", "start")
    status, document = await cluster.site.request(f"/v1/events?allocation=a&since={cluster.time(0)}")
    assert (status, document["error"], document["field"]) == (400, "bad_request", "since")


async def test_present_answer_does_not_read_the_past(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": FIRST}, "tenant": "acme"}
    spec |= {"valid_from": cluster.time(-200)}
    assert (await cluster.site.request("/v1/allocations/a", "PUT", spec))[0] == 201
    past = [cluster.held(ONE, job(str(minute)), minute, minute + 1) for minute in range(-100, -90)]
    await cluster.report(
        30, {ONE: 101.0}, [*past, cluster.held(ONE, pod(FIRST), -110, -109), cluster.held(ONE, pod(FIRST), 10)]
    )
    monkeypatch.setattr("gpufleet.hub.query.holding_reads.MAX_HOLDINGS", 4)
    assert powers(await cluster.metrics("a")) == {"GPU-1": 101.0}


async def test_ended_pod_answers_with_its_newest_end(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": FIRST}, "tenant": "acme"}
    spec |= {"valid_from": cluster.time(-200)}
    assert (await cluster.site.request("/v1/allocations/a", "PUT", spec))[0] == 201
    past = [cluster.held(ONE, job(str(minute)), minute, minute + 1) for minute in range(-108, -100)]
    await cluster.report(30, {ONE: 101.0}, [*past, cluster.held(ONE, pod(FIRST), -110, -109)])
    monkeypatch.setattr("gpufleet.hub.query.holding_reads.MAX_HOLDINGS", 4)
    answer = await cluster.metrics("a")
    assert (answer["reason"], answer["devices"]) == ("not_attributed", [])
    assert "released" in answer["detail"]


async def test_launcher_pod_and_virtual_machine_of_two_tenants_are_ambiguous(cluster: Cluster) -> None:
    vm = Holder(kind=HolderKind.VM, id=VM, name="vm")
    assert await cluster.put("a", "acme", "gpu_slice", vm_uuid=VM) == 201
    assert await cluster.put("b", "bravo", pod_uid=SECOND) == 201
    held = [cluster.held(ONE, pod(SECOND), 5, parent=vm), cluster.held(ONE, vm, 5, container="")]
    await cluster.report(30, {ONE: 101.0}, held)
    for name in "ab":
        answer = await cluster.metrics(name)
        assert (answer["reason"], answer["devices"]) == ("ambiguous_target", [])
        assert 101.0 not in numbers(answer)
    assert await cluster.shown("b") == set()


MIG = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=ONE.key)
SIBLING = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-2", parent=ONE.key)


async def test_gpu_and_its_mig_device_of_two_pods_contradict(cluster: Cluster) -> None:
    for name, uid, tenant in (("a", FIRST, "acme"), ("b", SECOND, "bravo")):
        assert await cluster.put(name, tenant, pod_uid=uid) == 201
    held = [cluster.held(ONE, pod(FIRST), 5), cluster.held(MIG, pod(SECOND), 5, share=Share.MIG)]
    await cluster.report(30, {ONE: 101.0, MIG: 11.0}, held)
    for name in "ab":
        answer = await cluster.metrics(name)
        assert (answer["reason"], answer["devices"]) == ("ambiguous_target", [])
        assert await cluster.shown(name) == set()


async def test_mig_devices_of_two_pods_do_not_contradict(cluster: Cluster) -> None:
    for name, uid, tenant in (("a", FIRST, "acme"), ("b", SECOND, "bravo")):
        assert await cluster.put(name, tenant, pod_uid=uid) == 201
    held = [cluster.held(view, pod(uid), 5, share=Share.MIG) for view, uid in ((MIG, FIRST), (SIBLING, SECOND))]
    await cluster.report(30, {ONE: 101.0, MIG: 11.0, SIBLING: 12.0}, held)
    for name, uuid in (("a", "MIG-1"), ("b", "MIG-2")):
        answer = await cluster.metrics(name)
        assert (answer["reason"], list(powers(answer))) == (None, [uuid])


GPU_UUID, MIG_UUID = (f"{kind}-00000000-0000-4000-8000-000000000000" for kind in ("GPU", "MIG"))


@pytest.mark.parametrize(("listed", "held"), [(GPU_UUID, MIG_UUID), (MIG_UUID, GPU_UUID)])
async def test_mig_device_and_gpu_of_bare_metal_are_ambiguous(cluster: Cluster, listed: str, held: str) -> None:
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=GPU_UUID, pci_address="0000:01:00.0", index=1)
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid=MIG_UUID, parent=gpu.key)
    view = mig if held == MIG_UUID else gpu
    await cluster.report(30, {gpu: 101.0, mig: 11.0}, [cluster.held(view, pod(SECOND), 5, share=Share.MIG)])
    spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "gpu-1"}, "tenant": "acme"}
    spec |= {"devices": [listed], "valid_from": cluster.time(0)}
    assert (await cluster.site.request("/v1/allocations/node", "PUT", spec))[0] == 201
    assert await cluster.put("b", "bravo", pod_uid=SECOND) == 201
    for name in ("node", "b"):
        answer = await cluster.metrics(name)
        assert (answer["reason"], answer["devices"]) == ("ambiguous_target", [])
