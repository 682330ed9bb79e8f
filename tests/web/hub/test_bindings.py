"""Allocation bindings: what is past stays with its tenant, whatever happens to names later."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.access import Role
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.batches import gpu_sample, make_batch
from tests.security.guarded import guarded
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, now, running_site
from tests.web.hub.test_write import point, write

MINUTE = 60 * NANOS
SEVEN = Machine(name="gpu-7", machine_id="7" * 32, system_uuid="00000000-0000-4000-8000-000000000007")
NINE = Machine(name="gpu-9", machine_id="9" * 32, system_uuid="00000000-0000-4000-8000-000000000009")
POD = "11111111-0000-4000-8000-000000000000"


def gpu(uuid: str, address: str = "0000:01:00.0") -> View:
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=address)


class Fleet:
    """A hub, and nodes that post batches. Times are numbers of minutes, or of other units."""

    def __init__(self, site: Site, unit: int = MINUTE) -> None:
        self.site = site
        self.unit = unit
        self.start = now() - 30 * unit
        self._seq = 0

    async def report(self, machine: Machine, power: float, minute: int, *views: View, xid: str = "") -> None:
        """Post one sample per GPU, measured at a minute after the start, and an XID event of the first GPU."""
        listed = views or (gpu(f"GPU-{machine.machine_id}"),)
        await self.site.post(self.body(machine, minute, dict.fromkeys(listed, power), {listed[0]: xid} if xid else {}))

    def body(
        self,
        machine: Machine,
        minute: int,
        powers: dict[View, float],
        xids: dict[View, str],
        *,
        sender: str = "",
        ahead: float = 0.0,
        texts: Mapping[str, str] = {},
    ) -> bytes:
        """Return a batch with a power value of each GPU, and with XID events; the sender is the machine's own agent.

        `ahead` is the offset of the machine's clock, in units. `texts` are of the machine itself.
        """
        self._seq += 1
        at = self.start + minute * self.unit + int(ahead * self.unit)
        samples = tuple(
            gpu_sample(view, at, gpu_power_watts=power, gpu_pci_address=view.pci_address or "", gpu_name="H200")
            for view, power in powers.items()
        )
        if texts:
            own = Sample(view=None, reader="host", lane=Lane.STATIC, measured_at=at, values={**texts})
            samples = (*samples, own)
        events = tuple(
            Event(view=view, kind="xid", code=79, at=at, attributes={"text": text}) for view, text in xids.items()
        )
        report = MachineReport(machine=machine, samples=samples, events=events)
        sender = sender or machine.machine_id or ""
        batch = Batch(cluster="local", sender=sender, epoch=sender, seq=self._seq, sent_at=at, reports=(report,))
        return encode(batch)

    async def read(
        self,
        machine: Machine,
        minute: int,
        view: View,
        *,
        reader: str = "nvml",
        sender: Machine | None = None,
        **values: Any,
    ) -> None:
        """Post the sample of a GPU by a reader; a guest has a `sender`."""
        self._seq += 1
        at, sender_id = self.start + minute * self.unit, (sender or machine).machine_id or ""
        provenance = Provenance.HOST_LOCAL_PROBE if sender is None else Provenance.SLICE_GUEST
        sample = msgspec.structs.replace(gpu_sample(view, at, **values), reader=reader, provenance=provenance)
        report = MachineReport(machine=machine, samples=(sample,))
        batch = Batch(cluster="local", sender=sender_id, epoch=sender_id, seq=self._seq, sent_at=at, reports=(report,))
        await self.site.post(encode(batch))

    async def write_power(
        self, host: str, gpu: int, power: float, minute: int, *, is_stored: bool = True, **labels: str
    ) -> None:
        """Send a value of a GPU by remote write, as `write` does."""
        one = point("DCGM_FI_DEV_POWER_USAGE", gpu, power, 0, host)
        await self.write({**one.labels, **labels}, power, minute, is_stored=is_stored)

    async def write(self, labels: dict[str, str], value: float, minute: int, *, is_stored: bool = True) -> None:
        """Send a sample of a series, as `send` does."""
        at = (self.start + minute * self.unit) // 10**6 * 10**6
        await self.send([WritePoint(labels, value, at)], is_stored=is_stored)

    async def send(self, points: Sequence[WritePoint], *, is_stored: bool = True) -> None:
        """Send a request by remote write, and wait until the store has it, or at once if it drops it."""
        before = len(self.site.store.seqs)
        assert (await write(self.site.hub.url, encode_1(points)))[0] < 300
        if not is_stored:
            return

        async def stored() -> bool:
            return len(self.site.store.seqs) > before

        await wait_until_async(stored, what="the imported batch to be stored")

    async def put(self, name: str, tenant: str, machine: str, *, query: str = "", **spec: object) -> tuple[int, Any]:
        body: dict[str, object] = {"kind": "bare_metal", "target": {"cluster": "local", "machine": machine}}
        body |= {"tenant": tenant, **spec}
        return await self.site.request(f"/v1/allocations/{name}{query}", "PUT", body)

    async def powers(self, name: str) -> set[float]:
        """Return every stored power value that the allocation's series shows."""
        window = f"start={self.time(0)}&end={self.time(40)}&step=60s"
        answer = (await self.site.request(f"/v1/allocations/{name}/series?metric=gpu_power_watts&{window}"))[1]
        return {point["value"] for one in answer["series"] for point in one["points"] if point["value"] is not None}

    async def shown(self, name: str) -> dict[str, str | None]:
        """Return the view keys of the devices in an allocation's answer, with the reason why the power is absent."""
        devices = (await self.site.request(f"/v1/allocations/{name}/metrics"))[1]["devices"]
        return {one["id"].split("/", 2)[2]: one["readings"]["gpu_power_watts"].get("absent") for one in devices}

    async def messages(self, name: str) -> set[str]:
        events = (await self.site.request(f"/v1/events?allocation={name}&since={self.time(0)}"))[1]["events"]
        return {event["attributes"]["text"] for event in events}

    async def usage(self, name: str) -> dict[str, Any]:
        answer = (await self.site.request(f"/v1/usage?start={self.time(0)}&end={self.time(40)}&group_by=allocation"))[1]
        return next((row for row in answer["rows"] if row["group"]["allocation"] == name), {})

    async def dropped_rows(self) -> int:
        """Return the number of imported rows and holders from times with other names."""
        found = re.search(r"^gpufleet_hub_other_name_rows_total (\d+)$", await self.site.text("/metrics"), re.MULTILINE)
        assert found
        return int(found[1])

    def time(self, minute: int) -> str:
        return to_datetime(self.start + minute * self.unit).isoformat().replace("+00:00", "Z")

    async def id_of(self, machine: Machine) -> str:
        items = (await self.site.request("/v1/machines"))[1]["items"]
        (id_,) = [one["id"] for one in items if one["machine"].get("machine_id") == machine.machine_id]
        return str(id_)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with running_site(tmp_path) as site:
        yield Fleet(site)


async def swap_names(fleet: Fleet) -> None:
    """Let acme have gpu-7 and bravo gpu-9; then gpu-7 is retired, and gpu-9 is reinstalled as gpu-7."""
    for machine, power in ((SEVEN, 700.0), (NINE, 900.0)):
        await fleet.report(machine, power, 1, xid=f"of {machine.name}")
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    assert (await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(0), valid_to=fleet.time(10)))[0] == 201
    await fleet.site.request(f"/v1/machines/{await fleet.id_of(SEVEN)}", "DELETE")
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 990.0, 20, xid="after the reinstallation")


async def test_rename_moves_no_history_between_tenants(fleet: Fleet) -> None:
    await swap_names(fleet)
    assert await fleet.powers("a") == {700.0}
    assert await fleet.powers("b") == {900.0}
    assert await fleet.messages("a") == {"of gpu-7"}
    assert await fleet.messages("b") == {"of gpu-9"}
    events = (await fleet.site.request(f"/v1/events?allocation=b&since={fleet.time(0)}"))[1]["events"]
    assert [event["node"] for event in events] == ["gpu-9"]


