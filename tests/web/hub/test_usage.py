"""`/v1/usage`: grouping, unknown hours, moved GPUs and invalid queries."""

import asyncio
import datetime as dt
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.config.hub import UsageConfig
from gpufleet.config.prices import PriceConfig
from gpufleet.hub.query.usage import MAX_OF_TENANT, MAX_PENDING
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.access import Role
from gpufleet.model.api.usage import DeviceInterval, DeviceUsage, UsageAnswer, UsageDimension
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import PCI_READER, Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import to_ns
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.wiring.hub import USAGE_THREADS
from tests.fakes.batches import body, gpu_sample, gpu_view, make_batch
from tests.security.guarded import guarded
from tests.support.waiting import PATIENCE, wait_until_async
from tests.web.hub.site import Site, now, running_site

DAY = "start=2026-03-01T00:00:00Z&end=2026-03-02T00:00:00Z"
OLD = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    price = PriceConfig(model="H200", per_gpu_hour=2.5, valid_from=OLD)
    async with running_site(tmp_path, usage=UsageConfig(currency="EUR", price=(price,))) as site:
        yield site


def spec(machine: str, **more: object) -> dict[str, object]:
    target = {"cluster": "local", "machine": machine}
    return {"kind": "bare_metal", "target": target, "valid_from": "2026-03-01T12:00:00Z", **more}


async def usage(site: Site, query: str) -> UsageAnswer:
    status, document = await site.request(f"/v1/usage?{query}")
    assert status == 200, document
    return msgspec.convert(document, UsageAnswer)


async def test_held_time_without_readings_is_unknown_not_idle(site: Site) -> None:
    await site.post(body(1, now()))
    await site.request("/v1/allocations/a", "PUT", spec("node-a", tenant="t", valid_to="2026-03-01T18:00:00Z"))
    answer = await usage(site, f"group_by=allocation,tenant,team&{DAY}")
    (row,) = answer.rows
    assert row.group == {"allocation": "a", "tenant": "t", "team": None}
    assert (row.gpus, row.held_gpu_hours, row.unknown_gpu_hours, row.known_ratio) == (2, 12.0, 12.0, 0.0)
    assert (row.used_gpu_hours, row.idle_gpu_hours, row.energy_kwh) == (0.0, 0.0, None)
    assert (row.cost, row.cost_absent) == (None, Reason.NO_DATA)
    assert answer.summary == "use is known for 0.00 of 12.00 GPU-hours held"


