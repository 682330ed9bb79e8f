"""Ingest: acceptance, duplicates, conflicts, refusals and durability of received batches."""

import asyncio
import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard

from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ingest import (
    SMALL_BYTES,
    BatchStatus,
    EpochConflictError,
    ForeignClusterError,
    Ingest,
    TooManySendersError,
    UpstreamRefusalError,
)
from gpufleet.hub.receive.ledger import MAX_RANGES, Ledger
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.machines import MachineAdmission, TooManyMachinesError
from gpufleet.hub.receive.sequences import EpochConflicts
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import SequenceKey, SequenceState
from gpufleet.model.wire.batch import WireBatch
from gpufleet.registry.database import Database
from gpufleet.registry.sql import SqlRegistry
from gpufleet.wiring.hub_parts import replay
from tests.fakes.batches import EPOCH, body, gpu_sample, gpu_view
from tests.support.waiting import wait_until

NOW = 10**18
KEY = SequenceKey("local", "node-a", EPOCH)


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Wal]:
    wal = Wal.open(tmp_path / "wal", max_bytes=1 << 20, max_body_bytes=1 << 19)
    yield wal
    wal.close()


@pytest.fixture
def make(wal: Wal) -> Iterator[Callable[..., Ingest]]:
    with ThreadPoolExecutor(1) as decoding:

        def build(
            ledger: Ledger | None = None,
            upstream_refusal: Callable[[WireBatch], str] = lambda _: "",
            machines: MachineAdmission | None = None,
        ) -> Ingest:
            return Ingest(
                wal=wal,
                ledger=ledger or Ledger({}),
                clusters=frozenset({"local"}),
                counters=Counters(),
                decoding=decoding,
                conflicts=EpochConflicts(),
                upstream_refusal=upstream_refusal,
                machines=machines,
            )

        yield build


async def test_repeated_batch_is_accepted_once_then_a_duplicate(wal: Wal, make: Callable[..., Ingest]) -> None:
    ingest = make()
    results = [await ingest.receive(body(1, NOW), NOW) for _ in range(3)]
    assert [result.status for result in results] == [BatchStatus.ACCEPTED, BatchStatus.DUPLICATE, BatchStatus.DUPLICATE]
    assert wal.waiting_records == 1


async def test_concurrent_posts_of_one_batch_are_written_once(wal: Wal, make: Callable[..., Ingest]) -> None:
    ingest = make()
    results = await asyncio.gather(*(ingest.receive(body(1, NOW), NOW) for _ in range(10)))
    assert sorted(result.status for result in results) == ["accepted"] + ["duplicate"] * 9
    assert wal.waiting_records == 1


async def test_other_body_with_a_known_number_is_a_conflict(wal: Wal, make: Callable[..., Ingest]) -> None:
    ingest = make()
    await ingest.receive(body(1, NOW), NOW)
    with pytest.raises(EpochConflictError, match=EPOCH):
        await ingest.receive(body(1, NOW + 1), NOW)
    assert (await ingest.receive(body(1, NOW), NOW)).status is BatchStatus.DUPLICATE
    assert wal.waiting_records == 1


async def test_other_body_conflicts_while_the_first_is_written(wal: Wal, make: Callable[..., Ingest]) -> None:
    ingest = make()
    bodies = [body(1, NOW + number % 2) for number in range(10)]
    results = await asyncio.gather(*(ingest.receive(one, NOW) for one in bodies), return_exceptions=True)
    assert [isinstance(result, EpochConflictError) for result in results] == [False, True] * 5
    assert [record.body for record in wal.replay()] == [body(1, NOW)]


async def test_each_epoch_has_its_own_sequence_numbers(wal: Wal, make: Callable[..., Ingest]) -> None:
    ingest = make()
    await ingest.receive(body(1, NOW), NOW)
    assert (await ingest.receive(body(1, NOW, epoch="f" * 32), NOW)).status is BatchStatus.ACCEPTED


async def test_foreign_cluster_is_refused_by_name(make: Callable[..., Ingest]) -> None:
    with pytest.raises(ForeignClusterError, match="'elsewhere'"):
        await make().receive(body(1, NOW, cluster="elsewhere"), NOW)