async def test_device_under_two_names_is_refused(fleet: Fleet) -> None:
    """It would count as two devices."""
    await fleet.report(SEVEN, 700.0, 1, gpu("GPU-S"), gpu("GPU-T", "0000:02:00.0"))
    twice = await fleet.put("a", "acme", "gpu-7", devices=["GPU-S", "0000:01:00.0"], valid_from=fleet.time(0))
    assert twice[0] == 409
    assert all(name in twice[1]["detail"] for name in ("GPU-S", "0000:01:00.0"))
    once = await fleet.put("a", "acme", "gpu-7", devices=["GPU-S", "0000:02:00.0"], valid_from=fleet.time(0))
    assert once[0] == 201


async def test_backlog_under_a_former_name_renames_no_machine(fleet: Fleet) -> None:
    """gpu-7 became gpu-8 without a restart. bravo waits for another gpu-7 when the backlog of the former arrives."""
    await fleet.report(SEVEN, 700.0, 1)
    late = [fleet.body(SEVEN, minute, {gpu("GPU-S"): 700.0 + minute}, {}) for minute in (2, 3)]
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 800.0, 15)
    assert (await fleet.put("b", "bravo", "gpu-7", valid_from=fleet.time(16)))[0] == 201
    await fleet.site.post(*late)
    answer = (await fleet.site.request("/v1/allocations/b/metrics"))[1]
    assert (answer["reason"], answer["machine"]) == ("target_unknown", None)
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 801.0, 17)
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 900.0, 18)
    assert await fleet.powers("b") == {900.0}
    assert (await fleet.site.request("/v1/allocations/b"))[1]["bindings"] == [{"machine": await fleet.id_of(NINE)}]


@pytest.mark.parametrize("change", [{"name": "gpu-8"}, {"boot_id": "after"}])
async def test_wrong_clock_delays_no_rename_or_boot(fleet: Fleet, change: dict[str, str]) -> None:
    """The machine has the date of its firmware until its clock is synchronised, as after a power loss."""
    booted = msgspec.structs.replace(SEVEN, boot_id="before")
    await fleet.report(booted, 700.0, 1)
    changed = msgspec.structs.replace(booted, **change)
    for ahead in (-600_000, -600_000, 0):
        await fleet.site.post(fleet.body(changed, 20, {gpu("GPU-S"): 800.0}, {}, ahead=ahead))
        (machine,) = (await fleet.site.request("/v1/machines"))[1]["items"]
        assert (machine["machine"]["name"], machine["machine"].get("boot_id")) == (changed.name, changed.boot_id)


async def test_backlog_of_a_renamed_sender_renames_no_machine(fleet: Fleet) -> None:
    """The name of the agent is that of its machine. Its queue and its numbers continue."""
    booted = msgspec.structs.replace(SEVEN, boot_id="before")
    await fleet.site.post(encode(make_batch(1, fleet.start, machine=booted, sender="gpu-7")))
    renamed = msgspec.structs.replace(booted, name="gpu-8")
    for seq, machine in ((9, renamed), (3, booted), (2, booted)):
        at = fleet.start + seq * MINUTE
        await fleet.site.post(encode(make_batch(seq, at, machine=machine, sender=machine.name)))
    (known,) = (await fleet.site.request("/v1/machines"))[1]["items"]
    assert (known["machine"]["name"], known.get("conflict")) == ("gpu-8", None)


async def test_backlog_of_earlier_boots_is_of_the_same_machine(fleet: Fleet) -> None:
    """The machine booted twice during an outage of the hub. Its agent posts its newest batch first."""
    boots = [msgspec.structs.replace(SEVEN, boot_id=f"b{number}") for number in range(3)]
    await fleet.report(boots[0], 1.0, 1, gpu("GPU-S"))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    late = [fleet.body(boots[1], minute, {gpu("GPU-S"): float(minute)}, {}) for minute in (5, 6)]
    for minute, body in enumerate(late, start=25):
        await fleet.report(boots[2], float(minute), minute, gpu("GPU-S"))
        await fleet.site.post(body)
    await fleet.report(boots[2], 27.0, 27, gpu("GPU-S"))
    (machine,) = (await fleet.site.request("/v1/machines"))[1]["items"]
    assert (machine["machine"]["boot_id"], machine.get("conflict")) == ("b2", None)
    assert await fleet.powers("a") == {1.0, 5.0, 6.0, 25.0, 26.0, 27.0}


@pytest.mark.parametrize("imported_before", [True, False])
async def test_imported_series_follow_the_name_to_its_new_bearer(fleet: Fleet, imported_before: bool) -> None:
    """The exporter of a machine has the machine's name only, which was that of another tenant's machine before."""
    await fleet.report(SEVEN, 700.0, 1)
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    if imported_before:
        await fleet.write_power("gpu-7", 1, 701.0, 2)
    await fleet.site.request(f"/v1/machines/{await fleet.id_of(SEVEN)}", "DELETE")
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 990.0, 20)
    assert (await fleet.put("c", "charlie", "gpu-7", valid_from=fleet.time(15)))[0] == 201
    await fleet.write_power("gpu-7", 2, 991.0, 21)
    (imported,) = [
        one for one in (await fleet.site.request("/v1/gpus"))[1]["items"] if one["device"]["uuid"] == "GPU-2"
    ]
    assert imported["device"]["machine"] == await fleet.id_of(NINE)
    retired = (await fleet.site.request(f"/v1/machines/{await fleet.id_of(SEVEN)}"))[1]
    assert retired["last_seen"] < retired["retired_at"]


async def test_late_import_of_a_name_is_not_of_its_new_bearer(fleet: Fleet) -> None:
    """A Prometheus sends what it measured of acme's gpu-7 only after bravo's machine got this name."""
    await swap_names(fleet)
    before = await fleet.usage("b")
    await fleet.write_power("gpu-7", 1, 701.0, 5, is_stored=False)
    after = await fleet.usage("b")
    assert (after["held_gpu_hours"], after["unknown_gpu_hours"]) == (
        before["held_gpu_hours"],
        before["unknown_gpu_hours"],
    )
    items = (await fleet.site.request("/v1/gpus"))[1]["items"]
    assert "GPU-1" not in {one["device"]["uuid"] for one in items}
    assert await fleet.dropped_rows() == 1
    await fleet.write_power("gpu-7", 2, 991.0, 21)
    items = (await fleet.site.request("/v1/gpus"))[1]["items"]
    assert "GPU-2" in {one["device"]["uuid"] for one in items}


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("ahead", [0, -20, -600_000])
async def test_late_import_is_not_of_the_new_bearer_of_a_name(fleet: Fleet, is_new: bool, ahead: int) -> None:
    """Whatever the clock of the new bearer shows."""
    await fleet.report(SEVEN, 100.0, 1)
    if not is_new:
        await fleet.report(NINE, 199.0, 1)
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 101.0, 15)
    nine = msgspec.structs.replace(NINE, name="gpu-7")
    await fleet.site.post(fleet.body(nine, 16, {gpu("GPU-N"): 200.0}, {}, ahead=ahead))
    await fleet.put("b", "bravo", await fleet.id_of(NINE), valid_from=fleet.time(0))
    await fleet.write_power("gpu-7", 1, 701.0, 5, is_stored=False)
    assert await fleet.dropped_rows() == 1
    assert 701.0 not in await fleet.powers("b")


