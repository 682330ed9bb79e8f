"""Cloned machines: both copies of a spool send, and every batch of both is stored."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import to_rows
from gpufleet.config.hub import HubConfig, RelayConfig
from gpufleet.delivery.batch_queue import BatchQueue, MemoryQueue
from gpufleet.delivery.outbox import Outbox
from gpufleet.delivery.pacing import Pacer
from gpufleet.delivery.post import HubClient, RejectedBatches
from gpufleet.delivery.pusher import Pusher
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.wire.batch import MachineReport
from gpufleet.spool import Spool
from gpufleet.wiring.relay import running_relay
from tests.fakes.clock import FakeClock
from tests.support.processes import get_text
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, running_site

SECOND = 10**9


class Agent:
    """The sending half of an agent on a machine whose disk is `folder`."""

    def __init__(self, folder: Path, boot: str) -> None:
        self.folder = folder
        self.boot = boot
        self.measured: set[tuple[str, int]] = set()
        self._clock = FakeClock()
        self._clock.advance(len(boot))  # gives each process its own start time
        self._queue = BatchQueue(lambda: Spool.open(folder / "spool", max_bytes=64 << 20), MemoryQueue())
        self._outbox = Outbox(
            self._queue, cluster="local", sender="node-a", heartbeat_seconds=1, config_hash="", clock=self._clock
        )

    async def measure(self, *numbers: int) -> None:
        for number in numbers:
            sample = Sample(
                view=None, reader="host", lane=Lane.FAST, measured_at=number * SECOND, values={"host_load_1m": 1.0}
            )
            self._clock.advance(1)  # each batch has a heartbeat
            machine = Machine(name="node-a", machine_id="a" * 32, boot_id=self.boot)
            assert await self._outbox.post(MachineReport(machine=machine, samples=(sample,)))
            self.measured.add((self.boot, number))

    async def push(self, url: str) -> None:
        """Post until the backlog is empty."""
        pusher = Pusher(
            self._queue,
            HubClient(url, name="test", timeout_seconds=20),
            backfill=Pacer(100_000),
            refused=RejectedBatches(self.folder / "refused"),
            stats=self._outbox.stats,
            clock=self._clock,
            jitter=lambda: 0.0,
        )
        task = asyncio.create_task(pusher.run())

        async def empty() -> bool:
            return self._queue.records == 0 or task.done()

        await wait_until_async(empty, seconds=60)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not (self.folder / "refused").exists()

    @property
    def renewals(self) -> int:
        return self._outbox.stats.renewals

    async def start(self) -> "Agent":
        await self._queue.open()
        return self

    def stop(self) -> None:
        self._queue.close()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Agent, Agent]]:
    """Return a machine and a clone that was started from a copy of its disk."""
    first = await Agent(tmp_path / "first", "boot-1").start()
    await first.measure(*range(1, 6))
    shutil.copytree(first.folder, tmp_path / "second")
    second = await Agent(tmp_path / "second", "boot-of-the-clone").start()
    yield first, second
    first.stop()
    second.stop()


def stored(site: Site) -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for _, batches in site.store.writes:
        for one in batches:
            for report in to_rows(one.batch).reports:
                assert report.machine.boot_id is not None
                found.update((report.machine.boot_id, sample.measured_at // SECOND) for sample in report.samples)
    return found


async def all_stored(site: Site, *agents: Agent) -> None:
    expected = set().union(*(agent.measured for agent in agents))

    async def there() -> bool:
        return stored(site) == expected

    await wait_until_async(there, what=f"{len(expected)} samples in the store", seconds=30)


async def sender(site: Site) -> Any:
    async def listed() -> bool:
        return len((await site.request("/v1/senders"))[1]) == 1

    await wait_until_async(listed)
    return (await site.request("/v1/senders"))[1][0]


async def conflict(site: Site) -> Any:
    return (await sender(site))["conflict"]


async def renumbered(relay: str) -> int:
    page = (await asyncio.to_thread(get_text, f"{relay}/metrics")).splitlines()
    (line,) = [one for one in page if one.startswith("gpufleet_relay_renumbered_batches_total ")]
    return int(line.split()[1])


async def test_clones_posting_equal_numbers_are_both_stored(pair: tuple[Agent, Agent], tmp_path: Path) -> None:
    first, second = pair
    async with running_site(tmp_path / "hub") as site:
        await first.push(site.hub.url)
        await all_stored(site, first)
        assert await conflict(site) is None
        for number in range(10, 40, 10):
            await first.measure(*range(number, number + 9))
            await second.measure(*range(number, number + 9))
            await asyncio.gather(first.push(site.hub.url), second.push(site.hub.url))
        await all_stored(site, first, second)
        found = await conflict(site)
        assert found["batches"] >= 1
        assert "two" not in found["detail"]
        assert first.renewals + second.renewals == 1
        assert all(epoch["missing"] == 0 for epoch in (await sender(site))["epochs"])


async def test_both_clones_are_stored_after_a_restart(pair: tuple[Agent, Agent], tmp_path: Path) -> None:
    first, second = pair
    async with running_site(tmp_path / "hub") as site:
        await first.measure(*range(10, 200))
        await first.push(site.hub.url)
        await all_stored(site, first)
    async with running_site(tmp_path / "hub") as site:
        await second.measure(*range(10, 30))
        await second.push(site.hub.url)

        async def there() -> bool:
            return second.measured <= stored(site)

        await wait_until_async(there)
        assert (await conflict(site))["batches"] >= 1
        assert (first.renewals, second.renewals) == (0, 1)


async def test_clones_taking_turns_are_detected(pair: tuple[Agent, Agent], tmp_path: Path) -> None:
    first, second = pair
    async with running_site(tmp_path / "hub") as site:
        await first.push(site.hub.url)
        await second.push(site.hub.url)  # the same five batches
        for number in range(10, 20):
            await first.measure(number)
            await second.measure(number)
            await (first if number % 2 else second).push(site.hub.url)
        await first.push(site.hub.url)
        await second.push(site.hub.url)
        await all_stored(site, first, second)
        assert await conflict(site)
        assert first.renewals + second.renewals >= 1


async def test_relayed_batch_is_stored_under_a_known_epoch(pair: tuple[Agent, Agent], tmp_path: Path) -> None:
    first, second = pair
    async with running_site(tmp_path / "hub") as site:
        await first.measure(*range(10, 30))
        await first.push(site.hub.url)
        relay = HubConfig(listen="127.0.0.1:0", state=str(tmp_path / "relay"), relay=RelayConfig(to=site.hub.url))
        async with running_relay(relay) as relayed:
            await second.measure(*range(10, 25))
            await second.push(relayed.url)
            assert await renumbered(relayed.url) >= 1  # acknowledged before the relay knew of the conflict
            await all_stored(site, first, second)
            await second.measure(*range(40, 50))
            await second.push(relayed.url)
            assert second.renewals == 1  # the relay knows of the conflict
            await all_stored(site, first, second)
        assert await conflict(site)
