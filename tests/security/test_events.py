"""`/v1/events` by role: tenants see events of their own devices and periods, operators all, in pages."""

import datetime as dt

import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.access import Role
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.security.guarded import Guarded
from tests.support.passes import World, gpu
from tests.support.waiting import wait_until_async
from tests.web.hub.site import now


def encode_report(seq: int, name: str, *events: Event) -> bytes:
    world = World({"nvml": (Lane.FAST,)})
    samples = tuple(world.sample("nvml", Lane.FAST, gpu(number), {"gpu_power_watts": 1.0}) for number in (0, 1))
    report = MachineReport(machine=Machine(name=name, machine_id=name[-1] * 32), samples=samples, events=events)
    return encode(
        Batch(cluster="local", sender=name, epoch="0123456789abcdef" * 2, seq=seq, sent_at=now(), reports=(report,))
    )


@pytest.fixture
async def full(site: Guarded) -> Guarded:
    """Return a site with two machines: recent XIDs on two GPUs, an old XID, and a driver reload."""
    at = now() - 10 * NANOS
    for name in ("node-a", "node-b"):
        batch = encode_report(
            1,
            name,
            Event(view=gpu(0), kind="xid", code=79, at=at),
            Event(view=gpu(1), kind="xid", code=31, at=at - NANOS),
            Event(view=gpu(0), kind="xid", code=13, at=at - 3600 * NANOS),
            Event(view=None, kind="driver_reloaded", at=at - 2 * NANOS),
        )
        assert (await site.post(batch, site.secrets[Role.SENDER])).status == 200

    async def stored() -> bool:
        return len(site.store.seqs) == 2

    await wait_until_async(stored, what="the batches to be stored")
    return site


async def allocate(site: Guarded, name: str, tenant: str, machine: str, **more: object) -> None:
    begin = dt.datetime.fromtimestamp((now() - 60 * NANOS) / NANOS, dt.UTC).isoformat()
    target = {"cluster": "local", "machine": machine}
    spec = {"kind": "bare_metal", "target": target, "tenant": tenant, "valid_from": begin, **more}
    assert (await site.request(f"/v1/allocations/{name}", site.secrets[Role.ADMIN], "PUT", spec)).status == 201


async def visible_events(site: Guarded, role: Role, query: str = "") -> list[tuple[str, str, int]]:
    reply = await site.request(f"/v1/events{query}", site.secrets[role])
    assert reply.status == 200, reply.body
    return [(one["node"], one["kind"], one["code"]) for one in reply.document["events"]]


async def rename(full: Guarded, name: str, *reports: MachineReport) -> None:
    """Report that node-a has a new name, and the reports."""
    renamed = MachineReport(machine=Machine(name=name, machine_id="a" * 32))
    count = len(full.store.seqs)  # before the batch is posted: it can be stored before the answer is read
    batch = Batch(
        cluster="local",
        sender="node-a",
        epoch="0123456789abcdef" * 2,
        seq=count,
        sent_at=now(),
        reports=(renamed, *reports),
    )
    assert (await full.post(encode(batch), full.secrets[Role.SENDER])).status == 200

    async def stored() -> bool:
        return len(full.store.seqs) > count

    await wait_until_async(stored)


async def test_operator_sees_all_events_and_can_filter(full: Guarded) -> None:
    assert len(await visible_events(full, Role.OPERATOR)) == 8
    only = "?machine=node-a&kind=xid&view=" + gpu(0).key
    assert await visible_events(full, Role.OPERATOR, only) == [("node-a", "xid", 79), ("node-a", "xid", 13)]
    assert await visible_events(full, Role.OPERATOR, "?view=machine&machine=node-b") == [
        ("node-b", "driver_reloaded", 0)
    ]
    assert await visible_events(full, Role.OPERATOR, "?machine=none") == []
    assert await visible_events(full, Role.OPERATOR, "?cluster=other") == []


async def test_event_pages_join(full: Guarded) -> None:
    pages = []
    query = "?limit=3"
    while True:
        reply = (await full.request(f"/v1/events{query}", full.secrets[Role.OPERATOR])).document
        pages.append(len(reply["events"]))
        if reply["next"] is None:
            break
        query = f"?limit=3&cursor={reply['next']}"
    assert pages == [3, 3, 2]