async def test_slow_usage_queries_delay_no_other_requests(site: Site) -> None:
    """As many usage queries as the hub takes wait for the store. Everything else is answered, and one more is not."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_PENDING + 2))
    await site.post(body(1, now()))
    await site.request("/v1/allocations/a", "PUT", spec("node-a", tenant="t"))
    proceed, started = threading.Event(), threading.Semaphore(0)

    def slow(intervals: Sequence[DeviceInterval]) -> list[DeviceUsage]:
        started.release()
        assert proceed.wait(60 * PATIENCE)
        return [DeviceUsage() for _ in intervals]

    site.store.device_usage = slow  # type: ignore[method-assign]
    paths = [f"/v1/usage?group_by={by}&{DAY}" for by in ("tenant", "model", "allocation")]
    queries = [asyncio.create_task(site.request(paths[number % 3])) for number in range(MAX_PENDING)]
    for _ in range(USAGE_THREADS):
        assert await asyncio.to_thread(started.acquire, timeout=60 * PATIENCE)

    async def is_full() -> bool:
        url = f"{site.hub.url}{paths[0]}"
        try:
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=0.5):
                return False
        except TimeoutError:
            return False  # it took the last place
        except urllib.error.HTTPError as error:
            with error:
                return (error.code, msgspec.json.decode(error.read())["error"]) == (503, "busy") and bool(
                    error.headers["Retry-After"]
                )

    await wait_until_async(is_full, what="a usage query to be rejected")
    for path in ("/readyz", "/v1/allocations/a/metrics", "/v1/gpus", "/v1/fleet"):
        assert (await site.request(path))[0] == 200
    await site.post(body(2, now()))
    proceed.set()
    assert {status for status, _ in await asyncio.gather(*queries)} <= {200, 503}
    assert (await site.request(paths[0]))[0] == 200


async def test_tenant_cannot_take_every_place_of_the_usage_queue(tmp_path: Path) -> None:
    """A tenant's queries wait for the store. Further ones of it are rejected, and those of others are not."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * MAX_PENDING))
    proceed = threading.Event()

    def slow(intervals: Sequence[DeviceInterval]) -> list[DeviceUsage]:
        assert proceed.wait(60 * PATIENCE)
        return [DeviceUsage() for _ in intervals]

    async with guarded(tmp_path) as site:
        assert (await site.post(body(1, now()), site.secrets[Role.SENDER])).status == 200
        admin, path = site.secrets[Role.ADMIN], f"/v1/usage?{DAY}"
        made = await site.request("/v1/allocations/a", admin, "PUT", spec("node-a", tenant="acme"))
        assert made.status == 201
        other = (await site.make(Role.TENANT, tenant="other"))[1]
        second = (await site.make(Role.TENANT, tenant="acme"))[1]
        site.store.device_usage = slow  # type: ignore[method-assign]
        own = [
            asyncio.create_task(site.request(path, token))
            for token in (site.secrets[Role.TENANT], second) * (MAX_PENDING // 2)
        ]

        async def are_rejected() -> bool:
            return sum(one.done() for one in own) == MAX_PENDING - MAX_OF_TENANT

        await wait_until_async(are_rejected, what="all but the tenant's share to be rejected")
        rejected = [one.result() for one in own if one.done()]
        assert {(one.status, one.error, bool(one.headers["retry-after"])) for one in rejected} == {(503, "busy", True)}
        others = [asyncio.create_task(site.request(path, token)) for token in (other, site.secrets[Role.OPERATOR])]
        proceed.set()
        assert [one.status for one in await asyncio.gather(*others)] == [200, 200]
        assert sorted(one.status for one in await asyncio.gather(*own)) == [200] * MAX_OF_TENANT + [503] * len(rejected)


@pytest.mark.parametrize(
    "query", ["group_by=team,tenant", "group_by=team&group_by=tenant", "group_by=team&group_by=team,tenant"]
)
async def test_dimensions_are_comma_separated_or_repeated(site: Site, query: str) -> None:
    await site.request("/v1/allocations/a", "PUT", spec("unseen", tenant="t", team="x", expected={"H200": 1}))
    answer = await usage(site, f"{query}&{DAY}")
    assert answer.group_by == ("team", "tenant")
    assert [row.group for row in answer.rows] == [{"team": "x", "tenant": "t"}]


async def test_expected_devices_count_and_unresolved_ones_are_listed(site: Site) -> None:
    await site.request("/v1/allocations/expects", "PUT", spec("unseen", expected={"H200": 8}))
    await site.request("/v1/allocations/vague", "PUT", spec("unseen-too"))
    answer = await usage(site, f"group_by=model&{DAY}")
    (row,) = answer.rows
    assert (row.group, row.gpus, row.held_gpu_hours, row.unknown_gpu_hours) == ({"model": "H200"}, 8, 96.0, 96.0)
    assert (row.cost, answer.currency) == (240.0, "EUR")
    assert [(one.allocation, one.devices, one.reason) for one in answer.unresolved] == [
        ("expects", 8.0, Reason.TARGET_UNKNOWN),
        ("vague", None, Reason.TARGET_UNKNOWN),
    ]
    assert "allocations with unknown devices, not in the total: 1" in answer.summary


@pytest.mark.parametrize(
    ("names", "models"),
    [
        (("NVIDIA H200", "NVIDIA H200"), {"NVIDIA H200": 24.0 + 12.0}),
        (("NVIDIA L40S", "NVIDIA L40S"), {"NVIDIA L40S": 24.0, "H200": 12.0}),
        (("NVIDIA H200", "NVIDIA H200 NVL"), {"NVIDIA H200": 12.0, "NVIDIA H200 NVL": 12.0, "H200": 12.0}),
    ],
)
async def test_missing_gpu_has_the_model_of_its_class(
    site: Site, names: tuple[str, str], models: dict[str, float]
) -> None:
    samples = tuple(gpu_sample(gpu_view(number), now(), gpu_name=name) for number, name in enumerate(names))
    await site.post(body(1, now(), samples=samples))
    await site.request("/v1/allocations/a", "PUT", spec("node-a", expected={"H200": 3}))
    answer = await usage(site, f"group_by=model&{DAY}")
    assert {row.group[UsageDimension.MODEL]: row.held_gpu_hours for row in answer.rows} == models


async def test_machine_without_expected_gpus_is_not_short(site: Site) -> None:
    await site.post(body(1, now(), gpus=0))
    await site.request("/v1/allocations/cpu", "PUT", spec("node-a"))
    answer = await usage(site, DAY)
    (one,) = answer.unresolved
    assert (one.devices, one.reason) == (None, Reason.NOT_COLLECTED)
    assert one.detail


SLOT = "0000:01:00.0"


async def post_gpus(site: Site, seq: int, name: str, hour: int, gpus: dict[int, int]) -> None:
    """Post the GPUs of a machine, with the slot of each, at an hour of a day."""
    at = to_ns(dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC))
    places = {gpu: f"0000:0{slot}:00.0" for gpu, slot in gpus.items()}
    samples = tuple(
        gpu_sample(
            msgspec.structs.replace(gpu_view(gpu), pci_address=address),
            at,
            gpu_power_watts=1.0,
            gpu_pci_address=address,
        )
        for gpu, address in places.items()
    )
    machine = Machine(name=name, machine_id=f"{name:0>32}")
    await site.post(body(seq, at, sender=name, machine=machine, samples=samples))