async def test_event_of_the_future_is_not_of_the_next_tenant(fleet: Fleet) -> None:
    """The clock of a machine is ahead by an hour."""
    await fleet.report(NINE, 900.0, 1)
    assert (await fleet.put("a", "acme", "gpu-9", valid_from=fleet.time(0), valid_to=fleet.time(60)))[0] == 201
    assert (await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(60)))[0] == 201
    view = gpu(f"GPU-{NINE.machine_id}")
    await fleet.site.post(fleet.body(NINE, 29, {view: 901.0}, {view: "of acme"}, ahead=60))
    window = f"since={fleet.time(0)}&until={fleet.time(120)}"
    assert (await fleet.site.request(f"/v1/events?{window}"))[1]["events"] == []
    assert "gpufleet_hub_future_rows_total 2\n" in await fleet.site.text("/metrics")


async def test_late_import_of_a_name_that_returned_to_its_bearer(fleet: Fleet) -> None:
    """Z has the name of A for some minutes, and is retired; A has it again when rows of these minutes arrive."""
    await fleet.report(SEVEN, 100.0, 1)
    await fleet.put("a", "acme", await fleet.id_of(SEVEN), valid_from=fleet.time(0))
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 101.0, 5)
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 200.0, 6)
    await fleet.site.request(f"/v1/machines/{await fleet.id_of(NINE)}", "DELETE")
    await fleet.report(SEVEN, 102.0, 21)
    await fleet.write_power("gpu-7", 0, 999.0, 15, is_stored=False)
    assert await fleet.dropped_rows() == 1
    assert await fleet.powers("a") == {100.0, 101.0, 102.0}
    await fleet.write_power("gpu-7", 0, 99.0, 3)  # of A itself
    assert await fleet.dropped_rows() == 1


@pytest.mark.parametrize("is_moved", [False, True])
async def test_late_import_of_a_holder_is_not_of_the_new_bearer(fleet: Fleet, is_moved: bool) -> None:
    """A Prometheus sends the pod of acme's gpu-7 only after another machine got this name, or the same GPU, too."""
    await swap_names(fleet)
    if is_moved:
        await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 991.0, 29, gpu("GPU-1"))
    spec = {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": POD}, "tenant": "acme"}
    assert (await fleet.site.request("/v1/allocations/p", "PUT", {**spec, "valid_from": fleet.time(0)}))[0] == 201
    labels = {"exported_pod": "train", "exported_namespace": "ml", "exported_pod_uid": POD}
    await fleet.write_power("gpu-7", 1, 701.0, 5, is_stored=False, **labels)
    assert await fleet.dropped_rows() == 2
    assert (await fleet.site.request("/v1/holders"))[1]["items"] == []
    answer = (await fleet.site.request("/v1/allocations/p/metrics"))[1]
    assert (answer["source"], answer["devices"]) == ("unavailable", [])


@pytest.mark.parametrize("end", [20, 40])
async def test_imported_past_survives_the_installation_of_an_agent(fleet: Fleet, end: int) -> None:
    await fleet.write_power("gpu-9", 0, 105.0, 5)
    await fleet.write_power("gpu-9", 0, 106.0, 6)
    await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(1), valid_to=fleet.time(end))
    assert await fleet.powers("b") == {105.0, 106.0}
    await fleet.report(NINE, 125.0, 25, gpu("GPU-0"))
    await fleet.write_power("gpu-9", 0, 999.0, 26)
    assert await fleet.powers("b") == ({105.0, 106.0} if end == 20 else {105.0, 106.0, 125.0})
    window = f"start={fleet.time(0)}&end={fleet.time(40)}&step=60s"
    answer = (await fleet.site.request(f"/v1/machines/gpu-9/series?metric=gpu_power_watts&{window}"))[1]
    values = {point["value"] for one in answer["series"] for point in one["points"]}
    assert values == {105.0, 106.0, 125.0, None}


async def test_past_of_an_agent_survives_its_end(fleet: Fleet) -> None:
    """The exporter is the source of the present, and of the time after the agent's last report."""
    await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(0))
    for minute in (2, 3):
        await fleet.report(NINE, 100.0 + minute, minute, gpu("GPU-0"))
    for minute in (3, 6, 29):
        await fleet.write_power("gpu-9", 0, 200.0 + minute, minute)
    assert await fleet.powers("b") == {102.0, 103.0, 206.0, 229.0}
    window = f"start={fleet.time(0)}&end={fleet.time(40)}&step=60s"
    for path in ("/v1/machines/gpu-9/series", "/v1/allocations/b/series"):
        answer = (await fleet.site.request(f"{path}?metric=gpu_power_watts&{window}"))[1]
        assert [one["source"] for one in answer["sources"]] == ["host_local_probe", "imported"]
        assert answer["source"] == "imported"


async def test_usage_of_an_ended_allocation_survives_a_rename(fleet: Fleet) -> None:
    for machine in (SEVEN, NINE):
        await fleet.report(machine, 700.0, 1)
    await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(0), valid_to=fleet.time(10))
    before = await fleet.usage("b")
    assert before["held_gpu_hours"] == pytest.approx(10 / 60)
    await fleet.site.request(f"/v1/machines/{await fleet.id_of(SEVEN)}", "DELETE")
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 990.0, 20)
    assert await fleet.usage("b") == before


async def test_usage_of_an_ended_allocation_lacks_a_gpu_added_later(tmp_path: Path) -> None:
    first, second = gpu("GPU-1"), gpu("GPU-2", "0000:02:00.0")
    async with running_site(tmp_path) as site:
        fleet = Fleet(site, 60 * MINUTE)
        await fleet.report(NINE, 700.0, 1, first)
        await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(0), valid_to=fleet.time(10))
        before = await fleet.usage("b")
        await fleet.report(NINE, 700.0, 20, first, second)
        assert before["gpus"] == 1
        assert await fleet.usage("b") == before


async def test_usage_of_an_ended_allocation_lacks_an_imported_gpu_added_later(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        fleet = Fleet(site, 60 * MINUTE)
        await fleet.write_power("gpu-9", 1, 700.0, 1, pci_bus_id="00000000:01:00.0")
        await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(0), valid_to=fleet.time(10))
        before = await fleet.usage("b")
        for number in (1, 2):
            await fleet.write_power("gpu-9", number, 700.0, 20, pci_bus_id=f"00000000:0{number}:00.0")
        assert before["gpus"] == 1
        assert await fleet.usage("b") == before


async def test_past_of_a_renamed_machine_cannot_be_allocated_again(fleet: Fleet) -> None:
    await swap_names(fleet)
    status, problem = await fleet.put("c", "charlie", "gpu-7", valid_from=fleet.time(2), valid_to=fleet.time(8))
    assert (status, problem["error"]) == (409, "conflict")
    assert (await fleet.put("c", "charlie", "gpu-7", valid_from=fleet.time(15)))[0] == 201
    assert await fleet.powers("c") == {990.0}


async def test_current_answer_follows_the_binding_and_not_the_name(fleet: Fleet) -> None:
    await swap_names(fleet)
    answer = (await fleet.site.request("/v1/allocations/a/metrics"))[1]
    assert answer["machine"] == await fleet.id_of(SEVEN)
    assert answer["allocation"]["bindings"] == [{"machine": await fleet.id_of(SEVEN)}]


async def test_tenant_of_an_ambiguous_name_learns_no_machine_ids(tmp_path: Path) -> None:
    async with guarded(tmp_path) as site:
        for seq, one in enumerate((SEVEN, msgspec.structs.replace(NINE, name="gpu-7")), start=1):
            sample = gpu_sample(gpu(f"GPU-{seq}"), now(), gpu_power_watts=1.0)
            batch = make_batch(seq, now(), sender=f"s{seq}", epoch=f"{seq}" * 32, machine=one, samples=(sample,))
            assert (await site.post(encode(batch), site.secrets[Role.SENDER])).status == 200
        admin, acme = site.secrets[Role.ADMIN], site.secrets[Role.TENANT]

        async def registered() -> bool:
            return len((await site.request("/v1/machines", admin)).document["items"]) == 2

        await wait_until_async(registered, what="two machines")
        spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "gpu-7"}, "tenant": "acme"}
        assert (await site.request("/v1/allocations/a", admin, "PUT", spec)).status == 201
        window = "start=2020-01-01T00:00:00Z&end=2030-01-01T00:00:00Z"
        for path in (
            "/v1/allocations/a/metrics",
            f"/v1/allocations/a/series?metric=gpu_power_watts&step=10d&{window}",
            "/v1/usage?start=2026-01-01T00:00:00Z&end=2028-01-01T00:00:00Z",
        ):
            seen, shown = [(await site.request(path, token)).body.decode() for token in (acme, admin)]
            ids = re.compile(r"m-[a-z2-7]{12}")
            assert ("ambiguous_target" in seen, len(set(ids.findall(shown))), ids.findall(seen)) == (True, 2, []), path


