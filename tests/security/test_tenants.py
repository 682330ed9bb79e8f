"""Tenant tokens: see their own allocations and cannot detect others."""

import msgspec
import pytest

from gpufleet.model.access import Role
from tests.fakes.batches import NODE, body
from tests.security.guarded import Guarded
from tests.support.waiting import wait_until_async
from tests.web.hub.site import now

SUFFIXES = [
    "",
    "/metrics",
    "/series?metric=gpu_power_watts",
    "/series?metric=gpu_power_watts&step=1s&start=2026-01-01T00:00:00Z&end=2026-01-01T00:01:00Z",
    "/series?metric=nonsense",
    "/series?metric=gpu_power_watts&step=nonsense",
    "/series",
]


def allocation(tenant: str | None) -> dict[str, object]:
    machine = "node-b" if tenant == "other" else "node-a"
    spec: dict[str, object] = {"kind": "bare_metal", "target": {"cluster": "local", "machine": machine}}
    return {**spec, "tenant": tenant} if tenant else spec


@pytest.fixture
async def full(site: Guarded) -> Guarded:
    """Return a site with allocations of the tenant, of another tenant and without tenant, and readings of a machine."""
    admin = site.secrets[Role.ADMIN]
    for name, tenant in (("mine", "acme"), ("ours", "other"), ("free", None), ("past", "other")):
        assert (await site.request(f"/v1/allocations/{name}", admin, "PUT", allocation(tenant))).status == 201
    assert (await site.request("/v1/allocations/past", admin, "DELETE")).status == 200
    assert (await site.post(body(1, now()), site.secrets[Role.SENDER])).status == 200

    async def stored() -> bool:
        return site.store.seqs == [1]

    await wait_until_async(stored, what="the batch to be stored")
    return site


async def test_tenant_reads_its_own_allocations(full: Guarded) -> None:
    mine = full.secrets[Role.TENANT]
    assert [one["id"] for one in (await full.request("/v1/allocations", mine)).document] == ["mine"]
    assert (await full.request("/v1/allocations/mine", mine)).document["spec"]["tenant"] == "acme"
    answer = (await full.request("/v1/allocations/mine/metrics", mine)).document
    assert (answer["source"], answer["aggregate"]["reporting"]) == ("host_local_probe", 2)
    assert (await full.request("/v1/allocations/mine/series?metric=gpu_power_watts", mine)).status == 200


async def test_tenant_usage_covers_its_own_allocations(full: Guarded) -> None:
    for by in ("allocation,tenant", "cluster", "team", "model"):
        answer = await full.request(f"/v1/usage?group_by={by}", full.secrets[Role.TENANT])
        assert answer.status == 200
        assert (len(answer.document["rows"]), answer.document["total"]["gpus"]) == (1, 2)
        assert not any(name in answer.body for name in (b'"other"', b'"ours"', b'"free"', b'"past"', b"node-b"))
    all_usage = (await full.request("/v1/usage", full.secrets[Role.OPERATOR])).document
    assert {one["group"]["allocation"] for one in all_usage["rows"]} == {"mine", "free"}
    assert all_usage["total"]["gpus"] == 2  # both allocations are on one machine: its GPUs count once
    assert {one["allocation"] for one in all_usage["unresolved"]} == {"ours", "past"}


async def test_conflict_does_not_name_the_other_tenant(full: Guarded) -> None:
    admin = full.secrets[Role.ADMIN]
    by_name = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "renamed"}, "tenant": "acme"}
    assert (await full.request("/v1/allocations/by-name", admin, "PUT", by_name)).status == 201
    renamed = msgspec.structs.replace(NODE, name="renamed")
    id_ = (await full.request("/v1/machines", admin)).document["items"][0]["id"]
    by_id = {"kind": "bare_metal", "target": {"cluster": "local", "machine": id_}, "tenant": "other"}
    assert (await full.request("/v1/allocations/mine", admin, "DELETE")).status == 200
    assert (await full.request("/v1/allocations/secret-name", admin, "PUT", by_id)).status == 201
    assert (await full.post(body(2, now(), machine=renamed), full.secrets[Role.SENDER])).status == 200

    async def stored() -> bool:
        return full.store.seqs == [1, 2]

    await wait_until_async(stored)
    answer = await full.request("/v1/allocations/by-name/metrics", full.secrets[Role.TENANT])
    assert (answer.document["reason"], answer.document["devices"]) == ("ambiguous_target", [])
    assert b"secret-name" not in answer.body
    assert b"secret-name" in (await full.request("/v1/allocations/by-name/metrics", full.secrets[Role.OPERATOR])).body


async def test_foreign_allocation_looks_like_a_missing_one(full: Guarded) -> None:
    for name in ["ours", "free", "past"]:
        for suffix in SUFFIXES:
            mine = full.secrets[Role.TENANT]
            foreign = await full.request(f"/v1/allocations/{name}{suffix}", mine)
            missing = await full.request(f"/v1/allocations/none{suffix}", mine)
            assert foreign.status in (400, 404), (suffix, name)
            assert foreign.status == missing.status, (suffix, name)
            assert foreign.headers == missing.headers, (suffix, name)
            assert foreign.body == missing.body.replace(b"none", name.encode()), (suffix, name)
            # an operator can read it
            assert (await full.request(f"/v1/allocations/{name}", full.secrets[Role.OPERATOR])).status == 200, (
                suffix,
                name,
            )


async def test_tenant_writes_do_not_reveal_other_allocations(full: Guarded) -> None:
    for method in ["PUT", "DELETE"]:
        mine = full.secrets[Role.TENANT]
        replies = {
            (reply.status, reply.body)
            for reply in [
                await full.request(f"/v1/allocations/{name}", mine, method, allocation("acme"))
                for name in ("mine", "ours", "none", "!!")
            ]
        }
        assert len(replies) == 1, method
        assert replies.pop()[0] == 403, method
        assert (await full.request("/v1/allocations/ours", full.secrets[Role.ADMIN])).document["generation"] == 1, (
            method
        )


async def test_allocation_cannot_move_to_another_tenant(full: Guarded) -> None:
    reply = await full.request("/v1/allocations/ours", full.secrets[Role.ADMIN], "PUT", allocation("acme"))
    assert (reply.status, reply.error) == (409, "conflict")
    assert (await full.request("/v1/allocations/ours", full.secrets[Role.TENANT])).status == 404


async def test_tenant_may_not_list_the_fleet(full: Guarded) -> None:
    for path in ("/v1/nodes", "/v1/gpus", "/v1/gpus/GPU-0", "/v1/gpus/GPU-none", "/v1/machines", "/v1/senders"):
        assert (await full.request(path, full.secrets[Role.TENANT])).status == 403


async def test_tenant_does_not_see_the_text_of_a_store_error(full: Guarded) -> None:
    """It may have the store's path, the statement, and ids of other tenants' machines."""
    full.store.down = True
    tenant, operator = [await full.request("/v1/events", full.secrets[role]) for role in (Role.TENANT, Role.OPERATOR)]
    assert (tenant.status, tenant.error) == (operator.status, operator.error) == (503, "unavailable")
    text = "the store is down"
    assert (text in tenant.document["detail"], text in operator.document["detail"]) == (False, True)