async def test_full_log_refuses_and_keeps_acknowledged_batches(wal: Wal, make: Callable[..., Ingest]) -> None:
    ingest = make()
    accepted = 0
    refused: SpoolError | None = None
    while refused is None:
        try:
            await ingest.receive(body(accepted + 1, NOW), NOW)
            accepted += 1
        except SpoolError as error:
            refused = error
    assert "the log is full" in str(refused)
    assert accepted > 1000
    assert wal.waiting_records == accepted
    assert wal.lost == 0
    assert sum(1 for _ in wal.replay()) == accepted
    wal.acknowledge([1, 2])
    assert (await ingest.receive(body(accepted + 1, NOW), NOW)).status is BatchStatus.ACCEPTED


async def test_queued_batch_is_not_dropped_for_later_batches(tmp_path: Path) -> None:
    wal = Wal.open(tmp_path / "wal", max_bytes=8 << 20, max_body_bytes=7 << 20)
    queued = [await wal.append(NOW, b"a cluster without a hub")]
    refused = ""
    while not refused:
        try:
            wal.acknowledge([await wal.append(NOW, bytes(7 << 20))])
            queued.append(await wal.append(NOW, b"another cluster without a hub"))
        except SpoolError as error:
            refused = str(error)
    assert "is full" in refused
    assert [record.seq for record in wal.replay()] == queued
    assert wal.lost == 0
    wal.close()


async def test_record_damaged_on_disk_is_counted_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wal = Wal.open(tmp_path / "wal", max_bytes=1 << 20, max_body_bytes=1 << 19)
    for number in range(5):
        await wal.append(NOW, b"body %d of five acknowledged records" % number)
    wal.close()
    (segment,) = (tmp_path / "wal").glob("*.seg")
    segment.write_bytes(segment.read_bytes().replace(b"body 2", b"BODY 2"))
    wal = Wal.open(tmp_path / "wal", max_bytes=1 << 20, max_body_bytes=1 << 19)
    assert [record.seq for record in wal.replay()] == [1, 2, 4, 5]
    assert wal.lost == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    wal.close()


async def test_acknowledged_batch_cut_off_the_log_is_counted_and_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[..., Ingest]
) -> None:
    wal = Wal.open(tmp_path / "cut", max_bytes=1 << 20, max_body_bytes=1 << 19)
    for seq in (1, 2, 3):
        await wal.append(NOW, body(seq, NOW))
    wal.close()
    (segment,) = (tmp_path / "cut").glob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-11])
    wal = Wal.open(tmp_path / "cut", max_bytes=1 << 20, max_body_bytes=1 << 19)
    assert (wal.lost, [record.levelname for record in caplog.records]) == (1, ["ERROR"])
    ledger = Ledger({})
    replay(wal, ledger)
    wal.close()
    await make(ledger).receive(body(4, NOW), NOW)
    assert ledger.missing_by_cluster() == {KEY.cluster: 1}


async def test_batch_that_failed_to_become_durable_is_not_held(wal: Wal, make: Callable[..., Ingest]) -> None:
    ledger = Ledger({})
    ingest = make(ledger)
    wal.close()
    results = await asyncio.gather(*(ingest.receive(body(1, NOW), NOW) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, SpoolError) for result in results)
    assert not ledger.holds(KEY, 1)


def of_machine(name: str) -> bytes:
    return body(1, NOW, sender=name, machine=Machine(name=name))


async def test_batches_that_a_full_log_refuses_use_no_room_for_machines(
    tmp_path: Path, wal: Wal, make: Callable[..., Ingest]
) -> None:
    registry = SqlRegistry(Database.open(f"sqlite:///{tmp_path}/registry.sqlite"), max_machines=2)
    ingest = make(machines=MachineAdmission(registry, wal.make_drain_check))
    await wal.append(NOW, bytes(random.Random(1).randbytes((1 << 20) - 100)))
    for name in "abc":
        with pytest.raises(SpoolError):
            await ingest.receive(of_machine(name), NOW)
    wal.acknowledge([1])
    for name in "de":
        await ingest.receive(of_machine(name), NOW)
    with pytest.raises(TooManyMachinesError):
        await ingest.receive(of_machine("f"), NOW)
    registry.close()


async def test_machines_of_the_replayed_log_use_room(tmp_path: Path, wal: Wal, make: Callable[..., Ingest]) -> None:
    registry = SqlRegistry(Database.open(f"sqlite:///{tmp_path}/registry.sqlite"), max_machines=2)
    for name in "ab":
        await wal.append(NOW, of_machine(name))
    ledger, machines = Ledger({}), MachineAdmission(registry, wal.make_drain_check)
    replay(wal, ledger, machines=machines)
    with pytest.raises(TooManyMachinesError):
        await make(ledger, machines=machines).receive(of_machine("c"), NOW)
    registry.close()