async def post_inventory(site: Site, *reports: tuple[int, str, dict[int, int]]) -> None:
    """Post the GPUs by slot of machines at hours of a day. Tenant t has node-a, tenant u has node-b."""
    for seq, (hour, name, gpus) in enumerate(reports):
        await post_gpus(site, seq + 1, name, hour, gpus)
    for name, tenant, expected in (("node-a", "t", {"H200": 2}), ("node-b", "u", {})):
        allocated = spec(name, tenant=tenant, expected=expected)
        await site.request(f"/v1/allocations/{name}", "PUT", {**allocated, "valid_from": "2026-03-01T00:00:00Z"})


async def test_gpu_that_returns_is_held_by_each_machine_in_turn(site: Site) -> None:
    """GPU-1 is in node-b from 8:00 on, and in node-a again at 18:00. The time before 18:00 stays as it was."""
    first = ((6, "node-a", {0: 0, 1: 1}), (8, "node-b", {5: 0, 1: 1}), (11, "node-b", {5: 0, 1: 1}))
    await post_inventory(site, *first)
    until_eleven = "group_by=tenant&start=2026-03-01T00:00:00Z&end=2026-03-01T11:00:00Z"
    before = await usage(site, until_eleven)
    for seq, (name, gpus) in enumerate((("node-a", {0: 0, 1: 1}), ("node-b", {5: 0})), start=4):
        await post_gpus(site, seq, name, 18, gpus)
    answer = await usage(site, f"group_by=tenant&{DAY}")
    assert [(row.group, row.held_gpu_hours) for row in answer.rows] == [
        ({"tenant": "t"}, 24.0 + 24.0),
        ({"tenant": "u"}, 24.0 + 10.0),
    ]
    assert (await usage(site, until_eleven)).rows == before.rows