async def test_same_put_does_not_bind_again_but_rebind_does(fleet: Fleet) -> None:
    await swap_names(fleet)
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[1]["generation"] == 1
    status, allocation = await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), query="?rebind=true")
    assert (status, allocation["generation"]) == (200, 2)
    first, second = allocation["bindings"]
    assert (first["machine"], second["machine"]) == (await fleet.id_of(SEVEN), await fleet.id_of(NINE))
    assert first["until"] == second["since"]
    assert await fleet.powers("a") == {700.0}, "the past of the other machine stays with its tenant"
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 995.0, 31)
    assert await fleet.powers("a") == {700.0, 995.0}
    assert await fleet.messages("a") == {"of gpu-7"}


async def test_allocation_is_bound_once_its_machine_reports(fleet: Fleet) -> None:
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[1].get("bindings") is None
    answer = (await fleet.site.request("/v1/allocations/a/metrics"))[1]
    assert (answer["source"], answer["reason"]) == ("unavailable", "target_unknown")
    await fleet.report(SEVEN, 700.0, 1)
    assert await fleet.powers("a") == {700.0}
    assert (await fleet.site.request("/v1/allocations/a"))[1]["bindings"] == [{"machine": await fleet.id_of(SEVEN)}]


async def test_pending_allocation_never_takes_another_tenants_machine(fleet: Fleet) -> None:
    await fleet.report(SEVEN, 700.0, 1)
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    assert (await fleet.put("b", "bravo", "renamed", valid_from=fleet.time(0)))[0] == 201
    await fleet.report(msgspec.structs.replace(SEVEN, name="renamed"), 710.0, 2)
    assert await fleet.powers("a") == {700.0, 710.0}
    assert await fleet.powers("b") == set()
    answer = (await fleet.site.request("/v1/allocations/b/metrics"))[1]
    assert (answer["source"], answer["reason"]) == ("unavailable", "ambiguous_target")
    assert "(with a)" in answer["detail"]


@pytest.mark.parametrize("by_id", [False, True])
async def test_pending_allocation_has_its_machine_from_the_first_report(fleet: Fleet, by_id: bool) -> None:
    """bravo's allocation is put before the next round of binding."""
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    await fleet.report(SEVEN, 700.0, 1)
    target = await fleet.id_of(SEVEN) if by_id else "gpu-7"
    status, problem = await fleet.put("b", "bravo", target, valid_from=fleet.time(0))
    assert (status, problem["error"]) == (409, "conflict")
    assert await fleet.powers("a") == {700.0}


MIG = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-m", parent="gpu/GPU-x")
UNREAD = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:01:00.0")


@pytest.mark.parametrize(
    ("before", "own", "other"),
    [
        (gpu("GPU-y", "0000:02:00.0"), "0000:01:00.0", "0000:01:00.0"),
        (UNREAD, "0000:01:00.0", "GPU-x"),
        (gpu("GPU-x"), "MIG-m", "GPU-x"),
    ],
    ids=["unseen address", "unread slot", "unseen MIG device"],
)
async def test_pending_device_is_bound_before_another_put(fleet: Fleet, before: View, own: str, other: str) -> None:
    """bravo's allocation is put before the next round of binding."""
    await fleet.report(SEVEN, 1.0, 1, before)
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=[own]))[0] == 201
    await fleet.report(SEVEN, 2.0, 2, gpu("GPU-x"), MIG)
    status, problem = await fleet.put("b", "bravo", "gpu-7", valid_from=fleet.time(0), devices=[other])
    assert (status, problem["error"]) == (409, "conflict")
    assert (await fleet.site.request("/v1/allocations/a/metrics"))[1]["source"] == "host_local_probe"


async def test_pending_allocation_begins_after_another_tenants_time(fleet: Fleet) -> None:
    """bravo's time has ended; the newest values are still those of bravo's time."""
    await fleet.report(NINE, 900.0, 1)
    ended = {"valid_from": fleet.time(0), "valid_to": fleet.time(29)}
    assert (await fleet.put("b", "bravo", "gpu-9", **ended))[0] == 201
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    renamed = msgspec.structs.replace(NINE, name="gpu-7")
    await fleet.report(renamed, 990.0, 28)
    answer = (await fleet.site.request("/v1/allocations/a/metrics"))[1]
    assert answer["allocation"]["bindings"] == [{"machine": await fleet.id_of(NINE), "since": fleet.time(29)}]
    assert [one["readings"]["gpu_power_watts"].get("value") for one in answer["devices"]] == [None]
    await fleet.report(renamed, 991.0, 29)
    assert await fleet.powers("a") == {991.0}
    assert await fleet.powers("b") == {900.0, 990.0}


async def test_pending_allocation_does_not_precede_the_name_of_its_machine(fleet: Fleet) -> None:
    """The past of the machine can be that of another tenant's pods, jobs and virtual machines."""
    await fleet.report(SEVEN, 700.0, 1)
    assert (await fleet.put("a", "acme", "gpu-8", valid_from=fleet.time(0)))[0] == 201
    await fleet.report(SEVEN, 701.0, 4)
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 710.0, 9)
    assert await fleet.powers("a") == {710.0}
    bound = {"machine": await fleet.id_of(SEVEN), "since": fleet.time(9)}
    assert (await fleet.site.request("/v1/allocations/a"))[1]["bindings"] == [bound]


@pytest.mark.parametrize("change", [{}, {"team": "ml"}, {"query": "?rebind=true"}])
async def test_repeated_put_of_a_pending_allocation_adds_no_past(fleet: Fleet, change: dict[str, Any]) -> None:
    """It arrives before the next round of binding."""
    await fleet.report(SEVEN, 700.0, 1)
    assert (await fleet.put("a", "acme", "gpu-8", valid_from=fleet.time(0)))[0] == 201
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 710.0, 9)
    assert (await fleet.put("a", "acme", "gpu-8", valid_from=fleet.time(0), **change))[0] == 200
    assert await fleet.powers("a") == {710.0}


@pytest.mark.parametrize("has_earlier", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
async def test_successor_of_a_listed_name_does_not_precede_the_name(
    fleet: Fleet, has_earlier: bool, by_id: bool
) -> None:
    """Kubernetes lists the new name of gpu-7 before its agent reports. Another tenant had a part of it until then."""
    fleet.unit = 1
    await fleet.report(SEVEN, 700.0, MINUTE)
    if has_earlier:
        await fleet.report(NINE, 900.0, MINUTE)
        assert (await fleet.put("a", "acme", "gpu-9", valid_from=fleet.time(0)))[0] == 201
    labels = {"node": "gpu-8", "resource": "nvidia_com_gpu", "unit": "integer", "instance": "metrics:8080"}
    await fleet.write({"__name__": "kube_node_status_capacity", **labels}, 8.0, 3 * MINUTE)
    target = await fleet.id_of(Machine(name="gpu-8")) if by_id else "gpu-8"
    assert (await fleet.put("a", "acme", target, valid_from=fleet.time(0)))[0] == (200 if has_earlier else 201)
    await fleet.report(SEVEN, 701.0, now() - fleet.start)
    named = now() - fleet.start
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 710.0, named)
    await fleet.site.request("/v1/allocations/a/metrics")
    *_, bound = (await fleet.site.request("/v1/allocations/a"))[1]["bindings"]
    assert bound == {"machine": await fleet.id_of(SEVEN), "since": fleet.time(named)}