async def test_disconnect_leaves_ledger_and_log_consistent(wal: Wal, make: Callable[..., Ingest]) -> None:
    ledger = Ledger({})
    ingest = make(ledger)
    task = asyncio.create_task(ingest.receive(body(1, NOW), NOW))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await ingest.receive(body(1, NOW), NOW)).status is BatchStatus.DUPLICATE
    assert wal.waiting_records == 1


async def test_gaps_in_one_epoch_are_bounded(wal: Wal, make: Callable[..., Ingest]) -> None:
    ledger = Ledger({KEY: SequenceState(ranges=tuple((2 * n, 2 * n) for n in range(1, MAX_RANGES + 1)))})
    ingest = make(ledger)
    with pytest.raises(WireError, match="seq"):
        await ingest.receive(body(10 * MAX_RANGES, NOW), NOW)
    assert (await ingest.receive(body(1, NOW), NOW)).status is BatchStatus.ACCEPTED


async def test_log_reports_the_age_of_its_oldest_record(wal: Wal, make: Callable[..., Ingest]) -> None:
    ingest = make()
    assert wal.oldest_received_at is None
    await ingest.receive(body(1, NOW), NOW)
    await ingest.receive(body(2, NOW), NOW + 5)
    assert wal.oldest_received_at == NOW
    wal.acknowledge([1])
    assert wal.oldest_received_at == NOW + 5


async def test_record_flushed_before_its_answer_is_not_in_the_backlog(wal: Wal) -> None:
    answer = asyncio.create_task(wal.append(NOW, b"body"))
    for _ in range(2):  # until the sync begins
        await asyncio.sleep(0)
    # Blocks the event loop, as other work may, until the flusher is done with the record.
    wait_until(lambda: wal.read(0, max_records=1, max_bytes=1), what="a durable record")
    wal.acknowledge([1])
    assert await answer == 1
    assert (wal.waiting_records, wal.oldest_received_at) == (0, None)


async def test_large_batch_is_accepted(make: Callable[..., Ingest]) -> None:
    chance = random.Random(1)
    samples = tuple(gpu_sample(gpu_view(n), NOW, gpu_power_watts=chance.random() * 700) for n in range(20_000))
    large = body(1, NOW, samples=samples)
    assert len(large) > SMALL_BYTES
    ingest = make()
    results = await asyncio.gather(*(ingest.receive(large, NOW) for _ in range(3)))
    assert sorted(result.status for result in results) == ["accepted", "duplicate", "duplicate"]


async def test_only_new_senders_beyond_the_limit_are_refused(
    make: Callable[..., Ingest],
) -> None:
    ingest = make(Ledger({}, max_senders=3))
    bodies = [body(1, NOW, sender=f"node-{number}") for number in range(50)]
    answers = await asyncio.gather(*(ingest.receive(one, NOW) for one in bodies), return_exceptions=True)
    refused = [one for one in answers if isinstance(one, TooManySendersError)]
    assert len(refused) == 47
    assert {one.field for one in refused} == {"sender"}
    known = next(number for number, one in enumerate(answers) if not isinstance(one, BaseException))
    assert (await ingest.receive(body(2, NOW, sender=f"node-{known}"), NOW)).status is BatchStatus.ACCEPTED


async def test_upstream_refusal_keeps_earlier_batches(make: Callable[..., Ingest], wal: Wal) -> None:
    refusal = ""
    ingest = make(upstream_refusal=lambda batch: refusal if batch.sender == "node-a" else "")
    await ingest.receive(body(1, NOW), NOW)
    refusal = "answers 403: cluster 'local' is not served here"
    with pytest.raises(UpstreamRefusalError, match=refusal):
        await ingest.receive(body(2, NOW), NOW)
    assert (await ingest.receive(body(1, NOW), NOW)).status is BatchStatus.DUPLICATE
    assert (await ingest.receive(body(1, NOW, sender="node-b"), NOW)).status is BatchStatus.ACCEPTED
    assert wal.waiting_records == 2


async def test_rejected_batch_leaves_no_memory_in_use(make: Callable[..., Ingest]) -> None:
    """The garbage collector is off, because a message may have 64 MiB and collections are rare in a running hub."""
    ingest = make()
    broken = zstandard.ZstdCompressor().compress(b"\x9e" + bytes(8 << 20))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            (refused,) = await ingest.receive_all([broken], NOW)
            assert isinstance(refused, WireError)
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
        gc.enable()