async def test_gpus_known_by_index_stay_in_the_past(site: Site) -> None:
    """Two GPUs are known by index until an agent reports them by UUID at 12:00. The index is reported later, too."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    machine = Machine(name="node-a", machine_id="a" * 32)

    async def post(seq: int, hour: int) -> None:
        at = to_ns(dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC))
        samples = tuple(
            msgspec.structs.replace(
                gpu_sample(View(kind=ViewKind.GPU, side=Side.HOST, instance=str(n)), at, gpu_power_watts=1.0),
                reader="netdata",
                provenance=Provenance.HOST_NETDATA,
            )
            for n in range(2)
        )
        await site.post(body(seq, at, sender="netdata", machine=machine, samples=samples))

    midnight = {"valid_from": "2026-03-01T00:00:00Z"}
    for seq, hour in enumerate((6, 9, 11), start=1):
        await post(seq, hour)
    await site.request("/v1/allocations/a", "PUT", {**spec("node-a", tenant="t"), **midnight})
    until_noon = "start=2026-03-01T00:00:00Z&end=2026-03-01T12:00:00Z"
    assert await hours(site) == {"a": (48, 48)}
    before = await usage(site, f"group_by=tenant&{until_noon}")
    await post_gpus(site, 1, "node-a", 12, {0: 0, 1: 1})
    for seq, hour in ((4, 15), (5, 18)):
        assert await hours(site) == {"a": (48, 48)}
        assert await usage(site, f"group_by=tenant&{until_noon}") == before
        await post(seq, hour)


async def test_gpu_that_left_for_a_machine_without_allocation(site: Site) -> None:
    """GPU-1 moves to node-b at 12:00. A later allocation of node-b changes nothing for tenant t."""
    for seq, (name, hour, gpus) in enumerate((("node-a", 6, {0: 0, 1: 1}), ("node-b", 12, {1: 1})), start=1):
        await post_gpus(site, seq, name, hour, gpus)
    midnight = {"valid_from": "2026-03-01T00:00:00Z"}
    await site.request("/v1/allocations/a", "PUT", {**spec("node-a", tenant="t"), **midnight})
    before = await usage(site, f"group_by=tenant&{DAY}")
    assert [(row.group, row.held_gpu_hours) for row in before.rows] == [({"tenant": "t"}, 24.0 + 12.0)]
    await site.request("/v1/allocations/b", "PUT", {**spec("node-b", tenant="u"), **midnight})
    after = await usage(site, f"group_by=tenant&{DAY}")
    assert after.rows[0] == before.rows[0]
    assert [row.held_gpu_hours for row in after.rows] == [36.0, 12.0]


async def test_moved_gpu_is_held_by_its_machine_at_the_time(site: Site) -> None:
    """GPU-1 moves from node-a to node-b at 12:00. GPU-2 takes its slot at 18:00."""
    await post_inventory(
        site,
        (6, "node-a", {0: 0, 1: 1}),
        (6, "node-b", {5: 0}),
        (12, "node-b", {5: 0, 1: 1}),
        (18, "node-a", {0: 0, 2: 1}),
        (18, "node-b", {5: 0, 1: 1}),
    )
    answer = await usage(site, f"group_by=tenant&{DAY}")
    # t: GPU-0 all day, GPU-1 until 12:00, a missing GPU until 18:00, then GPU-2. u: GPU-5 all day, GPU-1 from 12:00.
    assert [(row.group, row.held_gpu_hours) for row in answer.rows] == [
        ({"tenant": "t"}, 24.0 + 12.0 + 6.0 + 6.0),
        ({"tenant": "u"}, 24.0 + 12.0),
    ]
    assert (answer.total.gpus, answer.total.held_gpu_hours) == (5, 84.0)
    for hours, held in ((("08", "10"), [4.0, 2.0]), (("11", "13"), [4.0, 3.0]), (("20", "22"), [4.0, 4.0])):
        first, last = hours
        answer = await usage(site, f"group_by=tenant&start=2026-03-01T{first}:00:00Z&end=2026-03-01T{last}:00:00Z")
        assert [row.held_gpu_hours for row in answer.rows] == held


async def test_invalid_queries_are_refused_with_their_field(site: Site) -> None:
    for query, field in [
        ("group_by=planet", "group_by"),
        ("group_by=", "group_by"),
        ("group_by=team&group_by=planet", "group_by"),
        ("groupby=team", "groupby"),
        ("tenant=t", "tenant"),
        ("start=2026-03-01T00:00:00Z&start=2026-03-02T00:00:00Z", "start"),
        ("start=2026-03-02T00:00:00Z&end=2026-03-01T00:00:00Z", "end"),
        ("start=1990-01-01T00:00:00Z", "start"),
        ("start=2126-03-01T00:00:00Z&end=2126-03-02T00:00:00Z", "start"),
        ("start=2126-03-01T00:00:00Z", "start"),
        ("start=yesterday", "start"),
    ]:
        status, document = await site.request(f"/v1/usage?{query}")
        assert (status, document["error"], document["field"]) == (400, "bad_request", field), (query, field)


async def test_passed_through_gpu_is_held_once(site: Site) -> None:
    """Two GPUs are bound to vfio and a guest has one of them: the node has two GPUs, not three."""
    vm = "c77c546c-c5a2-4093-bc1b-8051983e7a61"
    guest = Machine(name="ml/train-0", kind=MachineKind.GUEST, system_uuid=vm, hypervisor="node-a")
    at = now()
    on_bus = tuple(
        msgspec.structs.replace(
            gpu_sample(View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=f"0000:0{slot}:00.0"), at),
            reader=PCI_READER,
            values={"gpu_pci_driver": "vfio-pci"},
        )
        for slot in (1, 2)
    )
    inside = msgspec.structs.replace(
        gpu_sample(gpu_view(7, side=Side.GUEST), at, gpu_power_watts=77.0), provenance=Provenance.SLICE_GUEST
    )
    own = Sample(
        view=None, reader="guests", lane=Lane.FAST, measured_at=at, values={"guest_state": "ok", "guest_gpus": 1}
    )
    host = make_batch(1, at, samples=on_bus)
    report = MachineReport(machine=guest, samples=(inside, own))
    batch = msgspec.structs.replace(host, reports=(*host.reports, report))
    await site.post(encode(batch))
    since = {"valid_from": "2026-03-01T00:00:00Z"}
    target = {"cluster": "local", "vm_uuid": vm}
    await site.request("/v1/allocations/vm", "PUT", {"kind": "gpu_slice", "target": target, **since})
    assert (await usage(site, DAY)).total.gpus == 1
    await site.request("/v1/allocations/node", "PUT", {**spec("node-a"), **since})
    answer = await usage(site, DAY)
    assert {row.group[UsageDimension.ALLOCATION]: row.gpus for row in answer.rows} == {"node": 2, "vm": 1}
    assert answer.total.gpus == 2


async def test_guest_with_the_uuid_of_a_foreign_gpu_changes_no_bill(site: Site) -> None:
    """A guest of node-b reports GPU-0 of node-a, under the name of a cheaper GPU."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    at = to_ns(dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC))
    await site.post(body(1, at, samples=(gpu_sample(gpu_view(0), at, gpu_power_watts=1.0, gpu_name="H200"),)))
    await site.request("/v1/allocations/a", "PUT", spec("node-a", tenant="t", valid_to="2026-03-01T18:00:00Z"))
    before = await usage(site, f"group_by=tenant,model&{DAY}")
    assert before.total.cost == pytest.approx(6 * 2.5)
    vm = "c77c546c-c5a2-4093-bc1b-8051983e7a61"
    target = {"cluster": "local", "vm_uuid": vm}
    claim = {"kind": "gpu_slice", "target": target, "tenant": "u", "valid_from": "2026-03-01T00:00:00Z"}
    await site.request("/v1/allocations/vm", "PUT", claim)
    sample = gpu_sample(gpu_view(0, side=Side.GUEST), at + 1, gpu_power_watts=1.0, gpu_name="T4")
    guest = MachineReport(
        machine=Machine(name="vm", kind=MachineKind.GUEST, system_uuid=vm, hypervisor="node-b"),
        samples=(msgspec.structs.replace(sample, provenance=Provenance.SLICE_GUEST),),
    )
    host = make_batch(1, at, sender="node-b", machine=Machine(name="node-b", machine_id="b" * 32), gpus=0)
    for seq in (1, 2):  # the hypervisor is known once the host was reported
        batch = msgspec.structs.replace(host, seq=seq, epoch="b" * 32, reports=(*host.reports, guest))
        await site.post(encode(batch))
    answer = await usage(site, f"group_by=tenant,model&{DAY}")
    assert [row for row in answer.rows if row.group[UsageDimension.TENANT] == "t"] == list(before.rows)