async def test_pending_allocation_does_not_precede_another_tenants_time(fleet: Fleet) -> None:
    await fleet.report(NINE, 900.0, 1)
    assert (await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(1000)))[0] == 201
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 990.0, 28)
    answer = (await fleet.site.request("/v1/allocations/a/metrics"))[1]
    assert (answer["source"], answer["reason"], answer["devices"]) == ("unavailable", "ambiguous_target", [])


@pytest.mark.parametrize("put_first", [True, False])
async def test_allocation_follows_a_machine_whose_new_name_was_imported_first(fleet: Fleet, put_first: bool) -> None:
    """After the restart of gpu-7 as gpu-8, its exporter is read before its agent reports."""
    await fleet.report(SEVEN, 700.0, 1, gpu("GPU-0"))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), valid_to=fleet.time(5)))[0] == 201
    if put_first:
        assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(10)))[0] == 201
    await fleet.write_power("gpu-8", 0, 800.0, 20)
    if not put_first:
        assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(10)))[0] == 201
    assert await fleet.powers("b") == {800.0}
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 801.0, 31, gpu("GPU-0"))
    assert (await fleet.put("c", "charlie", "gpu-8", valid_from=fleet.time(10)))[0] == 409
    assert await fleet.powers("b") == {800.0, 801.0}
    first, second = (await fleet.site.request("/v1/allocations/b"))[1]["bindings"]
    assert (first["until"], second["machine"]) == (second["since"], await fleet.id_of(SEVEN))
    assert await fleet.powers("a") == {700.0}


async def test_gpus_stay_with_their_tenants_when_their_machine_is_known(fleet: Fleet) -> None:
    """gpu-8, which only its exporter reports, proves to be gpu-7. Its GPUs had changed slots before."""
    first, second = "0000:01:00.0", "0000:02:00.0"
    gpus = {0: first, 1: second}
    await fleet.report(SEVEN, 700.0, 1, *(gpu(f"GPU-{number}", address) for number, address in gpus.items()))
    for number, address in gpus.items():
        await fleet.write_power("gpu-8", number, 10.0 + number, 12, pci_bus_id=f"0000{address}")
    for name, address in ("acme", first), ("bravo", second):
        assert (await fleet.put(name, name, "gpu-8", valid_from=fleet.time(10), devices=[address]))[0] == 201
    for number, address in (0, second), (1, first):
        await fleet.write_power("gpu-8", number, 20.0 + number, 15, pci_bus_id=f"0000{address}")
    swapped = {gpu("GPU-0", second): 100.0, gpu("GPU-1", first): 101.0}
    await fleet.site.post(fleet.body(msgspec.structs.replace(SEVEN, name="gpu-8"), 31, swapped, {}))
    assert await fleet.powers("acme") == {10.0, 20.0, 100.0}
    assert await fleet.powers("bravo") == {11.0, 21.0, 101.0}


@pytest.mark.parametrize("end", [{}, {"valid_to": 25}])
async def test_time_of_an_import_cannot_be_allocated_again(fleet: Fleet, end: dict[str, int]) -> None:
    """bravo has gpu-8, which only its exporter reports until it proves to be gpu-7. Time of acme there is over."""
    own = {"valid_from": fleet.time(0), "valid_to": fleet.time(5)}
    await fleet.report(SEVEN, 700.0, 1, gpu("GPU-0"))
    assert (await fleet.put("a", "acme", "gpu-7", **own))[0] == 201
    await fleet.write_power("gpu-8", 0, 800.0, 12)
    until = {name: fleet.time(minute) for name, minute in end.items()}
    assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(10), **until))[0] == 201
    past = {"valid_from": fleet.time(12), "valid_to": fleet.time(20)}
    assert (await fleet.put("c", "charlie", "gpu-8", **past))[0] == 409
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 801.0, 31, gpu("GPU-0"))
    assert (await fleet.put("c", "charlie", "gpu-8", **past))[0] == 409
    assert (await fleet.put("a", "acme", "gpu-7", team="ml", **own))[0] == 200


async def test_pending_allocation_begins_after_the_time_of_an_import(fleet: Fleet) -> None:
    """bravo had the machine while only its exporter reported it. It then gets the name of charlie's target."""
    await fleet.report(SEVEN, 700.0, 1, gpu("GPU-0"))
    await fleet.write_power("gpu-8", 0, 800.0, 12)
    ended = {"valid_from": fleet.time(10), "valid_to": fleet.time(25)}
    assert (await fleet.put("b", "bravo", "gpu-8", **ended))[0] == 201
    assert (await fleet.put("c", "charlie", "gpu-9", valid_from=fleet.time(12)))[0] == 201
    for name in "gpu-8", "gpu-9":
        await fleet.report(msgspec.structs.replace(SEVEN, name=name), 801.0, 29, gpu("GPU-0"))
    assert await fleet.powers("c") == {801.0}
    (binding,) = (await fleet.site.request("/v1/allocations/c"))[1]["bindings"]
    assert binding == {"machine": await fleet.id_of(SEVEN), "since": fleet.time(29)}


async def test_tenant_keeps_a_machine_that_another_one_names(fleet: Fleet) -> None:
    """bravo's gpu-8 proves to be acme's gpu-7. acme's allocation can still be changed."""
    await fleet.report(SEVEN, 700.0, 1, gpu("GPU-0"))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    await fleet.write_power("gpu-8", 0, 800.0, 12)
    assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(10)))[0] == 201
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 801.0, 31, gpu("GPU-0"))
    assert (await fleet.put("a", "acme", "gpu-7", team="ml", valid_from=fleet.time(0)))[0] == 200
    assert (await fleet.put("c", "charlie", "gpu-8", valid_from=fleet.time(20)))[0] == 409


@pytest.mark.parametrize("is_apart", [False, True])
async def test_end_of_the_series_of_a_former_name_is_no_report_under_it(fleet: Fleet, *, is_apart: bool) -> None:
    """Prometheus marks the series of gpu-7 as ended when its exporter reports as gpu-8, before the agent does."""
    await fleet.report(SEVEN, 700.0, 1, gpu("GPU-0"))
    await fleet.write_power("gpu-7", 0, 701.0, 2)
    at = (fleet.start + 12 * fleet.unit) // 10**6 * 10**6
    powers = {"gpu-8": 812.0, "gpu-7": None}
    points = [point("DCGM_FI_DEV_POWER_USAGE", 0, power, at, host) for host, power in powers.items()]
    for request in [[one] for one in points] if is_apart else [points]:
        await fleet.send(request)
    assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(10)))[0] == 201
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 826.0, 26, gpu("GPU-0"), xid="bravo's job crashed")
    assert (await fleet.put("c", "charlie", await fleet.id_of(SEVEN), valid_from=fleet.time(11)))[0] == 409


async def test_end_of_series_registers_no_machine(fleet: Fleet) -> None:
    """The agent of gpu-7 reports as gpu-8 before its exporter does. Another machine is installed as gpu-7 then."""
    await fleet.report(SEVEN, 700.0, 1, gpu("GPU-0"))
    await fleet.write_power("gpu-7", 0, 701.0, 2)
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 810.0, 10, gpu("GPU-0"))
    at = (fleet.start + 12 * fleet.unit) // 10**6 * 10**6
    powers = {"gpu-8": 812.0, "gpu-7": None}
    await fleet.send([point("DCGM_FI_DEV_POWER_USAGE", 0, power, at, host) for host, power in powers.items()])
    assert [one["machine"]["name"] for one in (await fleet.site.request("/v1/machines"))[1]["items"]] == ["gpu-8"]
    assert await fleet.dropped_rows() == 1


