"""Allocation claims: a machine belongs to one tenant, and conflicting claims show no data."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.batches import NODE, body
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