async def test_guest_does_not_name_the_gpu_of_its_host(site: Site) -> None:
    """The host reports no name. Its guest reports the GPU as one with a price."""
    at = to_ns(dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC))
    host = make_batch(1, at, samples=(gpu_sample(gpu_view(0), at, gpu_power_watts=1.0),))
    await site.post(encode(host))
    await site.request("/v1/allocations/a", "PUT", spec("node-a", tenant="t"))
    before = await usage(site, f"group_by=tenant,model&{DAY}")
    assert before.total.cost is None
    vm = "c77c546c-c5a2-4093-bc1b-8051983e7a61"
    claim = {**spec(""), "kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": vm}, "tenant": "u"}
    await site.request("/v1/allocations/vm", "PUT", claim)
    sample = gpu_sample(gpu_view(0, side=Side.GUEST), at + 1, gpu_power_watts=1.0, gpu_name="H200")
    guest = MachineReport(
        machine=Machine(name="vm", kind=MachineKind.GUEST, system_uuid=vm, hypervisor="node-a"),
        samples=(msgspec.structs.replace(sample, provenance=Provenance.SLICE_GUEST),),
    )
    await site.post(encode(msgspec.structs.replace(host, seq=2, reports=(*host.reports, guest))))
    answer = await usage(site, f"group_by=tenant,model&{DAY}")
    assert [row for row in answer.rows if row.group[UsageDimension.TENANT] == "t"] == list(before.rows)


def known_throughout(intervals: Sequence[DeviceInterval]) -> list[DeviceUsage]:
    """Return that every device was used all the time."""
    return [DeviceUsage(used_seconds=(one.end - one.start) / 1e9) for one in intervals]


async def hours(site: Site) -> dict[str | None, tuple[float, float]]:
    """Return held and used hours by allocation."""
    rows = (await usage(site, f"group_by=allocation&{DAY}")).rows
    return {
        row.group[UsageDimension.ALLOCATION]: (round(row.held_gpu_hours, 3), round(row.used_gpu_hours, 3))
        for row in rows
    }


