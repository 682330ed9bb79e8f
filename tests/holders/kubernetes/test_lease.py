"""Leader election: deadlines, outages and foreign Leases. Two replicas are in test_contract.py."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.lease import DURATION_SECONDS, RENEW_SECONDS, LeaderElection
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeKubeApi

KEY = ("coordination.k8s.io", "v1", "leases")


@contextlib.asynccontextmanager
async def replica(folder: Path, clock: FakeClock) -> AsyncIterator[tuple[FakeKubeApi, LeaderElection]]:
    async with FakeKubeApi() as api:
        connection = ApiConnection(ApiAccess(kubeconfig=str(api.kubeconfig(folder)), timeout_seconds=5))
        yield api, LeaderElection(connection, "ns", "collector", "own", clock)
        await connection.close()


def foreign(holder: str = "other", duration: int = DURATION_SECONDS) -> dict[str, object]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": 4}
    return {"metadata": {"namespace": "ns", "name": "collector", "labels": {"app": "gpufleet"}}, "spec": spec}


async def test_leader_stops_when_it_cannot_renew(tmp_path: Path) -> None:
    clock = FakeClock()
    async with replica(tmp_path, clock) as (api, election):
        assert await election.attempt()
        clock.advance(RENEW_SECONDS - 1)
        api.faults = [500]
        assert await election.attempt()
        assert election.error
        clock.advance(1)
        assert not election.is_leader  # also without another attempt


async def test_lease_of_another_holder_is_taken_only_if_it_stays_unchanged(tmp_path: Path) -> None:
    clock = FakeClock()
    async with replica(tmp_path, clock) as (api, election):
        for _ in range(3):
            api.put(KEY, foreign())
            assert not await election.attempt()
            clock.advance(DURATION_SECONDS)
        clock.step(-3600)  # the wall clock does not count
        assert not await election.attempt()
        clock.advance(DURATION_SECONDS + 1)
        assert await election.attempt()
        (lease,) = api.objects(KEY)
        assert lease["spec"]["holderIdentity"] == "own"
        assert lease["spec"]["leaseTransitions"] == 5
        assert lease["metadata"]["labels"] == {"app": "gpufleet"}


async def test_released_lease_is_taken_at_once(tmp_path: Path) -> None:
    async with replica(tmp_path, FakeClock()) as (api, election):
        api.put(KEY, foreign(holder=""))
        assert await election.attempt()
        await election.release()
        assert not election.is_leader
        (lease,) = api.objects(KEY)
        assert lease["spec"]["holderIdentity"] == ""


async def test_renewal_keeps_the_time_of_acquisition(tmp_path: Path) -> None:
    clock = FakeClock()
    async with replica(tmp_path, clock) as (api, election):
        await election.attempt()
        clock.advance(5)
        await election.attempt()
        (lease,) = api.objects(KEY)
        assert lease["spec"]["acquireTime"] == "2026-01-01T00:00:00.000000Z"
        assert lease["spec"]["renewTime"] == "2026-01-01T00:00:05.000000Z"
        assert lease["spec"]["leaseTransitions"] == 0


async def test_another_holder_ends_the_leadership_at_once(tmp_path: Path) -> None:
    async with replica(tmp_path, FakeClock()) as (api, election):
        assert await election.attempt()
        api.put(KEY, foreign())
        assert not await election.attempt()
        assert election.holder == "other"


async def test_cancellation_at_the_end_of_an_attempt_is_not_lost(tmp_path: Path) -> None:
    class Connection(ApiConnection):
        """Cancels the election when its request has been answered."""

        async def write_lease(self, method: str, path: str, body: bytes) -> bytes:
            answer = await super().write_lease(method, path, body)
            asyncio.get_running_loop().call_soon(task.cancel)
            return answer

    async with FakeKubeApi() as api:
        connection = Connection(ApiAccess(kubeconfig=str(api.kubeconfig(tmp_path)), timeout_seconds=5))
        election = LeaderElection(connection, "ns", "collector", "own", FakeClock())
        task = asyncio.create_task(election.run())
        await asyncio.wait([task], timeout=5)
        is_ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        await connection.close()
    assert is_ended
    assert task.cancelled()


async def test_malformed_lease_is_an_error(tmp_path: Path) -> None:
    async with replica(tmp_path, FakeClock()) as (api, election):
        api.put(KEY, {**foreign(), "spec": {"holderIdentity": 7}})
        assert not await election.attempt()
        assert election.error