async def test_tenant_without_allocations_sees_no_events(full: Guarded) -> None:
    assert await visible_events(full, Role.TENANT) == []
    assert await visible_events(full, Role.TENANT, "?machine=node-a") == []


async def test_tenant_sees_its_machine_from_the_start_of_the_allocation(full: Guarded) -> None:
    await allocate(full, "mine", "acme", "node-a")
    await allocate(full, "theirs", "other", "node-b")
    mine = [("node-a", "xid", 79), ("node-a", "xid", 31), ("node-a", "driver_reloaded", 0)]
    assert await visible_events(full, Role.TENANT) == mine
    assert await visible_events(full, Role.TENANT, "?allocation=mine&machine=node-a") == mine
    assert await visible_events(full, Role.TENANT, "?machine=node-b") == []
    assert (await full.request("/v1/events?allocation=theirs", full.secrets[Role.TENANT])).status == 404
    assert await visible_events(full, Role.OPERATOR, "?allocation=theirs&kind=driver_reloaded") == [
        ("node-b", "driver_reloaded", 0)
    ]


async def test_tenant_of_one_gpu_sees_only_that_gpu(full: Guarded) -> None:
    await allocate(full, "mine", "acme", "node-a", devices=[gpu(1).uuid])
    assert await visible_events(full, Role.TENANT) == [("node-a", "xid", 31)]


async def test_events_stay_with_the_bound_tenant_after_a_rename(full: Guarded) -> None:
    machines = (await full.request("/v1/machines", full.secrets[Role.ADMIN])).document["items"]
    (id_,) = [one["id"] for one in machines if one["machine"]["name"] == "node-a"]
    await allocate(full, "theirs", "other", id_)
    await allocate(full, "mine", "acme", "renamed-a")
    await rename(full, "renamed-a")
    assert await visible_events(full, Role.TENANT) == []
    assert len(await visible_events(full, Role.OPERATOR)) == 8


async def test_event_has_no_name_that_the_tenant_does_not_know(full: Guarded) -> None:
    """The allocation moved from one machine to another. The first one was renamed since."""
    machines = (await full.request("/v1/machines", full.secrets[Role.ADMIN])).document["items"]
    (id_,) = [one["id"] for one in machines if one["machine"]["name"] == "node-a"]
    await allocate(full, "mine", "acme", "node-a")
    spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-b"}, "tenant": "acme"}
    assert (await full.request("/v1/allocations/mine", full.secrets[Role.ADMIN], "PUT", spec)).status == 200
    assert {node for node, *_ in await visible_events(full, Role.TENANT)} == {""}
    assert {node for node, *_ in await visible_events(full, Role.ADMIN, "?allocation=mine")} == {"node-a"}
    end = dt.datetime.fromtimestamp((now() - NANOS) / NANOS, dt.UTC).isoformat()
    await allocate(full, "by-id", "acme", id_, valid_to=end)
    assert {node for node, *_ in await visible_events(full, Role.TENANT, "?allocation=by-id")} == {id_}


async def test_events_of_a_machine_are_found_by_the_name_of_the_allocation(full: Guarded) -> None:
    """A name that the machine had before or after does not select them: it can be of another tenant's time."""
    await allocate(full, "mine", "acme", "node-a")
    await rename(full, "renamed-a")
    assert len(await visible_events(full, Role.TENANT, "?machine=node-a")) == 3
    assert await visible_events(full, Role.TENANT, "?machine=renamed-a") == []