async def test_gpu_of_another_id_of_a_machine_displaces_none(tmp_path: Path) -> None:
    """gpu-7 was off. gpu-8 had another GPU at the same address until gpu-7 got its name."""
    async with running_site(tmp_path) as site:
        fleet = Fleet(site, 10 * MINUTE)
        await fleet.report(SEVEN, 700.0, 0, gpu("GPU-0"))
        for name, tenant, machine, since in (("a", "acme", "gpu-7", 0), ("b", "bravo", "gpu-8", 3)):
            if name == "b":
                for at in range(6, 18, 2):
                    await fleet.write_power("gpu-8", 1, 800.0, at, pci_bus_id="00000000:01:00.0")
            span = {"valid_from": fleet.time(since), "valid_to": fleet.time(24)}
            assert (await fleet.put(name, tenant, machine, **span))[0] == 201
        before = await fleet.usage("a"), await fleet.usage("b")
        assert [one["held_gpu_hours"] for one in before] == [pytest.approx(4.0), pytest.approx(3.5)]
        await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 900.0, 30, gpu("GPU-0"))
        assert (await fleet.usage("a"), await fleet.usage("b")) == before


async def test_usage_of_a_renamed_machine_has_time_of_its_import(tmp_path: Path) -> None:
    """The tenant keeps the machine. Its exporter reports the new name for 40 minutes until its agent reports."""
    async with running_site(tmp_path) as site:
        fleet = Fleet(site, 2 * MINUTE)
        await fleet.report(SEVEN, 700.0, 1, gpu("GPU-0"))
        assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
        await fleet.write_power("gpu-8", 0, 800.0, 5, pci_bus_id="00000000:01:00.0")
        await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 801.0, 25, gpu("GPU-0"))
        found = await fleet.usage("a")
        assert (found["gpus"], found["held_gpu_hours"]) == (1, pytest.approx(1.0, abs=0.1))


async def test_usage_does_not_change_when_a_machine_proves_to_be_another_one(tmp_path: Path) -> None:
    """GPU-0 left gpu-8, which only its exporter reported then, for charlie's gpu-9. gpu-8 proves to be gpu-7."""
    async with running_site(tmp_path) as site:
        fleet = Fleet(site, 10 * MINUTE)
        first, second, moved = gpu("GPU-0"), gpu("GPU-1", "0000:02:00.0"), gpu("GPU-0", "0000:0a:00.0")
        await fleet.report(SEVEN, 700.0, -10, first, second)
        await fleet.report(NINE, 900.0, -10, gpu("GPU-9"))
        for at in range(0, 24, 2):
            if at < 10:
                await fleet.write_power("gpu-8", 0, 10.0, at, pci_bus_id="00000000:01:00.0")
            await fleet.write_power("gpu-8", 1, 20.0, at, pci_bus_id="00000000:02:00.0")
            await fleet.report(NINE, 900.0, at, gpu("GPU-9"), *([moved] if at >= 10 else []))
        assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(0), valid_to=fleet.time(24)))[0] == 201
        assert (await fleet.put("c", "charlie", "gpu-9", valid_from=fleet.time(0), valid_to=fleet.time(24)))[0] == 201
        before = await fleet.usage("b"), await fleet.usage("c")
        assert before[0]["held_gpu_hours"] == pytest.approx((24 + 10) / 6)
        await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 100.0, 30, second)
        assert (await fleet.usage("b"), await fleet.usage("c")) == before


@pytest.mark.parametrize("is_free", [True, False])
async def test_allocation_follows_a_machine_that_kubernetes_listed_first(fleet: Fleet, is_free: bool) -> None:
    """Kubernetes lists the new name of gpu-7 before its agent reports. Nothing is measured until then."""
    await fleet.report(SEVEN, 700.0, 1)
    ended = {"valid_to": fleet.time(5)} if is_free else {}
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), **ended))[0] == 201
    labels = {"node": "gpu-8", "resource": "nvidia_com_gpu", "unit": "integer", "instance": "metrics:8080"}
    await fleet.write({"__name__": "kube_node_status_capacity", **labels}, 8.0, 29)
    assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(3)))[0] == 201
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-8"), 800.0, 30)
    assert await fleet.powers("a") == ({700.0} if is_free else {700.0, 800.0})
    assert await fleet.powers("b") == ({800.0} if is_free else set())
    (binding,) = (await fleet.site.request("/v1/allocations/b"))[1]["bindings"]
    own = {"machine": await fleet.id_of(SEVEN), "since": fleet.time(30)}
    assert (binding == own) is is_free


async def test_name_imported_first_is_of_its_next_machine(fleet: Fleet) -> None:
    """gpu-7 was gpu-8 for a time. Then gpu-9 restarts as gpu-8. Both times, the exporter is read before the agent."""
    await fleet.report(SEVEN, 700.0, 1)
    await fleet.write_power("gpu-8", 0, 800.0, 2)
    for machine, name in (SEVEN, "gpu-8"), (SEVEN, "gpu-7"), (NINE, "gpu-9"):
        await fleet.report(msgspec.structs.replace(machine, name=name), 801.0, 31)
    await fleet.write_power("gpu-8", 0, 900.0, 32)
    assert (await fleet.put("b", "bravo", "gpu-8", valid_from=fleet.time(29)))[0] == 201
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-8"), 901.0, 33)
    assert (await fleet.put("c", "charlie", await fleet.id_of(NINE), valid_from=fleet.time(32)))[0] == 409
    assert 901.0 in await fleet.powers("b")


async def test_search_for_a_new_machine_hides_no_past(fleet: Fleet) -> None:
    """The target is changed to a machine that another tenant has: what was bound before stays visible."""
    await fleet.report(SEVEN, 700.0, 1)
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
    assert (await fleet.put("a", "acme", "later", valid_from=fleet.time(0)))[0] == 200
    await fleet.report(NINE, 900.0, 2)
    assert (await fleet.put("b", "bravo", "gpu-9", valid_from=fleet.time(0)))[0] == 201
    await fleet.report(msgspec.structs.replace(NINE, name="later"), 910.0, 3)
    window = f"start={fleet.time(0)}&end={fleet.time(20)}&step=60s"
    past = (await fleet.site.request(f"/v1/allocations/a/series?metric=gpu_power_watts&{window}"))[1]
    assert [point["value"] for one in past["series"] for point in one["points"] if point["value"]] == [700.0]


async def test_listed_pci_address_means_the_gpu_that_was_there(fleet: Fleet) -> None:
    first, second = "0000:01:00.0", "0000:02:00.0"
    await fleet.site.post(fleet.body(SEVEN, 1, {gpu("GPU-x", first): 100.0, gpu("GPU-y", second): 200.0}, {}))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=[first]))[0] == 201
    assert (await fleet.put("b", "bravo", "gpu-7", valid_from=fleet.time(0), devices=["GPU-y"]))[0] == 201
    await fleet.site.post(fleet.body(SEVEN, 3, {gpu("GPU-y", first): 201.0, gpu("GPU-x", second): 101.0}, {}))
    assert await fleet.powers("a") == {100.0, 101.0}
    assert await fleet.powers("b") == {200.0, 201.0}
    devices = (await fleet.site.request("/v1/allocations/a/metrics"))[1]["devices"]
    assert [device["uuid"] for device in devices] == ["GPU-x"]


