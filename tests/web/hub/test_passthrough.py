"""Passed-through GPUs: vfio devices of a host matched with the GPUs of its guests."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.fleet.attribution.passthrough import add_guest_views
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import PCI_READER, Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachineReport
from tests.fakes.batches import gpu_sample, gpu_view, host_sample, make_batch
from tests.web.hub.site import Site, now, running_site

VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def vfio(slot: int, at: int) -> Sample:
    view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=f"0000:{slot:02x}:00.0")
    sample = gpu_sample(view, at, gpu_power_watts=Absent(Reason.BOUND_TO_VFIO))
    return msgspec.structs.replace(sample, reader=PCI_READER)


def report(at: int, *uuids: int, hypervisor: str = "node-a") -> MachineReport:
    """Return the report of a guest with GPUs."""
    guest = Machine(name="ml/train-0", kind=MachineKind.GUEST, system_uuid=VM, hypervisor=hypervisor)
    inside = [
        msgspec.structs.replace(
            gpu_sample(gpu_view(number, side=Side.GUEST), at, gpu_power_watts=77.0), provenance=Provenance.SLICE_GUEST
        )
        for number in uuids
    ]
    values = {"guest_state": "ok", "guest_gpus": len(uuids)}
    own = Sample(view=None, reader="guests", lane=Lane.FAST, measured_at=at, values=values)  # type: ignore[arg-type]
    return MachineReport(machine=guest, samples=(*inside, own))


async def post(site: Site, seq: int, at: int, samples: tuple[Sample, ...], *guests: MachineReport) -> None:
    host = make_batch(seq, at, samples=(host_sample(at), *samples))
    await site.post(encode(msgspec.structs.replace(host, reports=(*host.reports, *guests))))


async def allocation_answer(site: Site, *devices: str) -> dict[str, Any]:
    spec: dict[str, object] = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}}
    name = "-".join(["node", *(device_id.replace(":", "") for device_id in devices)])
    await site.request(f"/v1/allocations/{name}", "PUT", {**spec, **({"devices": devices} if devices else {})})
    _, answer = await site.request(f"/v1/allocations/{name}/metrics")
    found: dict[str, Any] = answer
    return found


async def test_gpu_passed_to_a_guest_belongs_to_the_guest(site: Site) -> None:
    at = now()
    await post(site, 1, at - 2 * NANOS, (gpu_sample(gpu_view(1), at - 2 * NANOS),))
    await post(site, 2, at, (vfio(1, at),), report(at, 1))
    (guest,) = [
        one for one in (await site.request("/v1/machines"))[1]["items"] if one["machine"].get("kind") == "guest"
    ]
    for listed in ((), ("GPU-1",), ("0000:01:00.0",)):
        answer = await allocation_answer(site, *listed)
        (device,) = answer["devices"]
        passthrough = device["passthrough"]
        assert (passthrough["known"], passthrough["views"]) == (True, [f"local/{guest['id']}/gpu/GPU-1"])
        assert passthrough["detail"]
        status, gpu = await site.request(f"/v1/gpus/{passthrough['views'][0]}")
        assert (status, gpu["device"]["readings"]["gpu_power_watts"]["value"]) == (200, 77.0)
        assert gpu["device"]["passthrough"]["known"] is True
        (outside,) = gpu["device"]["passthrough"]["views"]  # the same GPU on its host
        _, host = await site.request(f"/v1/gpus/{outside.replace(':', '%3A')}")
        assert host["device"]["side"] == "pci_only"
        assert host["device"]["passthrough"]["views"] == passthrough["views"]
    bare = msgspec.convert(answer, AllocationAnswer)
    (shown,) = add_guest_views(bare, {device["id"]: passthrough["views"]}, name=False).devices  # as shown to a tenant
    assert shown.passthrough is not None
    assert (shown.passthrough.known, shown.passthrough.views) == (True, ())


async def test_gpu_never_read_by_the_host_is_marked_as_unknown(site: Site) -> None:
    at = now()
    await post(site, 1, at, (vfio(1, at), vfio(2, at)), report(at, 7))
    answer = await allocation_answer(site)
    assert [one["passthrough"]["known"] for one in answer["devices"]] == [False, False]
    assert "both are the same GPU" in answer["devices"][0]["passthrough"]["detail"]
    assert answer["detail"] == ""
    _, gpu = await site.request("/v1/gpus/node-a%2F0000%3A01%3A00.0")
    assert gpu["device"]["passthrough"]["known"] is False
    _, gpu = await site.request("/v1/gpus/GPU-7")
    assert "passthrough" not in gpu["device"]
    answer = await allocation_answer(site, "0000:01:00.0", "0000:02:00.0", "GPU-7")
    by_name = {one["uuid"] or one["pci_address"]: one.get("passthrough") for one in answer["devices"]}
    assert by_name["GPU-7"]["known"] is True
    assert by_name["0000:01:00.0"]["known"] is False
    assert answer["detail"].startswith(
        "1 of the devices are listed by the UUID that a virtual machine shows, and may be"
    )


async def test_device_is_not_that_of_an_earlier_card_in_its_slot(site: Site) -> None:
    at = now()
    replaced = msgspec.structs.replace(gpu_view(1), uuid="GPU-5")
    await post(site, 1, at - 3 * NANOS, (gpu_sample(gpu_view(1), at - 3 * NANOS),))
    await post(site, 2, at - 2 * NANOS, (gpu_sample(replaced, at - 2 * NANOS),))
    await post(site, 3, at, (vfio(1, at),), report(at, 1))
    (device,) = (await allocation_answer(site, "0000:01:00.0"))["devices"]
    assert device["passthrough"]["known"] is False


async def test_device_is_not_that_of_a_card_on_another_machine(site: Site) -> None:
    """Its guest has ended since."""
    at, before = now(), now() - 900 * NANOS
    await post(site, 1, before, (gpu_sample(gpu_view(1), before),), report(before, 1))
    there = (gpu_sample(gpu_view(1), at),)
    await site.post(encode(make_batch(1, at, sender="node-b", machine=Machine(name="node-b"), samples=there)))
    await post(site, 2, at, (vfio(1, at),))
    (device,) = (await allocation_answer(site, "0000:01:00.0"))["devices"]
    assert (device["id"].split("/", 2)[2], device["passthrough"]["known"]) == ("gpu/pci/0000:01:00.0", False)
    _, host = await site.request(f"/v1/gpus/{device['id'].replace(':', '%3A')}")
    assert host["device"]["passthrough"]["known"] is False


async def test_unseen_device_is_not_assigned_to_a_guest(site: Site) -> None:
    at = now()
    await post(site, 1, at - 2 * NANOS, (gpu_sample(gpu_view(1), at - 2 * NANOS), gpu_sample(gpu_view(2), at)))
    await post(site, 2, at, (gpu_sample(gpu_view(2), at), vfio(1, at)), report(at, 1, hypervisor="node-b"))
    answer = await allocation_answer(site, "0000:01:00.0", "GPU-2", "GPU-gone")
    by_name = {one["uuid"] or one["pci_address"]: one.get("passthrough") for one in answer["devices"]}
    assert by_name["0000:01:00.0"]["known"] is False
    assert (by_name["GPU-2"], by_name["GPU-gone"]) == (None, None)
