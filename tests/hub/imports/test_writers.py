"""Import writers: limits and shares per cluster and per writer."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import EncodedColumns, decode
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1
from gpufleet.hub.imports.receiver import MAX_CONCURRENT, ImportReceiver
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.writers import (
    INACTIVE_SECONDS,
    MAX_WRITERS,
    ROWS_KEPT_SECONDS,
    ImportWriter,
    ImportWriters,
)
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.machines import MachineAdmission
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import WireLimitError
from gpufleet.model.holdings import Holder, HolderKind
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.registry.machines import MachineCache
from tests.fakes.clock import FakeClock
from tests.support.waiting import wait_until_async

NOW = 1_800_000_000_000_000_000
NOTHING = ImportedRequest(machines={}, samples=0, drift={}, others={}, unattributed=0, problems={})


class EmptyRegistry:
    """A registry that knows no machine."""

    def bearer(self, cluster: str, machine: Machine, at: int) -> None:
        return None


class Disk:
    """Accepts batches once `works` is set."""

    def __init__(self, admission: MachineAdmission | None = None) -> None:
        self._admission = admission
        self.works = asyncio.Event()
        self.batches = 0
        self.newest = b""

    def reserve_machines(
        self, cluster: str, sender: str, machines: Iterable[Machine], came_at: int
    ) -> contextlib.AbstractContextManager[tuple[Machine, ...]]:
        if self._admission is None:
            return contextlib.nullcontext(())
        return self._admission.reserve(cluster, sender, machines, came_at)

    async def receive_encoded(self, batch: EncodedColumns, came_at: int) -> None:
        await self.works.wait()
        self.batches += 1
        self.newest = batch.body


class Rooms:
    """A registry with room for one machine of each sender."""

    def __init__(self) -> None:
        machines = MachineCache(max_machines=2)
        self.machine_room, self.knows_machine = machines.room, machines.knows


def written(machine: str, *gpus: int, at: int = NOW, metric: str = "gpu_power_watts") -> ImportedRequest:
    samples = tuple(
        Sample(
            view=View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{gpu}"),
            reader="remote_write/dcgm-exporter",
            lane=Lane.FAST,
            measured_at=at,
            values={metric: 1.0},
            provenance=Provenance.IMPORTED,
        )
        for gpu in gpus
    )
    machines = {Machine(name=machine): samples}
    return ImportedRequest(machines=machines, samples=len(samples), drift={}, others={}, unattributed=0, problems={})


def held(machine: str, *gpus: int, at: int = NOW) -> ImportedRequest:
    """Return the same request with a pod that holds each GPU."""
    imported = written(machine, *gpus, at=at)
    pod = frozenset({Holder(kind=HolderKind.POD, id="team/pod")})
    holders = {
        one: {(sample.view.key, at): pod for sample in samples if sample.view}
        for one, samples in imported.machines.items()
    }
    return msgspec.structs.replace(imported, holders=holders)


@contextlib.contextmanager
def running(
    clock: FakeClock, writers: ImportWriters | None = None, ingest: Any = None, counters: Counters | None = None
) -> Iterator[ImportReceiver]:
    with ThreadPoolExecutor(1) as thread:
        yield ImportReceiver(
            ingest=ingest,
            registry=EmptyRegistry(),  # type: ignore[arg-type]
            store=None,  # type: ignore[arg-type]  # not queried for unknown machines
            clusters=("many", "one"),
            counters=counters or Counters(),
            clock=clock,
            threads=thread,
            is_caught_up=lambda: True,
            writers=writers,
        )


async def test_inactive_writers_expire_and_free_their_places() -> None:
    clock = FakeClock()
    with running(clock) as receiver:

        async def write(cluster: str, sender: str) -> None:
            await receiver.receive(cluster, sender, lambda _: NOTHING)

        for number in range(MAX_WRITERS):
            await write("many", f"pod-{number}")
        with pytest.raises(WireLimitError, match=r"'many'.*64"):
            await write("many", "one-more")
        await write("one", "prometheus")
        clock.advance(INACTIVE_SECONDS)
        for number in range(1, MAX_WRITERS):
            await write("many", f"pod-{number}")
        await write("many", "one-more")  # in the place of pod-0
        with pytest.raises(WireLimitError):
            await write("many", "pod-0")


class Sender:
    """Writes its own series; `missed` of them were not cached on the last write."""

    def __init__(self, receiver: ImportReceiver, cluster: str, name: str, series: int) -> None:
        self._receiver, self._cluster, self._name, self._series = receiver, cluster, name, series
        self.missed = 0

    async def write(self) -> None:
        def read(writer: ImportWriter) -> ImportedRequest:
            points = [
                WritePoint({"__name__": "DCGM_X", "UUID": f"{self._name}-{i}"}, 1.0, NOW) for i in range(self._series)
            ]
            writer.decoder.decode_1(encode_1([*points, WritePoint({"__name__": "node_x", "i": self._name}, 1.0, NOW)]))
            self.missed = writer.decoder.known.missed
            return NOTHING

        await self._receiver.receive(self._cluster, self._name, read)


async def settled(senders: Sequence[Sender]) -> list[int]:
    """Return how many series of each are not cached, after enough writes to settle the shares."""
    for _ in range(4):
        for sender in senders:
            await sender.write()
    return [sender.missed for sender in senders]


async def test_writer_of_many_series_affects_only_itself() -> None:
    clock = FakeClock()
    with running(clock, ImportWriters(clock, max_series=100)) as receiver:
        small, large = Sender(receiver, "many", "small", 30), Sender(receiver, "many", "large", 1000)
        assert await settled([small]) == [0]
        for _ in range(3):
            await large.write()
            await small.write()
            assert small.missed == 0
        assert await settled([small, large]) == [0, 930]  # the large writer gets the unused rest


async def test_two_greedy_writers_share_the_cache_equally() -> None:
    clock = FakeClock()
    counters = Counters()
    with running(clock, ImportWriters(clock, max_series=100), counters=counters) as receiver:
        both = [Sender(receiver, "many", name, 60) for name in ("a", "b")]
        assert await settled(both) == [10, 10]
        before = counters.uncached_series.copy()
        assert await settled(both) == [10, 10]
        assert counters.uncached_series - before == {"many/a": 40, "many/b": 40}


async def test_cluster_of_many_writers_gets_one_cluster_share() -> None:
    clock = FakeClock()
    with running(clock, ImportWriters(clock, max_series=100)) as receiver:
        many = [Sender(receiver, "many", f"pod-{number}", 50) for number in range(5)]
        assert await settled([*many, Sender(receiver, "one", "prometheus", 50)]) == [*[40] * 5, 0]


async def test_share_of_an_inactive_writer_goes_to_others() -> None:
    clock = FakeClock()
    with running(clock, ImportWriters(clock, max_series=100)) as receiver:
        gone, active = Sender(receiver, "many", "gone", 80), Sender(receiver, "many", "active", 80)
        assert await settled([gone, active]) == [30, 30]
        clock.advance(INACTIVE_SECONDS)
        assert await settled([active]) == [0]


async def test_device_quota_of_a_cluster_keeps_known_devices() -> None:
    clock, disk = FakeClock(NOW), Disk()
    disk.works.set()
    with running(clock, ImportWriters(clock, max_subjects=5), disk) as receiver:
        await receiver.receive("many", "a", lambda _: written("node-1", 1, 2, 3))
        await receiver.receive("many", "b", lambda _: written("node-2", 4, 5))
        with pytest.raises(WireLimitError, match=r"'many'.*5"):
            await receiver.receive("many", "b", lambda _: written("node-2", 6))
        await receiver.receive("many", "a", lambda _: written("node-1", 1, 2, 3))
        await receiver.receive("one", "a", lambda _: written("node-1", 1, 2, 3))  # another cluster
        clock.advance(ROWS_KEPT_SECONDS + 1)
        await receiver.receive("many", "a", lambda _: NOTHING)  # expires the devices of writer a
        await receiver.receive("many", "b", lambda _: written("node-2", 6))


async def test_refused_request_uses_no_room_for_machines() -> None:
    clock, disk = FakeClock(NOW), Disk(MachineAdmission(Rooms(), lambda: lambda: False))
    disk.works.set()
    with running(clock, ImportWriters(clock, max_subjects=2), disk) as receiver:
        with pytest.raises(WireLimitError):
            await receiver.receive("many", "a", lambda _: written("node-1", 1, 2, 3))
        await receiver.receive("many", "a", lambda _: written("node-2", 1, 2))
        assert disk.batches == 1


async def test_devices_of_an_inactive_writer_free_the_quota() -> None:
    clock, disk = FakeClock(NOW), Disk()
    disk.works.set()
    with running(clock, ImportWriters(clock, max_subjects=5), disk) as receiver:
        await receiver.receive("many", "old", lambda _: held("node-1", 1, 2, 3))
        with pytest.raises(WireLimitError):
            await receiver.receive("many", "new", lambda _: held("node-1", 1, 2, 3))
        clock.advance(INACTIVE_SECONDS + 1)
        await receiver.receive("many", "new", lambda _: held("node-1", 1, 2, 3))


async def test_refused_writer_is_accepted_again_later() -> None:
    clock, disk = FakeClock(NOW), Disk()
    disk.works.set()
    with running(clock, ImportWriters(clock, max_subjects=3), disk) as receiver:
        await receiver.receive("many", "a", lambda _: written("node-1", 1, 2, 3))
        for _ in range(ROWS_KEPT_SECONDS // 60):
            clock.advance(60)
            with pytest.raises(WireLimitError):
                await receiver.receive("many", "a", lambda _: written("node-1", 2, 3, 4))
        clock.advance(60)
        await receiver.receive("many", "a", lambda _: written("node-1", 2, 3, 4))


async def test_full_quota_refuses_no_known_holder() -> None:
    clock, disk = FakeClock(NOW), Disk()
    disk.works.set()
    with running(clock, ImportWriters(clock, max_subjects=5), disk) as receiver:
        for seconds in range(3):
            await receiver.receive("many", "a", lambda _, at=NOW + seconds: held("node-1", 1, 2, 3, at=at))  # type: ignore[misc]
        with pytest.raises(WireLimitError):
            await receiver.receive("many", "a", lambda _: held("node-1", 4))


async def test_only_a_few_requests_are_read_while_the_disk_is_slow() -> None:
    read: list[str] = []
    disk = Disk()
    with running(FakeClock(NOW), None, disk) as receiver:

        def reading(name: str) -> ImportedRequest:
            read.append(name)
            return written("node", 1)

        names = [f"writer-{number}" for number in range(10)]
        tasks = [
            asyncio.create_task(receiver.receive("many", name, lambda _, name=name: reading(name)))  # type: ignore[misc]
            for name in names
        ]

        async def limit_is_reached() -> bool:
            return len(read) == MAX_CONCURRENT

        await wait_until_async(limit_is_reached, what="requests that wait for the disk")
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(read) == MAX_CONCURRENT
        disk.works.set()
        await asyncio.gather(*tasks)
    assert (sorted(read), disk.batches) == (sorted(names), 10)


async def test_delayed_parts_of_a_scrape_are_joined() -> None:
    clock, disk = FakeClock(NOW), Disk()
    disk.works.set()
    with running(clock, None, disk) as receiver:
        for hours in (2, 1):
            at = NOW - hours * 3600 * NANOS
            for metric in ("gpu_power_watts", "gpu_utilization_ratio"):
                request = written("n", 1, at=at, metric=metric)
                await receiver.receive("many", "a", lambda _, request=request: request)  # type: ignore[misc]
                clock.advance(61)
            (block,) = decode(disk.newest).samples
            assert {"gpu_power_watts", "gpu_utilization_ratio"} <= set(block.metrics)


async def test_texts_beside_a_repeated_pass_make_no_row() -> None:
    clock, disk = FakeClock(NOW), Disk()
    disk.works.set()
    limit, name = {"gpu_power_limit_max_watts": 700.0}, {"gpu_name": "H200"}
    with running(clock, None, disk) as receiver:
        for seconds, values in [(0, limit | name), (599, limit), *[(later, name) for later in range(610, 1800, 60)]]:
            at = NOW + seconds * NANOS
            clock.advance((at - clock.now_ns()) // NANOS)
            request = written("n", 1, at=at)
            ((machine, (sample,)),) = request.machines.items()
            static = msgspec.structs.replace(sample, lane=Lane.STATIC, values=values)
            request = msgspec.structs.replace(request, machines={machine: (static,)})
            await receiver.receive("many", "a", lambda _, request=request: request)  # type: ignore[misc]
    assert disk.batches == 1