async def test_listed_gpu_is_not_the_one_that_replaced_it(site: Site) -> None:
    """GPU-2 replaces GPU-1 at 12:00. Allocation x lists GPU-1 by its slot, y lists GPU-2."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    day = {"valid_from": "2026-03-01T00:00:00Z"}
    await post_inventory(site, (6, "node-a", {1: 1}))
    await site.request(
        "/v1/allocations/node-a", "PUT", spec("node-a", **day, tenant="t", valid_to="2026-03-01T01:00:00Z")
    )
    since = {"valid_from": "2026-03-01T01:00:00Z"}
    assert (await site.request("/v1/allocations/x", "PUT", spec("node-a", **since, tenant="u", devices=[SLOT])))[
        0
    ] == 201
    await post_gpus(site, 2, "node-a", 12, {2: 1})
    since = {"valid_from": "2026-03-01T12:00:00Z"}
    assert (await site.request("/v1/allocations/y", "PUT", spec("node-a", **since, tenant="v", devices=["GPU-2"])))[
        0
    ] == 201
    # GPU-1 is missing from 12:00 on: held, and unknown.
    assert await hours(site) == {"node-a": (1.0, 1.0), "x": (23.0, 11.0), "y": (12.0, 12.0)}


async def test_replaced_gpu_of_a_machine_is_held_once(site: Site) -> None:
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_inventory(site, (6, "node-b", {1: 1}), (12, "node-b", {2: 1}))
    assert (await hours(site))["node-b"] == (24.0, 24.0)


@pytest.mark.parametrize("hours_of_slot", [(), (14, 16)])
async def test_removed_gpu_is_not_in_later_allocations(site: Site, hours_of_slot: tuple[int, ...]) -> None:
    """GPU-1 is reported until 8:00, and again from 18:00 on, and its slot at some hours in between: bound to vfio."""

    async def post(seq: int, hour: int) -> None:
        at = to_ns(dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC))
        slots = {gpu: f"0000:0{gpu}:00.0" for gpu in ([0, 1] if hour <= 8 or hour >= 18 else [0])}
        views = {gpu: msgspec.structs.replace(gpu_view(gpu), pci_address=slot) for gpu, slot in slots.items()}
        samples = [gpu_sample(views[gpu], at, gpu_power_watts=1.0, gpu_pci_address=slots[gpu]) for gpu in slots]
        if hour in hours_of_slot:
            slot = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=SLOT)
            samples.append(gpu_sample(slot, at, gpu_pci_address=SLOT))
        machine = Machine(name="node-a", machine_id="a" * 32)
        await site.post(body(seq, at, sender="node-a", machine=machine, samples=tuple(samples)))

    for seq, hour in enumerate(range(6, 18, 2), start=1):
        await post(seq, hour)
    times = ("2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z", "2026-03-02T00:00:00Z")
    for name, start, end in (("first", *times[:2]), ("second", *times[1:])):
        given = {**spec("node-a", tenant=name), "valid_from": start, "valid_to": end}
        await site.request(f"/v1/allocations/{name}", "PUT", given)
    of_slot = 24 - 14 if hours_of_slot else 0
    # The first hour of reports without GPU-1 is that from 10:00 to 11:00.
    assert {name: held for name, (held, _) in (await hours(site)).items()} == {"first": 12 + 11, "second": 12 + of_slot}
    await post(9, 18)
    held = {name: held for name, (held, _) in (await hours(site)).items()}
    assert held == {"first": 12 + 11, "second": 12 + max(of_slot, 24 - 18)}


def guest_report(hour: int, vm: str, gpu: int | str, host: str, state: str = "ok") -> MachineReport:
    """Return the report of a guest with a GPU at an hour of a day."""
    at = to_ns(dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC))
    values = {"gpu_power_watts": 1.0, "gpu_pci_address": "0000:00:05.0"}
    uuid = f"GPU-{gpu}" if isinstance(gpu, int) else gpu
    view = View(kind=ViewKind.GPU, side=Side.GUEST, uuid=uuid, pci_address="0000:00:05.0")
    inside = gpu_sample(view, at, **values)  # type: ignore[arg-type]
    own = Sample(view=None, reader="guests", lane=Lane.FAST, measured_at=at, values={"guest_state": state})
    samples = (
        (own,) if state == "removed" else (own, msgspec.structs.replace(inside, provenance=Provenance.SLICE_GUEST))
    )
    guest = Machine(name=vm[0], kind=MachineKind.GUEST, system_uuid=vm, hypervisor=host)
    return MachineReport(machine=guest, samples=samples)


async def post_guests(site: Site, seq: int, host: Machine, slots: int, *reports: MachineReport) -> None:
    """Post a host whose GPUs are bound to vfio, and its guests. The sender's name is that of the host."""
    at = reports[0].samples[0].measured_at if reports else to_ns(dt.datetime(2026, 3, 1, 20, tzinfo=dt.UTC))
    on_bus = tuple(
        msgspec.structs.replace(
            gpu_sample(View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=f"0000:0{slot}:00.0"), at),
            reader=PCI_READER,
            values={"gpu_pci_driver": "vfio-pci"},
        )
        for slot in range(1, slots + 1)
    )
    of_host = make_batch(seq, at, samples=on_bus, machine=host, sender=host.name, epoch=host.machine_id or "")
    await site.post(encode(msgspec.structs.replace(of_host, reports=(*of_host.reports, *reports))))


VM_A, VM_B = "a77c546c-c5a2-4093-bc1b-8051983e7a61", "b77c546c-c5a2-4093-bc1b-8051983e7a61"
FIRST, SECOND = (Machine(name=name, machine_id=name[-1] * 32) for name in ("node-a", "node-b"))


async def put_vm(site: Site, name: str, tenant: str, vm: str, **more: object) -> None:
    since = {"valid_from": "2026-03-01T00:00:00Z", **more}
    target = {"cluster": "local", "vm_uuid": vm}
    document = {"kind": "gpu_slice", "target": target, "tenant": tenant, **since}
    assert (await site.request(f"/v1/allocations/{name}", "PUT", document))[0] == 201


async def test_gpu_of_a_guest_is_not_that_of_its_next_guest_before(site: Site) -> None:
    """GPU-1 is in the first virtual machine until 12:00, and in the second one, instead of GPU-2, from 18:00 on."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_guests(site, 1, FIRST, 2, guest_report(6, VM_A, 1, "node-a"), guest_report(6, VM_B, 2, "node-a"))
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    await put_vm(site, "b", "u", VM_B)
    assert await hours(site) == {"a": (12.0, 12.0), "b": (24.0, 24.0)}
    await post_guests(site, 2, FIRST, 2, guest_report(13, VM_A, 1, "node-a", "removed"))
    await post_guests(site, 3, FIRST, 2, guest_report(18, VM_B, 1, "node-a"))
    assert await hours(site) == {"a": (12.0, 12.0), "b": (24.0, 24.0)}


@pytest.mark.parametrize("host", [msgspec.structs.replace(FIRST, name="renamed"), SECOND], ids=["renamed", "other"])
async def test_usage_of_a_guest_survives_a_change_of_its_host(site: Site, host: Machine) -> None:
    """The host is renamed, or the virtual machine migrates, to another GPU."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    gpu = 2 if host is SECOND else 1
    await post_guests(site, 1, FIRST, 1, guest_report(6, VM_A, 1, "node-a"))
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    await post_guests(site, 2, host, 1, guest_report(18, VM_A, gpu, host.name))
    assert (await hours(site))["a"] == (12.0, 12.0)


