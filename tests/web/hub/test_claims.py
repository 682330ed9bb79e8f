"""No two tenants have one machine, and if it turns out that they do, neither is shown it."""

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


async def put(site: Site, name: str, tenant: str | None, machine: str = "node-a", **more: object) -> tuple[int, Any]:
    spec: dict[str, object] = {"kind": "bare_metal", "target": {"cluster": "local", "machine": machine}, **more}
    if tenant:
        spec["tenant"] = tenant
    return await site.ask(f"/v1/allocations/{name}", "PUT", spec)


async def machine_id(site: Site) -> str:
    await site.post(body(1, now()))
    (machine,) = (await site.ask("/v1/machines"))[1]["items"]
    return str(machine["id"])


@pytest.mark.parametrize("known", [False, True], ids=["a machine not heard of yet", "a known machine"])
async def test_a_machine_that_is_a_tenant_s_is_no_other_s(site: Site, known: bool) -> None:
    if known:
        await machine_id(site)
    assert (await put(site, "a", "acme"))[0] == 201
    status, words = await put(site, "b", "other")
    assert (status, words["error"]) == (409, "conflict")
    assert "node-a" in words["detail"]
    assert "'a'" in words["detail"]
    assert (await site.ask("/v1/allocations/b"))[0] == 404
    assert (await put(site, "c", "acme"))[0] == 201  # the same tenant's
    assert (await put(site, "d", None))[0] == 201  # nobody's: no tenant is shown it
    await site.ask("/v1/allocations/a", "DELETE")
    await site.ask("/v1/allocations/c", "DELETE")
    assert (await put(site, "b", "other"))[0] == 201


async def test_by_its_id_it_is_the_same_machine(site: Site) -> None:
    id_ = await machine_id(site)
    assert (await put(site, "a", "acme"))[0] == 201
    assert (await put(site, "b", "other", machine=id_))[0] == 409


async def test_one_after_the_other_and_devices_apart_are_no_conflict(site: Site) -> None:
    ends, begins = "2031-01-01T00:00:00Z", "2031-01-01T00:00:00Z"
    assert (await put(site, "a", "acme", valid_to=ends))[0] == 201
    assert (await put(site, "b", "other", valid_from=begins))[0] == 201
    assert (await put(site, "a", "acme", valid_to="2031-01-01T00:00:01Z"))[0] == 409
    assert (await put(site, "e", "acme", machine="node-e", devices=["GPU-1", "GPU-2"]))[0] == 201
    assert (await put(site, "f", "other", machine="node-e", devices=["GPU-3"]))[0] == 201
    assert (await put(site, "g", "third", machine="node-e", devices=["GPU-3"]))[0] == 409


async def test_it_is_remembered_over_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await put(site, "a", "acme")
    async with running_site(tmp_path) as site:
        assert (await put(site, "b", "other"))[0] == 409


async def test_conflicting_targets_of_one_machine_show_nothing(site: Site) -> None:
    id_ = await machine_id(site)
    assert (await put(site, "a", "acme", machine=id_))[0] == 201
    assert (await put(site, "b", "other", machine="renamed"))[0] == 201
    assert (await site.ask("/v1/allocations/a/metrics"))[1]["source"] == "host_local_probe"
    await site.post(body(2, now(), machine=msgspec.structs.replace(NODE, name="renamed")))
    for name, other in (("a", "b"), ("b", "a")):
        for question in ("metrics", "series?metric=gpu_power_watts&step=1s"):
            answer = (await site.ask(f"/v1/allocations/{name}/{question}"))[1]
            assert (answer["source"], answer["reason"]) == ("unavailable", "ambiguous_target")
            assert f"(with {other})" in answer["detail"]
            assert answer.get("devices", answer.get("series")) == []
    await site.ask("/v1/allocations/b", "DELETE")
    assert (await site.ask("/v1/allocations/a/metrics"))[1]["source"] == "host_local_probe"


async def test_devices_named_in_two_ways_are_found_to_be_one(site: Site) -> None:
    await machine_id(site)
    assert (await put(site, "a", "acme", devices=["GPU-0"]))[0] == 201
    assert (await put(site, "b", "other", devices=["0000:00:00.0"]))[0] == 201
    assert (await put(site, "c", "third", devices=["0000:01:00.0"]))[0] == 201
    reasons = [(await site.ask(f"/v1/allocations/{name}/metrics"))[1]["reason"] for name in "abc"]
    assert reasons == ["ambiguous_target", "ambiguous_target", None]


@pytest.mark.parametrize(
    ("kind", "field", "given", "kept"),
    [
        ("gpu_slice", "vm_uuid", VM.upper(), VM),
        ("kubevirt_vmi", "vm_uuid", f"{{{VM}}}", VM),
        ("kubernetes_pod", "pod_uid", VM.upper(), VM),
        ("kubernetes_pod", "pod_uid", "0123456789ABCDEF" * 2, "0123456789abcdef" * 2),
        ("slurm_job", "job_id", "A7", "A7"),
    ],
)
async def test_identities_are_kept_as_readers_tell_them(
    site: Site, kind: str, field: str, given: str, kept: str
) -> None:
    spec = {"kind": kind, "target": {"cluster": "local", field: given}}
    status, document = await site.ask("/v1/allocations/a", "PUT", spec)
    assert (status, document["spec"]["target"][field]) == (201, kept)
    spec["target"] = {"cluster": "local", field: kept}
    assert (await site.ask("/v1/allocations/a", "PUT", spec))[1]["generation"] == 1


@pytest.mark.parametrize(("kind", "field"), [("gpu_slice", "vm_uuid"), ("kubernetes_pod", "pod_uid")])
async def test_what_is_no_uuid_is_refused_by_name(site: Site, kind: str, field: str) -> None:
    spec = {"kind": kind, "target": {"cluster": "local", field: "web-1"}}
    status, words = await site.ask("/v1/allocations/a", "PUT", spec)
    assert (status, words["field"]) == (400, f"target.{field}")


async def test_devices_are_kept_as_readers_tell_them(site: Site) -> None:
    given = [f"gpu-{VM.upper()}", f"GPU-{VM}", "00000000:1B:00.0", f"mig-{VM}", "MIG-GPU-old-style/1/0"]
    _, document = await put(site, "a", None, devices=given)
    assert document["spec"]["devices"] == [f"GPU-{VM}", "0000:1b:00.0", f"MIG-{VM}", "MIG-GPU-old-style/1/0"]


async def test_virtual_machine_belongs_to_one_tenant(site: Site) -> None:
    def vm(tenant: str, uuid: str = VM, **more: object) -> dict[str, object]:
        return {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": uuid}, "tenant": tenant, **more}

    async def ask(name: str, spec: dict[str, object]) -> tuple[int, Any]:
        return await site.ask(f"/v1/allocations/{name}", "PUT", spec)

    assert (await ask("a", vm("acme", devices=["U-1"])))[0] == 201
    for spec in (vm("other", devices=["U-2"]), vm("other", VM.upper()), {**vm("other"), "kind": "kubevirt_vmi"}):
        status, words = await ask("b", spec)
        assert (status, words["error"]) == (409, "conflict")
        assert VM in words["detail"]
    assert (await ask("c", vm("acme")))[0] == 201
    assert (await ask("d", vm("other", VM.replace("c", "d"))))[0] == 201
    for name in "ac":
        await site.ask(f"/v1/allocations/{name}", "DELETE")
    assert (await ask("b", vm("other")))[0] == 201