@pytest.mark.parametrize("is_off", [False, True])
async def test_listed_address_is_not_that_of_a_gpu_on_another_machine(fleet: Fleet, is_off: bool) -> None:
    """No driver reads the next card yet, or the machine is off since."""
    address = "0000:01:00.0"
    await fleet.report(SEVEN, 100.0, 1, gpu("GPU-x", address))
    await fleet.report(NINE, 101.0, 12, gpu("GPU-x", "0000:09:00.0"))
    if not is_off:
        await fleet.site.post(fleet.body(SEVEN, 13, {UNREAD: 0.0}, {}))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(14), devices=[address]))[0] == 201
    *_, bound = (await fleet.site.request("/v1/allocations/a"))[1]["bindings"]
    assert bound["devices"] == ({} if is_off else {address: [f"gpu/pci/{address}"]})
    await fleet.report(SEVEN, 200.0, 20, gpu("GPU-y", address))
    assert (await fleet.put("c", "charlie", "gpu-7", devices=["GPU-y"], valid_from=fleet.time(20)))[0] == 409
    assert await fleet.powers("a") == {200.0}


async def test_listed_address_is_that_of_a_gpu_that_another_machine_reports_too(fleet: Fleet) -> None:
    """An exporter writes under another name of the node."""
    address = "0000:01:00.0"
    await fleet.report(SEVEN, 100.0, 1, gpu("GPU-x", address))
    await fleet.report(NINE, 101.0, 2, gpu("GPU-x", address))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=[address]))[0] == 201
    *_, bound = (await fleet.site.request("/v1/allocations/a"))[1]["bindings"]
    assert bound["devices"] == {address: ["gpu/GPU-x"]}


@pytest.mark.parametrize("unread", [Reason.GPU_LOST, Reason.BOUND_TO_VFIO])
@pytest.mark.parametrize("listed", ["GPU-x", "0000:01:00.0"])
async def test_next_card_in_a_slot_is_not_shown_for_a_gpu_on_another_machine(
    fleet: Fleet, unread: Reason, listed: str
) -> None:
    """Another GPU was in the slot before. A second reader has not reported since the GPU left."""
    is_lost = unread is Reason.GPU_LOST
    slot = msgspec.structs.replace(UNREAD, side=Side.HOST) if is_lost else UNREAD
    values: dict[str, Any] = {"gpu_power_watts": Absent(unread), **({"gpu_state": "lost"} if is_lost else {})}
    await fleet.report(SEVEN, 90.0, 0, gpu("GPU-w"))
    for reader in ("nvml", "nvidia_smi"):
        await fleet.read(SEVEN, 1, gpu("GPU-x"), reader=reader, gpu_power_watts=100.0)
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=[listed]))[0] == 201
    await fleet.report(NINE, 101.0, 12, gpu("GPU-x", "0000:09:00.0"))
    await fleet.read(SEVEN, 20, slot, **values)
    assert (await fleet.put("c", "charlie", "gpu-7", valid_from=fleet.time(20), devices=["0000:01:00.0"]))[0] == 201
    assert await fleet.shown("a") == {"gpu/GPU-x": Reason.NOT_REPORTED}
    assert await fleet.shown("c") == {slot.key: unread}
    assert (await fleet.put("w", "bravo", "gpu-7", valid_from=fleet.time(0), devices=["GPU-w"]))[0] == 201
    assert await fleet.shown("w") == {"gpu/GPU-w": Reason.NOT_REPORTED}


@pytest.mark.parametrize(("hypervisor", "state"), [("gpu-9", Reason.NOT_REPORTED), ("gpu-7", Reason.BOUND_TO_VFIO)])
async def test_gpu_in_a_guest_has_left_the_other_machines(fleet: Fleet, hypervisor: str, state: Reason) -> None:
    """The GPU is not read by the driver of the guest's host."""
    await fleet.report(SEVEN, 100.0, 1, gpu("GPU-x"))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=["GPU-x"]))[0] == 201
    await fleet.report(NINE, 101.0, 2, gpu("GPU-z"))
    host = next(one for one in (SEVEN, NINE) if one.name == hypervisor)
    guest = Machine(name="vm", kind=MachineKind.GUEST, system_uuid="a" * 32, hypervisor=hypervisor)
    inside = msgspec.structs.replace(gpu("GPU-x", "0000:00:05.0"), side=Side.GUEST)
    await fleet.read(guest, 12, inside, sender=host, gpu_power_watts=101.0)
    await fleet.read(SEVEN, 20, UNREAD, gpu_power_watts=Absent(Reason.BOUND_TO_VFIO))
    assert list((await fleet.shown("a")).values()) == [state]


async def test_vacant_address_means_the_gpu_since_it_came_there(fleet: Fleet) -> None:
    """The GPU was another tenant's in another slot. It is bound before the next allocation is stored."""
    first, second = "0000:01:00.0", "0000:02:00.0"
    await fleet.report(SEVEN, 100.0, 1, gpu("GPU-x", first), xid="of bravo")
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=[second]))[0] == 201
    ended = {"valid_from": fleet.time(0), "valid_to": fleet.time(10)}
    assert (await fleet.put("b", "bravo", "gpu-7", devices=["GPU-x"], **ended))[0] == 201
    await fleet.report(SEVEN, 200.0, 20, gpu("GPU-x", second))
    assert (await fleet.put("c", "charlie", "gpu-7", devices=["GPU-x"], valid_from=fleet.time(20)))[0] == 409
    assert (await fleet.powers("a"), await fleet.powers("b")) == ({200.0}, {100.0})
    assert (await fleet.messages("a"), await fleet.messages("b")) == (set(), {"of bravo"})
    *_, bound = (await fleet.site.request("/v1/allocations/a"))[1]["bindings"]
    assert (bound["since"], bound["devices"]) == (fleet.time(20), {second: ["gpu/GPU-x"]})


@pytest.mark.parametrize("is_known", [True, False])
async def test_waiting_allocation_has_a_gpu_since_it_came_to_its_address(fleet: Fleet, is_known: bool) -> None:
    """The batches of an agent arrive after an outage. The machine is new then, or had another name before."""
    first, second = "0000:01:00.0", "0000:02:00.0"
    if is_known:
        await fleet.report(SEVEN, 100.0, 1, gpu("GPU-x", first))
    assert (await fleet.put("a", "acme", "gpu-8", valid_from=fleet.time(0), devices=[second, "GPU-y"]))[0] == 201
    machine = msgspec.structs.replace(SEVEN, name="gpu-8")
    view, other = gpu("GPU-x", first), gpu("GPU-y", "0000:03:00.0")
    late = fleet.body(machine, 5, {view: 101.0, other: 1.0}, {view: "of bravo"})
    await fleet.site.post(late, fleet.body(machine, 20, {gpu("GPU-x", second): 200.0, other: 2.0}, {}))
    assert (await fleet.powers("a"), await fleet.messages("a")) == ({1.0, 2.0, 200.0}, set())


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_order_of_listed_addresses_does_not_count(fleet: Fleet, is_reversed: bool) -> None:
    """One GPU was always there; the other one came from another address."""
    first, second, third = (f"0000:0{number}:00.0" for number in (1, 2, 3))
    listed = [second, first] if is_reversed else [first, second]
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=listed))[0] == 201
    await fleet.site.post(
        fleet.body(SEVEN, 1, {gpu("GPU-x", third): 101.0, gpu("GPU-y", first): 1.0}, {}),
        fleet.body(SEVEN, 20, {gpu("GPU-x", second): 120.0, gpu("GPU-y", first): 20.0}, {}),
    )
    assert await fleet.powers("a") == {1.0, 20.0, 120.0}


async def test_gpu_at_a_vacant_address_is_bound_since_it_came_and_not_since_a_pause(tmp_path: Path) -> None:
    first, second = gpu("GPU-x"), gpu("GPU-x", "0000:02:00.0")
    async with running_site(tmp_path) as site:
        fleet = Fleet(site, 10 * MINUTE)
        await fleet.report(SEVEN, 1.0, 1, first)
        assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=["0000:02:00.0"]))[0] == 201
        for minute in (5, 20):
            await fleet.site.post(fleet.body(SEVEN, minute, {second: float(minute)}, {}))
        assert (await fleet.put("c", "charlie", "gpu-7", valid_from=fleet.time(6), devices=["GPU-x"]))[0] == 409
        assert await fleet.powers("a") == {5.0, 20.0}