async def test_name_of_a_host_does_not_pass_its_former_guests_on(site: Site) -> None:
    """Node-b is reinstalled as node-a, whose virtual machine had a GPU that the first node-a could not read."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_guests(site, 1, FIRST, 1, guest_report(6, VM_A, 1, "node-a"))
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    await post_guests(site, 1, msgspec.structs.replace(SECOND, name="node-a"), 1)
    machines = (await site.request("/v1/machines"))[1]["items"]
    (id_,) = [one["id"] for one in machines if one["machine"].get("machine_id") == SECOND.machine_id]
    since = {"valid_from": "2026-03-01T00:00:00Z"}
    assert (await site.request("/v1/allocations/b", "PUT", spec(id_, **since, tenant="u")))[0] == 201
    assert await hours(site) == {"a": (12.0, 12.0), "b": (24.0, 24.0)}


async def post_instance(
    site: Site,
    seq: int,
    hour: int,
    vm: str | Absent | None,
    number: int = 0,
    *,
    kind: str = "uuid",
    is_read: bool = False,
) -> None:
    """Post a GPU with a vGPU instance of a virtual machine, or with none, at an hour of a day.

    The host gives an id of this kind, or the reason why it has none. If the virtual machine `is_read`, it reports the
    vGPU, too.
    """
    at = to_ns(dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC))
    uuid = f"{number}77c546c-c5a2-4093-bc1b-8051983e7a61"
    view = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=uuid, parent="gpu/GPU-1")
    of_gpu = gpu_sample(gpu_view(1), at)
    if vm is None:
        samples: tuple[Sample, ...] = (of_gpu,)
    else:
        ids = {"vgpu_vm_id": vm, "vgpu_vm_id_kind": vm if isinstance(vm, Absent) else kind}
        samples = (of_gpu, gpu_sample(view, at, gpu_utilization_ratio=0.5, **ids))
    sent = make_batch(seq, at, samples=samples)
    inside = [guest_report(hour, vm, f"GPU-{uuid}", "node-a")] if isinstance(vm, str) and is_read else []
    await site.post(encode(msgspec.structs.replace(sent, reports=(*sent.reports, *inside))))


async def test_vgpu_of_a_stopped_virtual_machine_stays_in_its_past(site: Site) -> None:
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, VM_A)
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    assert await hours(site) == {"a": (12.0, 12.0)}
    await post_instance(site, 2, 13, None)
    assert await hours(site) == {"a": (12.0, 12.0)}


LISTED = ("077c546c-c5a2-4093-bc1b-8051983e7a61", "177c546c-c5a2-4093-bc1b-8051983e7a61")
LOST, UNSUPPORTED = Absent(Reason.GPU_LOST), Absent(Reason.NOT_SUPPORTED)


@pytest.mark.parametrize(("first", "then", "kind"), [
    *(("7", then, "domain_id") for then in (None, LOST, "8")),
    ("7", VM_B, "uuid"),
    (UNSUPPORTED, None, ""),
])  # fmt: skip
async def test_listed_vgpu_without_vm_uuid_stays_in_the_past(
    site: Site, first: str | Absent, then: str | Absent | None, kind: str
) -> None:
    """The instance ends, its GPU is lost, or another virtual machine has it."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, first, kind="domain_id")
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z", devices=LISTED[:1])
    assert await hours(site) == {"a": (12.0, 12.0)}
    await post_instance(site, 2, 13, then, kind=kind)
    assert await hours(site) == {"a": (12.0, 12.0)}


@pytest.mark.parametrize(("kind", "vms"), [("uuid", (VM_A, VM_A)), ("domain_id", ("7", "8"))])
async def test_listed_vgpu_of_a_restarted_virtual_machine_counts_once(
    site: Site, kind: str, vms: tuple[str, str]
) -> None:
    """The other one of the two listed vGPUs is missing at any time."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, vms[0], kind=kind)
    await put_vm(site, "a", "t", VM_A, devices=LISTED)
    await post_instance(site, 2, 13, vms[1], number=1, kind=kind)
    assert await hours(site) == {"a": (48.0, 24.0)}


async def test_vgpu_without_vm_uuid_that_is_not_listed_does_not_count(site: Site) -> None:
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, "7", kind="domain_id")
    await put_vm(site, "a", "t", VM_A, devices=LISTED[:1])
    await post_instance(site, 2, 13, "8", number=1, kind="domain_id")
    assert await hours(site) == {"a": (24.0, 24.0)}


async def test_listed_vgpu_of_another_virtual_machine_does_not_count(site: Site) -> None:
    """The hypervisor gives UUIDs of virtual machines from 6:00 to 18:00 only."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, VM_B)
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z", devices=LISTED[:1])
    before = await hours(site)
    await post_instance(site, 2, 18, "7", kind="domain_id")
    assert await hours(site) == before
    assert before["a"][1] == 0


