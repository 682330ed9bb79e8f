"""Allocation claims: a machine belongs to one tenant, and conflicting claims show no data."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import NODE, body, gpu_sample
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, now, running_site

VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def put_allocation(
    site: Site, name: str, tenant: str | None, machine: str = "node-a", **more: object
) -> tuple[int, Any]:
    spec: dict[str, object] = {"kind": "bare_metal", "target": {"cluster": "local", "machine": machine}, **more}
    if tenant:
        spec["tenant"] = tenant
    return await site.request(f"/v1/allocations/{name}", "PUT", spec)


async def machine_id(site: Site) -> str:
    await site.post(body(1, now()))
    (machine,) = (await site.request("/v1/machines"))[1]["items"]
    return str(machine["id"])


@pytest.mark.parametrize("known", [False, True], ids=["machine never seen", "known machine"])
async def test_machine_of_a_tenant_is_refused_to_another(site: Site, known: bool) -> None:
    if known:
        await machine_id(site)
    assert (await put_allocation(site, "a", "acme"))[0] == 201
    status, problem = await put_allocation(site, "b", "other")
    assert (status, problem["error"]) == (409, "conflict")
    assert "node-a" in problem["detail"]
    assert "'a'" in problem["detail"]
    assert (await site.request("/v1/allocations/b"))[0] == 404
    assert (await put_allocation(site, "c", "acme"))[0] == 201  # the same tenant
    assert (await put_allocation(site, "d", None))[0] == 201  # no tenant: not shown to any
    await site.request("/v1/allocations/a", "DELETE")
    await site.request("/v1/allocations/c", "DELETE")
    assert (await put_allocation(site, "b", "other"))[0] == 201


async def test_machine_id_and_name_are_the_same_claim(site: Site) -> None:
    id_ = await machine_id(site)
    assert (await put_allocation(site, "a", "acme"))[0] == 201
    assert (await put_allocation(site, "b", "other", machine=id_))[0] == 409


async def test_separate_periods_or_devices_do_not_conflict(site: Site) -> None:
    ends, begins = "2031-01-01T00:00:00Z", "2031-01-01T00:00:00Z"
    assert (await put_allocation(site, "a", "acme", valid_to=ends))[0] == 201
    assert (await put_allocation(site, "b", "other", valid_from=begins))[0] == 201
    assert (await put_allocation(site, "a", "acme", valid_to="2031-01-01T00:00:01Z"))[0] == 409
    assert (await put_allocation(site, "e", "acme", machine="node-e", devices=["GPU-1", "GPU-2"]))[0] == 201
    assert (await put_allocation(site, "f", "other", machine="node-e", devices=["GPU-3"]))[0] == 201
    assert (await put_allocation(site, "g", "third", machine="node-e", devices=["GPU-3"]))[0] == 409


async def test_claims_survive_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await put_allocation(site, "a", "acme")
    async with running_site(tmp_path) as site:
        assert (await put_allocation(site, "b", "other"))[0] == 409


async def test_later_claim_of_a_renamed_machine_shows_nothing(site: Site) -> None:
    id_ = await machine_id(site)
    assert (await put_allocation(site, "a", "acme", machine=id_))[0] == 201
    assert (await put_allocation(site, "b", "other", machine="renamed"))[0] == 201
    assert (await site.request("/v1/allocations/a/metrics"))[1]["source"] == "host_local_probe"
    await site.post(body(2, now(), machine=msgspec.structs.replace(NODE, name="renamed")))
    for query in ("metrics", "series?metric=gpu_power_watts&step=1s"):
        answer = (await site.request(f"/v1/allocations/b/{query}"))[1]
        assert (answer["source"], answer["reason"]) == ("unavailable", "ambiguous_target")
        assert "(with a)" in answer["detail"]
        assert answer.get("devices", answer.get("series")) == []
    assert (await site.request("/v1/allocations/a/metrics"))[1]["source"] == "host_local_probe"
    await site.request("/v1/allocations/a", "DELETE")
    assert (await site.request("/v1/allocations/b/metrics"))[1]["source"] == "host_local_probe"


async def test_device_claimed_by_uuid_and_pci_address_is_ambiguous(site: Site) -> None:
    """Both are stored before the machine reports, so only its first report shows that they are one GPU."""
    for name, tenant, device in (
        ("a", "acme", "GPU-0"),
        ("b", "other", "0000:00:00.0"),
        ("c", "third", "0000:01:00.0"),
    ):
        assert (await put_allocation(site, name, tenant, devices=[device]))[0] == 201
    await machine_id(site)
    reasons = [(await site.request(f"/v1/allocations/{name}/metrics"))[1]["reason"] for name in "abc"]
    assert reasons == [None, "ambiguous_target", None]


GPU, SIBLING, MIG = (f"{kind}-{number}{VM[1:]}" for kind, number in (("GPU", 1), ("GPU", 2), ("MIG", 1)))
MIG_DEVICES: dict[str, dict[str, Any]] = {
    name: {"devices": devices}
    for name, devices in {
        "machine": None,
        "gpu": [GPU],
        "address": ["0000:01:00.0"],
        "mig": [MIG],
        "sibling": [SIBLING],
        "other mig": [MIG.replace("MIG-1", "MIG-2")],
    }.items()
}


def mig_body(seq: int) -> bytes:
    """Return a batch with a GPU of two MIG devices, and another GPU."""
    at = now()
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=GPU, pci_address="0000:01:00.0")
    other = View(kind=ViewKind.GPU, side=Side.HOST, uuid=SIBLING, pci_address="0000:02:00.0")
    migs = [
        View(kind=ViewKind.MIG, side=Side.HOST, uuid=MIG.replace("MIG-1", f"MIG-{number}"), parent=gpu.key)
        for number in (1, 2)
    ]
    return body(seq, at, samples=tuple(gpu_sample(view, at) for view in (gpu, other, *migs)))


@pytest.mark.parametrize(
    ("first", "second", "conflicts"),
    [
        ("machine", "mig", True),
        ("gpu", "mig", True),
        ("mig", "gpu", True),
        ("mig", "address", True),
        ("mig", "mig", True),
        ("mig", "sibling", False),
        ("mig", "other mig", False),
    ],
)
async def test_mig_device_conflicts_with_its_gpu(site: Site, first: str, second: str, conflicts: bool) -> None:
    await site.post(mig_body(1))
    assert (await put_allocation(site, "a", "acme", **MIG_DEVICES[first]))[0] == 201
    status, problem = await put_allocation(site, "b", "other", **MIG_DEVICES[second])
    assert (status, problem.get("error")) == ((409, "conflict") if conflicts else (201, None))


async def test_mig_device_of_an_unknown_machine_is_not_bound_beside_its_gpu(site: Site) -> None:
    for name, tenant, devices in (("a", "acme", "gpu"), ("b", "other", "mig"), ("c", "third", "sibling")):
        assert (await put_allocation(site, name, tenant, **MIG_DEVICES[devices]))[0] == 201
    await site.post(mig_body(1))
    reasons = [(await site.request(f"/v1/allocations/{name}/metrics"))[1]["reason"] for name in "abc"]
    assert reasons == [None, "ambiguous_target", None]


async def test_new_mig_device_of_anothers_gpu_is_ambiguous_for_both(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.post(body(1, now()))
        for name, tenant, devices in (("a", "acme", "gpu"), ("b", "other", "mig"), ("c", "third", "sibling")):
            assert (await put_allocation(site, name, tenant, **MIG_DEVICES[devices]))[0] == 201
        await site.post(mig_body(2))
    async with running_site(tmp_path, site.store) as site:  # devices are bound at the start, and every minute

        async def bound() -> bool:
            return (await site.request("/v1/allocations/a/metrics"))[1]["reason"] is not None

        await wait_until_async(bound, what="the GPU of the MIG device to be bound")
        for query in ("metrics", "series?metric=gpu_power_watts&step=1s"):
            reasons = [(await site.request(f"/v1/allocations/{name}/{query}"))[1]["reason"] for name in "abc"]
            assert reasons == ["ambiguous_target", "ambiguous_target", None]


async def test_mig_name_with_the_uuid_of_its_gpu_conflicts_on_an_unknown_machine(site: Site) -> None:
    assert (await put_allocation(site, "a", "acme", devices=[f"MIG-{GPU}/1/0"]))[0] == 201
    assert (await put_allocation(site, "b", "other", devices=[SIBLING]))[0] == 201
    assert (await put_allocation(site, "c", "third", devices=[GPU]))[0] == 409


@pytest.mark.parametrize(
    ("kind", "field", "value", "normalised"),
    [
        ("gpu_slice", "vm_uuid", VM.upper(), VM),
        ("kubevirt_vmi", "vm_uuid", f"{{{VM}}}", VM),
        ("kubernetes_pod", "pod_uid", VM.upper(), VM),
        ("kubernetes_pod", "pod_uid", "0123456789ABCDEF" * 2, "0123456789abcdef" * 2),
        ("slurm_job", "job_id", "A7", "A7"),
    ],
)
async def test_target_ids_are_normalised(site: Site, kind: str, field: str, value: str, normalised: str) -> None:
    spec = {"kind": kind, "target": {"cluster": "local", field: value}}
    status, document = await site.request("/v1/allocations/a", "PUT", spec)
    assert (status, document["spec"]["target"][field]) == (201, normalised)
    spec["target"] = {"cluster": "local", field: normalised}
    assert (await site.request("/v1/allocations/a", "PUT", spec))[1]["generation"] == 1


@pytest.mark.parametrize(("kind", "field"), [("gpu_slice", "vm_uuid"), ("kubernetes_pod", "pod_uid")])
async def test_invalid_uuid_is_refused_with_its_field(site: Site, kind: str, field: str) -> None:
    spec = {"kind": kind, "target": {"cluster": "local", field: "web-1"}}
    status, problem = await site.request("/v1/allocations/a", "PUT", spec)
    assert (status, problem["field"]) == (400, f"target.{field}")


async def test_device_ids_are_normalised(site: Site) -> None:
    value = [f"gpu-{VM.upper()}", f"GPU-{VM}", "00000000:1B:00.0", f"mig-{VM}", "MIG-GPU-old-style/1/0"]
    _, document = await put_allocation(site, "a", None, devices=value)
    assert document["spec"]["devices"] == [f"GPU-{VM}", "0000:1b:00.0", f"MIG-{VM}", "MIG-GPU-old-style/1/0"]


async def test_virtual_machine_belongs_to_one_tenant(site: Site) -> None:
    def vm(tenant: str, uuid: str = VM, **more: object) -> dict[str, object]:
        return {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": uuid}, "tenant": tenant, **more}

    async def put_spec(name: str, spec: dict[str, object]) -> tuple[int, Any]:
        return await site.request(f"/v1/allocations/{name}", "PUT", spec)

    assert (await put_spec("a", vm("acme", devices=["U-1"])))[0] == 201
    for spec in (vm("other", devices=["U-2"]), vm("other", VM.upper()), {**vm("other"), "kind": "kubevirt_vmi"}):
        status, problem = await put_spec("b", spec)
        assert (status, problem["error"]) == (409, "conflict")
        assert VM in problem["detail"]
    assert (await put_spec("c", vm("acme")))[0] == 201
    assert (await put_spec("d", vm("other", VM.replace("c", "d"))))[0] == 201
    for name in "ac":
        await site.request(f"/v1/allocations/{name}", "DELETE")
    assert (await put_spec("b", vm("other")))[0] == 201
