"""Owner chains: cache, cycles, depth, and references that cannot be followed."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.owners import KEEP_SECONDS, RETRY_SECONDS, OwnerWalk
from gpufleet.model.holdings import MAX_OWNERS, Owner
from gpufleet.model.kubernetes import ChainEnd
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeKind, FakeKubeApi, Object

SETS = ("apps", "v1", "replicasets")
THING = FakeKind("example.com", "v1", "things", "Thing", is_namespaced=False)


@contextlib.asynccontextmanager
async def walker(folder: Path, clock: FakeClock | None = None) -> AsyncIterator[tuple[FakeKubeApi, OwnerWalk]]:
    async with FakeKubeApi() as api:
        connection = ApiConnection(ApiAccess(kubeconfig=str(api.kubeconfig(folder)), timeout_seconds=5))
        yield api, OwnerWalk(connection, clock or FakeClock())
        await connection.close()


def reference(name: str, uid: str, kind: str = "ReplicaSet", api_version: str = "apps/v1") -> Object:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


def owner_of(fields: Object) -> Owner:
    return Owner(kind=fields["kind"], name=fields["name"], uid=fields["uid"], api_version=fields["apiVersion"])


def put(api: FakeKubeApi, name: str, *owners: Object, uid: str = "", **labels: str) -> Owner:
    metadata = {"namespace": "ml", "name": name, "uid": uid or name, "ownerReferences": list(owners), "labels": labels}
    api.put(SETS, {"metadata": metadata})
    return owner_of(reference(name, uid or name))


async def test_repeated_walks_read_nothing_until_the_entry_expires(tmp_path: Path) -> None:
    clock = FakeClock()
    async with walker(tmp_path, clock) as (api, walk):
        put(api, "top")
        first = put(api, "first", reference("top", "top"))
        chain = await walk.chain("ml", first)
        assert ([owner.name for owner in chain.owners], chain.end) == (["first", "top"], ChainEnd.TOP)
        requests = len(api.requests)
        assert await walk.chain("ml", first) == chain
        assert len(api.requests) == requests
        clock.advance(KEEP_SECONDS)
        assert await walk.chain("ml", first) == chain
        assert len(api.requests) == requests + 3  # kinds of apps/v1, and both owners


async def test_owner_that_is_not_the_controller_is_not_followed(tmp_path: Path) -> None:
    async with walker(tmp_path) as (api, walk):
        put(api, "top")
        first = put(api, "first", {**reference("top", "top"), "controller": False})
        assert (await walk.chain("ml", first)).owners == (first,)


async def test_cycle_ends_the_chain(tmp_path: Path) -> None:
    async with walker(tmp_path) as (api, walk):
        first = put(api, "a", reference("b", "b"))
        put(api, "b", reference("a", "a"))
        chain = await walk.chain("ml", first)
        assert ([owner.name for owner in chain.owners], chain.end) == (["a", "b"], ChainEnd.CYCLE)


async def test_depth_is_limited(tmp_path: Path) -> None:
    async with walker(tmp_path) as (api, walk):
        for n in range(30):
            put(api, f"o{n}", reference(f"o{n + 1}", f"o{n + 1}"))
        chain = await walk.chain("ml", owner_of(reference("o0", "o0")))
        assert (len(chain.owners), chain.end) == (MAX_OWNERS, ChainEnd.DEPTH)


async def test_missing_owner_is_named_and_read_again_later(tmp_path: Path) -> None:
    clock = FakeClock()
    async with walker(tmp_path, clock) as (api, walk):
        missing = owner_of(reference("late", "late"))
        assert (await walk.chain("ml", missing)).end is ChainEnd.NOT_FOUND
        put(api, "late")
        assert (await walk.chain("ml", missing)).end is ChainEnd.NOT_FOUND
        clock.advance(RETRY_SECONDS)
        assert (await walk.chain("ml", missing)).end is ChainEnd.TOP


async def test_failed_read_is_not_cached(tmp_path: Path) -> None:
    async with walker(tmp_path) as (api, walk):
        first = put(api, "first")
        api.faults = [500]
        assert (await walk.chain("ml", first)).end is ChainEnd.UNREACHABLE
        api.faults = [0]
        assert (await walk.chain("ml", first)).end is ChainEnd.UNREACHABLE
        assert (await walk.chain("ml", first)).end is ChainEnd.TOP


async def test_kind_that_is_served_later_is_found(tmp_path: Path) -> None:
    clock = FakeClock()
    async with walker(tmp_path, clock) as (api, walk):
        thing = owner_of(reference("t", "t", "Thing", "example.com/v1"))
        assert (await walk.chain("ml", thing)).end is ChainEnd.UNKNOWN_KIND
        api.serve(THING)
        api.put(THING.key, {"metadata": {"name": "t", "uid": "t"}})
        clock.advance(RETRY_SECONDS)
        assert (await walk.chain("ml", thing)).end is ChainEnd.TOP  # not in the namespace of the pod


@pytest.mark.parametrize("field", ["kind", "name", "api_version"])
async def test_hostile_reference_ends_the_chain_without_a_request(tmp_path: Path, field: str) -> None:
    async with walker(tmp_path) as (api, walk):
        fields = {"kind": "ReplicaSet", "name": "first", "api_version": "apps/v1", "uid": "u"}
        owner = Owner(**{**fields, field: "../../../api/v1/secrets"})
        chain = await walk.chain("ml", owner)
        assert (chain.owners, chain.end) == ((owner,), ChainEnd.UNKNOWN_KIND)
        assert not any("secrets" in path for _, path, _ in api.requests)


async def test_nearest_queue_counts(tmp_path: Path) -> None:
    async with walker(tmp_path) as (api, walk):
        put(api, "top", **{"kueue.x-k8s.io/queue-name": "far"})
        put(api, "middle", reference("top", "top"), **{"kueue.x-k8s.io/queue-name": "near"})
        first = put(api, "first", reference("middle", "middle"))
        assert (await walk.chain("ml", first)).queue == "near"


async def test_only_metadata_is_requested(tmp_path: Path) -> None:
    async with walker(tmp_path) as (api, walk):
        await walk.chain("ml", put(api, "first"))
        reads = [accept for _, path, accept in api.requests if path.endswith("/first")]
        assert len(reads) == 1
        assert "PartialObjectMetadata" in reads[0]