async def test_vgpu_is_not_that_of_its_next_virtual_machine_before(site: Site) -> None:
    """The instance has the same id in two virtual machines: in the first until 12:00, in the second one from 18:00."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, VM_A)
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    await put_vm(site, "b", "u", VM_B)
    await post_instance(site, 2, 18, VM_B)
    assert await hours(site) == {"a": (12.0, 12.0), "b": (6.0, 6.0)}


async def test_vgpu_of_a_restarted_virtual_machine_counts_once(site: Site) -> None:
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, VM_A)
    await put_vm(site, "a", "t", VM_A)
    await post_instance(site, 2, 13, VM_A, number=1)
    assert await hours(site) == {"a": (24.0, 24.0)}


@pytest.mark.parametrize("vm", [VM_A, VM_B])
async def test_vgpu_that_is_used_again_leaves_the_past(site: Site, vm: str) -> None:
    """The first virtual machine has another instance from 13:00 on. Its first one is reported again at 18:00."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, VM_A)
    await put_vm(site, "a", "t", VM_A)
    await post_instance(site, 2, 13, VM_A, number=1)
    assert await hours(site) == {"a": (24.0, 24.0)}
    await post_instance(site, 3, 18, vm)
    assert await hours(site) == {"a": (24.0, 24.0)}


async def test_guest_that_is_read_later_leaves_the_past_of_its_vgpus(site: Site) -> None:
    """The virtual machine has another instance from 10:00 on, and is read from 13:00 on."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, VM_A)
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    await post_instance(site, 2, 10, VM_A, number=1)
    assert await hours(site) == {"a": (12.0, 12.0)}
    await post_instance(site, 3, 13, VM_A, number=1, is_read=True)
    assert await hours(site) == {"a": (12.0, 12.0)}


async def test_guest_has_a_vgpu_from_its_own_time_on(site: Site) -> None:
    """The instance has the same id in two virtual machines. Only the second one is read."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    await post_instance(site, 1, 6, VM_A)
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    await put_vm(site, "b", "u", VM_B)
    await post_instance(site, 2, 18, VM_B, is_read=True)
    assert await hours(site) == {"a": (12.0, 12.0), "b": (6.0, 6.0)}


async def test_first_vgpu_that_a_host_reports_leaves_the_past_of_its_guest(site: Site) -> None:
    """The guest has another vGPU from 10:00 on. Its host reports vGPUs from 13:00 on."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]
    first, second = (f"GPU-{number}77c546c-c5a2-4093-bc1b-8051983e7a61" for number in (0, 1))
    await post_guests(site, 1, FIRST, 0, guest_report(6, VM_A, first, "node-a"))
    await put_vm(site, "a", "t", VM_A, valid_to="2026-03-01T12:00:00Z")
    await post_guests(site, 2, FIRST, 0, guest_report(10, VM_A, second, "node-a"))
    assert await hours(site) == {"a": (12.0, 12.0)}
    await post_instance(site, 1, 13, VM_A, number=1, is_read=True)
    assert await hours(site) == {"a": (12.0, 12.0)}


@pytest.mark.parametrize("after", [(), (2,)], ids=["removed", "replaced"])
async def test_removed_mig_device_stays_in_the_past(site: Site, after: tuple[int, ...]) -> None:
    """A GPU is divided again after the end of an allocation of its MIG device."""
    site.store.device_usage = known_throughout  # type: ignore[method-assign]

    async def post(seq: int, hour: int, *parts: int) -> None:
        at = to_ns(dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC))
        gpu = gpu_view(1)
        of_gpu = gpu_sample(gpu, at, gpu_mig_devices_max=7, gpu_power_watts=1.0)
        of_parts = [
            gpu_sample(
                View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{n}", parent=gpu.key),
                at,
                mig_compute_slices=1,
                gpu_memory_used_bytes=1,
            )
            for n in parts
        ]
        await site.post(body(seq, at, samples=(of_gpu, *of_parts)))

    await post(1, 6, 1)
    since = {"valid_from": "2026-03-01T00:00:00Z", "valid_to": "2026-03-01T07:00:00Z"}
    await site.request("/v1/allocations/a", "PUT", spec("node-a", tenant="t", devices=["MIG-1"], **since))
    assert await hours(site) == {"a": (1.0, 1.0)}
    await post(2, 13, *after)
    assert await hours(site) == {"a": (1.0, 1.0)}
