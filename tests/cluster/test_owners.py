"""Owner chains in the background: first walk, repetition, and API servers without an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from gpufleet.cluster.owners import HOLD_SECONDS, REPEAT_SECONDS, RETRY_SECONDS, WALKERS, PodOwners
from gpufleet.model.holdings import Owner
from gpufleet.model.kubernetes import ChainEnd, ClusterPod
from tests.fakes.clock import FakeClock
from tests.support.waiting import wait_until_async

SET = Owner(kind="ReplicaSet", name="web-1", uid="r")
DEPLOYMENT = Owner(kind="Deployment", name="web", uid="d")


class Lookup:
    """Owner lookup with a scripted answer; `gate` lets walks end."""

    def __init__(self) -> None:
        self.end = ChainEnd.TOP
        self.owners: tuple[Owner, ...] = (SET, DEPLOYMENT)
        self.queue = "team-a"
        self.walks: list[str] = []
        self.running = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def resolve(self, pod: ClusterPod) -> ClusterPod:
        self.walks.append(pod.name)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        owners = self.owners if self.end is ChainEnd.TOP else (SET,)
        return msgspec.structs.replace(pod, owners=owners, chain_end=self.end, queue=self.queue)


class Site:
    def __init__(self) -> None:
        self.clock, self.lookup = FakeClock(), Lookup()
        self.owners = PodOwners(self.lookup, self.clock)
        self.repeats = True

    async def walked(self, pods: dict[str, ClusterPod]) -> dict[str, ClusterPod]:
        """Let the due walks end; return the pods."""
        self.owners.merge(pods, repeats=self.repeats)

        async def ended() -> bool:
            return self.owners.queued == 0

        await wait_until_async(ended)
        return self.owners.merge(pods)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    task = asyncio.create_task(site.owners.run())
    yield site
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def pod(name: str = "p", controller: Owner | None = SET, phase: str = "Running") -> ClusterPod:
    owners = (controller,) if controller else ()
    return ClusterPod(
        uid=name, namespace="a", name=name, phase=phase, controller=controller, owners=owners,
        chain_end=ChainEnd.NOT_READ if controller else ChainEnd.TOP,
    )  # fmt: skip


async def test_pod_is_shown_with_its_chain(site: Site) -> None:
    pods = {"p": pod(), "single": pod("single", None)}
    assert site.owners.merge(pods) == {"single": pods["single"]}
    merged = await site.walked(pods)
    assert (merged["p"].owners, merged["p"].chain_end, merged["p"].queue) == ((SET, DEPLOYMENT), ChainEnd.TOP, "team-a")
    assert site.owners.merge(pods)["p"] is merged["p"]
    pods["p"] = pod(phase="Succeeded")  # shown at once, without another walk
    changed = site.owners.merge(pods)["p"]
    assert (changed.phase, changed.owners) == ("Succeeded", (SET, DEPLOYMENT))
    assert site.lookup.walks == ["p"]


async def test_pod_waits_for_its_first_walk_for_a_bounded_time(site: Site) -> None:
    site.lookup.gate.clear()
    pods = {"p": pod()}
    assert site.owners.merge(pods) == {}
    site.clock.advance(HOLD_SECONDS)
    assert site.owners.merge(pods) == pods
    assert pods["p"].chain_end is ChainEnd.NOT_READ


async def test_chain_without_an_answer_is_walked_again_and_replaces_none(site: Site) -> None:
    pods = {"p": pod()}
    site.lookup.end = ChainEnd.UNREACHABLE
    assert (await site.walked(pods))["p"].chain_end is ChainEnd.UNREACHABLE
    site.clock.advance(1.25 * RETRY_SECONDS)
    site.lookup.end = ChainEnd.TOP
    assert (await site.walked(pods))["p"].chain_end is ChainEnd.TOP
    site.clock.advance(1.25 * REPEAT_SECONDS)
    site.lookup.end = ChainEnd.UNREACHABLE
    assert (await site.walked(pods))["p"].chain_end is ChainEnd.TOP
    assert len(site.lookup.walks) == 3


@pytest.mark.parametrize("end", [ChainEnd.FORBIDDEN, ChainEnd.NOT_FOUND])
async def test_chain_that_became_shorter_replaces_none(site: Site, end: ChainEnd) -> None:
    pods = {"p": pod()}
    await site.walked(pods)
    site.clock.advance(1.25 * REPEAT_SECONDS)
    site.lookup.end = end
    assert (await site.walked(pods))["p"].owners == (SET, DEPLOYMENT)
    assert len(site.lookup.walks) == 2


async def test_queue_of_a_single_owner_stays(site: Site) -> None:
    pods = {"p": pod()}
    site.lookup.owners = (SET,)
    await site.walked(pods)
    site.clock.advance(1.25 * REPEAT_SECONDS)
    site.lookup.end, site.lookup.queue = ChainEnd.FORBIDDEN, ""
    shown = (await site.walked(pods))["p"]
    assert (shown.owners, shown.chain_end, shown.queue) == ((SET,), ChainEnd.TOP, "team-a")


async def test_walks_of_a_server_without_an_answer_become_rare(site: Site) -> None:
    pods = {"p": pod()}
    site.lookup.end = ChainEnd.UNREACHABLE
    for _ in range(100):
        await site.walked(pods)
        site.clock.advance(RETRY_SECONDS)
    assert len(site.lookup.walks) < 15


async def test_walks_are_bounded(site: Site) -> None:
    site.lookup.gate.clear()
    pods = {f"p{number}": pod(f"p{number}") for number in range(50)}
    site.owners.merge(pods)

    async def all_run() -> bool:
        return site.lookup.running == WALKERS

    await wait_until_async(all_run)
    site.lookup.gate.set()
    assert len(await site.walked(pods)) == 50
    assert site.lookup.most == WALKERS
    assert sorted(site.lookup.walks) == sorted(pods)


async def test_standby_resolves_each_new_pod_once(site: Site) -> None:
    pods = {"p": pod()}
    site.repeats = False
    site.lookup.end = ChainEnd.UNREACHABLE
    await site.walked(pods)
    site.lookup.end = ChainEnd.TOP
    for seconds in (2 * RETRY_SECONDS, 2 * REPEAT_SECONDS, 2 * REPEAT_SECONDS):
        site.clock.advance(seconds)
        found = await site.walked(pods)
        assert (found["p"].chain_end, len(site.lookup.walks)) == (ChainEnd.TOP, 2)
    other = Owner(kind="Job", name="train", uid="j")
    pods = {"p": pod(controller=other), "q": pod("q")}
    await site.walked(pods)
    assert site.lookup.walks[2:] == ["p", "q"]
    site.repeats = True
    await site.walked(pods)  # as the leader, it does not walk every chain at once
    assert len(site.lookup.walks) == 4
    site.clock.advance(2 * REPEAT_SECONDS)
    await site.walked(pods)
    assert len(site.lookup.walks) == 6


async def test_other_controller_is_another_chain(site: Site) -> None:
    await site.walked({"p": pod()})
    other = Owner(kind="Job", name="train", uid="j")
    site.lookup.gate.clear()
    site.clock.advance(HOLD_SECONDS)
    assert site.owners.merge({"p": pod(controller=other)})["p"].owners == (other,)
    assert site.owners.merge({}) == {}
