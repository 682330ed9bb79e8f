"""A tenant sees its own, and of others not even that they are."""

import msgspec
import pytest

from gpufleet.model.access import Role
from tests.fakes.batches import NODE, body
from tests.security.guarded import Guarded
from tests.support.waiting import wait_until_async
from tests.web.hub.site import now

QUESTIONS = [
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
    """Give a site with an allocation of the tenant, one of another and one of nobody, and readings of their machine."""
    admin = site.secrets[Role.ADMIN]
    for name, tenant in (("mine", "acme"), ("ours", "other"), ("free", None), ("past", "other")):
        assert (await site.ask(f"/v1/allocations/{name}", admin, "PUT", allocation(tenant))).status == 201
    assert (await site.ask("/v1/allocations/past", admin, "DELETE")).status == 200
    assert (await site.post(body(1, now()), site.secrets[Role.SENDER])).status == 200

    async def stored() -> bool:
        return site.store.seqs == [1]

    await wait_until_async(stored, what="the batch in the store")
    return site


async def test_its_own_is_answered(full: Guarded) -> None:
    mine = full.secrets[Role.TENANT]
    assert [one["id"] for one in (await full.ask("/v1/allocations", mine)).document] == ["mine"]
    assert (await full.ask("/v1/allocations/mine", mine)).document["spec"]["tenant"] == "acme"
    answer = (await full.ask("/v1/allocations/mine/metrics", mine)).document
    assert (answer["source"], answer["aggregate"]["reporting"]) == ("host_local_probe", 2)
    assert (await full.ask("/v1/allocations/mine/series?metric=gpu_power_watts", mine)).status == 200


async def test_usage_is_of_its_own_allocations(full: Guarded) -> None:
    for by in ("allocation,tenant", "cluster", "team", "model"):
        answer = await full.ask(f"/v1/usage?group_by={by}", full.secrets[Role.TENANT])
        assert answer.status == 200
        assert (len(answer.document["rows"]), answer.document["total"]["gpus"]) == (1, 2)
        assert not any(word in answer.body for word in (b'"other"', b'"ours"', b'"free"', b'"past"', b"node-b"))
    everybody = (await full.ask("/v1/usage", full.secrets[Role.OPERATOR])).document
    assert {one["group"]["allocation"] for one in everybody["rows"]} == {"mine", "free"}
    assert everybody["total"]["gpus"] == 2  # both are of one machine: its GPUs count once
    assert {one["allocation"] for one in everybody["unresolved"]} == {"ours", "past"}


async def test_conflict_does_not_name_the_other_tenant(full: Guarded) -> None:
    admin = full.secrets[Role.ADMIN]
    by_name = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "renamed"}, "tenant": "other"}
    assert (await full.ask("/v1/allocations/secret-name", admin, "PUT", by_name)).status == 201
    renamed = msgspec.structs.replace(NODE, name="renamed")
    id_ = (await full.ask("/v1/machines", admin)).document["items"][0]["id"]
    by_id = {"kind": "bare_metal", "target": {"cluster": "local", "machine": id_}, "tenant": "acme"}
    assert (await full.ask("/v1/allocations/by-id", admin, "PUT", by_id)).status == 201
    assert (await full.post(body(2, now(), machine=renamed), full.secrets[Role.SENDER])).status == 200

    async def stored() -> bool:
        return full.store.seqs == [1, 2]

    await wait_until_async(stored)
    answer = await full.ask("/v1/allocations/by-id/metrics", full.secrets[Role.TENANT])
    assert (answer.document["reason"], answer.document["devices"]) == ("ambiguous_target", [])
    assert b"secret-name" not in answer.body
    assert b"secret-name" in (await full.ask("/v1/allocations/by-id/metrics", full.secrets[Role.OPERATOR])).body


async def test_foreign_allocation_looks_like_a_missing_one(full: Guarded) -> None:
    for name in ["ours", "free", "past"]:
        for question in QUESTIONS:
            mine = full.secrets[Role.TENANT]
            there = await full.ask(f"/v1/allocations/{name}{question}", mine)
            not_there = await full.ask(f"/v1/allocations/none{question}", mine)
            assert there.status in (400, 404), (question, name)
            assert there.status == not_there.status, (question, name)
            assert there.headers == not_there.headers, (question, name)
            assert there.body == not_there.body.replace(b"none", name.encode()), (question, name)
            # while for who may see it, it is there
            assert (await full.ask(f"/v1/allocations/{name}", full.secrets[Role.OPERATOR])).status == 200, (
                question,
                name,
            )


async def test_writing_tells_nothing_either(full: Guarded) -> None:
    for method in ["PUT", "DELETE"]:
        mine = full.secrets[Role.TENANT]
        replies = {
            (reply.status, reply.body)
            for reply in [
                await full.ask(f"/v1/allocations/{name}", mine, method, allocation("acme"))
                for name in ("mine", "ours", "none", "!!")
            ]
        }
        assert len(replies) == 1, method
        assert replies.pop()[0] == 403, method
        assert (await full.ask("/v1/allocations/ours", full.secrets[Role.ADMIN])).document["generation"] == 1, method


async def test_allocation_cannot_move_to_another_tenant(full: Guarded) -> None:
    reply = await full.ask("/v1/allocations/ours", full.secrets[Role.ADMIN], "PUT", allocation("acme"))
    assert (reply.status, reply.error) == (409, "conflict")
    assert (await full.ask("/v1/allocations/ours", full.secrets[Role.TENANT])).status == 404


async def test_the_fleet_is_not_a_tenant_s(full: Guarded) -> None:
    for path in ("/v1/nodes", "/v1/gpus", "/v1/gpus/GPU-0", "/v1/gpus/GPU-none", "/v1/machines", "/v1/senders"):
        assert (await full.ask(path, full.secrets[Role.TENANT])).status == 403