async def test_events_of_a_pod_have_the_name_of_their_time(full: Guarded) -> None:
    """A tenant cannot find out a later name of the machine, also not by guessing it."""
    uid = "11111111-0000-4000-8000-000000000000"
    target = {"cluster": "local", "pod_uid": uid}
    spec = {"kind": "kubernetes_pod", "target": target, "tenant": "acme", "valid_from": "2020-01-01T00:00:00Z"}
    assert (await full.request("/v1/allocations/pod", full.secrets[Role.ADMIN], "PUT", spec)).status == 201
    held = Holding(
        view=gpu(1).key,
        holder=Holder(kind=HolderKind.POD, id=uid),
        since=now() - 60 * NANOS,
        until=now() - 5 * NANOS,
        methods=("kubelet",),
        verdict=HoldingVerdict.AGREED,
    )
    machine = Machine(name="node-a", machine_id="a" * 32)
    await rename(full, "node-a", MachineReport(machine=machine, holdings=(held,)))
    mine = [("node-a", "xid", 31)]
    assert await visible_events(full, Role.TENANT) == mine
    await rename(full, "renamed-a")
    assert await visible_events(full, Role.TENANT) == mine
    assert await visible_events(full, Role.TENANT, "?machine=node-a") == mine
    assert await visible_events(full, Role.TENANT, "?machine=renamed-a") == []
    assert await visible_events(full, Role.OPERATOR, "?allocation=pod") == mine
    await rename(full, "node-a")
    assert await visible_events(full, Role.TENANT) == mine


async def test_events_of_a_guest_have_the_name_of_their_time(full: Guarded) -> None:
    vm = "c77c546c-c5a2-4093-bc1b-8051983e7a61"
    end = dt.datetime.fromtimestamp((now() - NANOS) / NANOS, dt.UTC).isoformat()
    spec = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": vm}, "tenant": "acme"}
    spec |= {"valid_from": "2020-01-01T00:00:00Z", "valid_to": end}
    assert (await full.request("/v1/allocations/vm", full.secrets[Role.ADMIN], "PUT", spec)).status == 201

    def guest(name: str) -> MachineReport:
        own = Sample(
            view=None, reader="guests", lane=Lane.FAST, measured_at=now() - 30 * NANOS, values={"guest_state": "ok"}
        )
        machine = Machine(name=name, kind=MachineKind.GUEST, system_uuid=vm, hypervisor="node-a")
        return MachineReport(
            machine=machine,
            samples=(own,),
            events=(Event(view=None, kind="xid", code=48, at=now() - 20 * NANOS),) if name == "train" else (),
        )

    await rename(full, "node-a", guest("train"))
    assert await visible_events(full, Role.TENANT) == [("train", "xid", 48)]
    await rename(full, "node-a", guest("of-bravo"))
    assert await visible_events(full, Role.TENANT) == [("train", "xid", 48)]
    assert await visible_events(full, Role.TENANT, "?machine=of-bravo") == []


async def test_events_after_the_end_of_an_allocation_are_hidden(full: Guarded) -> None:
    end = dt.datetime.fromtimestamp((now() - 30 * NANOS) / NANOS, dt.UTC).isoformat()
    await allocate(full, "mine", "acme", "node-a", valid_to=end)
    assert await visible_events(full, Role.TENANT) == []


async def test_invalid_event_queries_are_refused(full: Guarded) -> None:
    for query in [
        "cursor=x",
        "cursor=%20",
        "cursor=LTEvNQ",
        "limit=0",
        "limit=1001",
        "since=yesterday",
        "since=2099-01-01T00:00:00Z",
    ]:
        assert (await full.request(f"/v1/events?{query}", full.secrets[Role.OPERATOR])).status == 400, query


@pytest.mark.parametrize(
    ("kind", "earlier", "shown"),
    [
        ("throttle_ended", {"seconds": "40.0"}, {"seconds": "40.0"}),
        ("throttle_ended", {"seconds": "90.0"}, {}),
        ("recovery_action_changed", {"from": "gpu_reset"}, {}),
        ("driver_bound", {"before": "vfio-pci"}, {}),
    ],
)
async def test_tenant_sees_no_value_from_before_its_allocation(
    site: Guarded, kind: str, earlier: dict[str, str], shown: dict[str, str]
) -> None:
    ended = Event(view=gpu(0), kind=kind, at=now() - 10 * NANOS, attributes={"cause": "x", **earlier})
    assert (await site.post(encode_report(1, "node-a", ended), site.secrets[Role.SENDER])).status == 200

    async def stored() -> bool:
        return site.store.seqs == [1]

    await wait_until_async(stored, what="the batch to be stored")
    await allocate(site, "mine", "acme", "node-a")
    every = {"cause": "x", **earlier}
    for role, attributes in ((Role.TENANT, {"cause": "x", **shown}), (Role.OPERATOR, every)):
        (event,) = (await site.request("/v1/events", site.secrets[role])).document["events"]
        assert event["attributes"] == attributes