async def test_gpu_at_a_vacant_address_is_bound_once_its_slot_is_known(fleet: Fleet) -> None:
    """The newest batch of an agent has the values of the GPU only. Its texts follow in an earlier one."""
    first, second = "0000:01:00.0", "0000:02:00.0"
    await fleet.report(SEVEN, 100.0, 1, gpu("GPU-x", first))
    assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0), devices=[second]))[0] == 201
    texts = fleet.body(SEVEN, 20, {gpu("GPU-x", second): 200.0}, {})
    live = gpu_sample(gpu("GPU-x", second), fleet.start + 21 * MINUTE, gpu_power_watts=201.0)
    await fleet.site.post(encode(make_batch(99, live.measured_at, machine=SEVEN, samples=(live,), sender="s")))
    other: dict[str, Any] = {"valid_from": fleet.time(0), "devices": ["GPU-z"]}
    assert (await fleet.put("c", "charlie", "gpu-7", **other))[0] == 201
    assert await fleet.powers("a") == set()
    await fleet.site.post(texts)
    assert (await fleet.put("c", "charlie", "gpu-7", **other))[0] == 200
    assert await fleet.powers("a") == {200.0, 201.0}


@pytest.mark.parametrize("was_read", [True, False])
async def test_listed_slot_ends_when_the_gpu_of_another_tenant_is_in_it(fleet: Fleet, was_read: bool) -> None:
    """The allocation had the slot before a driver read its GPU; an event that names only the slot is bravo's."""
    slot = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:01:00.0")
    await fleet.site.post(fleet.body(SEVEN, 1, {slot: 50.0}, {slot: "of acme"}))
    await fleet.put("a", "acme", "gpu-7", devices=["0000:01:00.0"], valid_from=fleet.time(0))
    powers = {50.0, 100.0} if was_read else {50.0}
    if was_read:
        await fleet.report(SEVEN, 100.0, 3, gpu("GPU-a"))
        assert await fleet.powers("a") == powers
    assert (await fleet.put("b", "bravo", "gpu-7", devices=["GPU-b"], valid_from=fleet.time(5)))[0] == 201
    await fleet.report(SEVEN, 200.0, 10, gpu("GPU-b"))
    await fleet.site.post(fleet.body(SEVEN, 15, {slot: 60.0}, {slot: "of bravo"}))
    assert await fleet.messages("a") == {"of acme"}
    assert await fleet.powers("a") == powers
    assert await fleet.powers("b") == {200.0}


async def test_ended_unbound_allocation_knows_no_later_name(fleet: Fleet) -> None:
    await fleet.report(SEVEN, 1.0, 1)
    await fleet.put("b", "bravo", "gpu-7", valid_from=fleet.time(0))
    await fleet.put("a", "acme", "gpu-77", valid_from=fleet.time(0), valid_to=fleet.time(10))
    window = f"start={fleet.time(0)}&end={fleet.time(10)}"

    async def reasons() -> object:
        series = (await fleet.site.request(f"/v1/allocations/a/series?metric=gpu_power_watts&step=60s&{window}"))[1]
        unresolved = (await fleet.site.request(f"/v1/usage?group_by=allocation&{window}"))[1]["unresolved"]
        return series["reason"], series["detail"], [one for one in unresolved if one["allocation"] == "a"]

    before = await reasons()
    await fleet.report(msgspec.structs.replace(SEVEN, name="gpu-77"), 2.0, 29)
    assert await reasons() == before


async def test_repeated_put_binds_no_ended_allocation(fleet: Fleet) -> None:
    """No machine had the name in the time of the allocation. It is bound on request."""
    ended = {"valid_from": fleet.time(0), "valid_to": fleet.time(10)}
    await fleet.report(NINE, 900.0, 1)
    assert (await fleet.put("a", "acme", "gpu-7", **ended))[0] == 201
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 990.0, 28)
    assert (await fleet.put("a", "acme", "gpu-7", team="ml", **ended))[0] == 200
    assert await fleet.powers("a") == set()
    assert await fleet.usage("a") == {}
    assert (await fleet.put("a", "acme", "gpu-7", query="?rebind=true", **ended))[0] == 200
    assert await fleet.powers("a") == {900.0}


async def test_one_gpu_by_uuid_and_by_address_is_one_claim(fleet: Fleet) -> None:
    await fleet.report(SEVEN, 100.0, 1, gpu("GPU-x"))
    assert (await fleet.put("a", "acme", "gpu-7", devices=["GPU-x"]))[0] == 201
    assert (await fleet.put("b", "bravo", "gpu-7", devices=["0000:01:00.0"]))[0] == 409
    assert (await fleet.put("c", "charlie", "gpu-7", devices=["0000:02:00.0"]))[0] == 201


async def test_bindings_survive_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        fleet = Fleet(site)
        await swap_names(fleet)
    async with running_site(tmp_path, site.store) as site:
        fleet.site = site
        assert (await fleet.site.request("/v1/allocations/a"))[1]["bindings"][0]["machine"] == await fleet.id_of(SEVEN)
        assert (await fleet.put("c", "charlie", "gpu-7", valid_from=fleet.time(2), valid_to=fleet.time(8)))[0] == 409


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": "0" * 32}},
        {"target": {"cluster": "north", "machine": "gpu-7"}},
    ],
    ids=["kind", "cluster"],
)
async def test_kind_and_cluster_of_an_allocation_do_not_change(tmp_path: Path, change: dict[str, Any]) -> None:
    """Its bindings are those of a machine of its cluster; nothing else may answer from them."""
    async with running_site(tmp_path, clusters=("local", "north")) as site:
        fleet = Fleet(site)
        await fleet.report(SEVEN, 700.0, 1)
        assert (await fleet.put("a", "acme", "gpu-7", valid_from=fleet.time(0)))[0] == 201
        status, problem = await fleet.put("a", "acme", "gpu-7", **change)
        assert (status, problem["error"]) == (409, "conflict")
        assert await fleet.powers("a") == {700.0}
        assert (await fleet.put("b", "bravo", "gpu-7", valid_from=fleet.time(0)))[0] == 409


@pytest.mark.parametrize(("begins", "status"), [(0, 409), (60, 200)])
@pytest.mark.parametrize(
    ("kind", "field"), [("kubernetes_pod", "pod_uid"), ("slurm_job", "job_id"), ("gpu_slice", "vm_uuid")]
)
async def test_pod_job_or_vm_does_not_change_once_the_allocation_has_begun(
    fleet: Fleet, kind: str, field: str, begins: int, status: int
) -> None:
    """Its past would become that of the other one."""
    spec = {"kind": kind, "valid_from": fleet.time(begins)}
    assert (await fleet.put("a", "acme", "", **spec, target={"cluster": "local", field: POD}))[0] == 201
    assert (await fleet.put("a", "acme", "", **spec, target={"cluster": "local", field: POD, "machine": None}))[
        0
    ] == 200
    assert (await fleet.put("a", "acme", "", **spec, target={"cluster": "local", field: "2" + POD[1:]}))[0] == status


async def test_name_of_a_retired_machine_waits_for_its_successor(fleet: Fleet) -> None:
    await fleet.report(SEVEN, 700.0, 1)
    await fleet.site.request(f"/v1/machines/{await fleet.id_of(SEVEN)}", "DELETE")
    assert "bindings" not in (await fleet.put("a", "acme", "gpu-7"))[1]
    past = {"valid_from": fleet.time(0), "valid_to": fleet.time(10)}
    assert (await fleet.put("b", "bravo", "gpu-7", **past))[1]["bindings"][0]["machine"] == await fleet.id_of(SEVEN)
    await fleet.report(msgspec.structs.replace(NINE, name="gpu-7"), 900.0, 20)
    answer = (await fleet.site.request("/v1/allocations/a/metrics"))[1]
    assert answer["machine"] == await fleet.id_of(NINE)
