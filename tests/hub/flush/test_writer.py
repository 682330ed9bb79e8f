"""Store writer: exactly-once writes over crashes, quarantine of bad records, order of reports."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import decode, encode
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.writer import ISOLATE_AFTER, STUCK_AFTER, FlushedState, StoreWriter
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import WalRecord
from gpufleet.hub.receive.sequences import digest_of
from gpufleet.model.errors import RegistryError, StoreError, UnstorableError
from gpufleet.model.kubernetes import ClaimUser, ClusterClaim
from gpufleet.model.stored.ledger import FlushIntent, SequenceKey
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import Batch, ClusterPart
from gpufleet.registry.sql import SqlRegistry
from tests.fakes.batches import EPOCH, NODE, body, host_sample
from tests.fakes.store import MemoryStore

NOW = 10**18
KEY = SequenceKey("local", "node-a", EPOCH)
WAL = "w" * 32


class Hub:
    """A writer with its store and registry, which can be restarted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.counters = Counters()
        self.registry = SqlRegistry.open(f"sqlite:///{folder / 'registry.sqlite'}")
        self.start()

    def start(self, decoded: DecodedBatchCache | None = None) -> None:
        self.registry.close()
        self.registry = SqlRegistry.open(f"sqlite:///{self.folder / 'registry.sqlite'}")
        self.registry.migrate()
        self.registry.load()
        self.registry.register_clusters(["local"], NOW)
        self.writer = StoreWriter(
            wal=WAL,
            store=self.store,
            registry=self.registry,
            flushed=FlushedState.load(self.registry),
            quarantine=Quarantine(self.folder / "quarantine"),
            counters=self.counters,
            now=lambda: NOW,
            decoded_cache=decoded,
        )

    @property
    def quarantined(self) -> list[str]:
        folder = self.folder / "quarantine"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path)
    yield hub
    hub.registry.close()


def records(*seqs: int) -> list[WalRecord]:
    return [WalRecord(seq, NOW + seq, body(seq, NOW + seq)) for seq in seqs]


def refuse(*bad: int) -> object:
    def check(accepted: AcceptedBatch) -> None:
        if accepted.batch.seq in bad:
            raise UnstorableError(f"batch {accepted.batch.seq} is refused")

    return check


def test_flush_writes_batches_and_registers_their_state(hub: Hub) -> None:
    assert hub.writer.flush(records(1, 2, 3)) == [1, 2, 3]
    assert hub.store.seqs == [1, 2, 3]
    ((key, held),) = hub.registry.sequences().items()
    assert (key, held.ranges) == (KEY, ((1, 3),))
    assert hub.registry.pending_flush(WAL) is None
    (sender,) = hub.registry.senders()
    assert (sender.newest_report.seq, sender.newest_report.received_at) == (3, NOW + 3)
    assert sender.newest_report.heartbeat is not None
    assert hub.counters.flushed_batches == 3
    assert hub.counters.flushed_rows == 9


def test_cached_batch_is_written_without_decoding(hub: Hub) -> None:
    decoded = DecodedBatchCache()
    hub.start(decoded)
    received = records(1, 2)
    decoded.keep(1, decode(received[0].body), digest_of(received[0].body), 1)
    cut = msgspec.structs.replace(received[0], body=b"not decodable")
    assert hub.writer.flush([cut, received[1]]) == [1, 2]
    assert hub.store.seqs == [1, 2]
    assert Ledger(hub.registry.sequences()).run(KEY).has(1, digest_of(received[0].body))


def test_newest_heartbeat_is_chosen_by_sequence_number(hub: Hub) -> None:
    hub.writer.flush(records(1, 2))
    set_back = NOW - 10**15
    hub.writer.flush([WalRecord(4, set_back, body(4, NOW)), WalRecord(5, set_back + 1, body(3, NOW))])
    (sender,) = hub.registry.senders()
    assert (sender.newest_report.seq, sender.newest_report.received_at) == (4, set_back)


def test_newest_report_does_not_depend_on_clocks(hub: Hub) -> None:
    def newest() -> float | None:
        (machine,) = hub.registry.machines()
        (one,) = [one for one in hub.store.latest("local", machine.id) if one.sample.view is None]
        value = one.sample.values["host_load_1m"]
        assert isinstance(value, float)
        return value

    def report(number: int, seq: int, measured_at: int, load: float, epoch: str = EPOCH) -> None:
        content = body(seq, measured_at, samples=(host_sample(measured_at, load),), epoch=epoch)
        hub.writer.flush([WalRecord(number, NOW + number * 10**9, content)])

    report(1, 1, NOW, 0.1)
    report(2, 3, NOW - 10**15, 0.3)  # the sender's clock was set back by days
    assert newest() == 0.3
    report(3, 2, NOW + 1, 0.2)  # backlog from before the clock step
    assert newest() == 0.3
    hub.start()
    report(4, 4, NOW - 10**15 + 1, 0.4)
    assert newest() == 0.4
    report(5, 1, NOW - 10**15 + 2, 0.5, epoch="f" * 32)  # a wiped spool
    assert newest() == 0.5
    report(6, 5, NOW - 10**15 + 1, 0.6)  # backlog of the first epoch
    assert newest() == 0.5
    (sender,) = hub.registry.senders()
    assert sender.newest_report.epoch == "f" * 32


def test_backlog_from_before_a_reboot_is_no_conflict(hub: Hub) -> None:
    rebooted = msgspec.structs.replace(NODE, boot_id="boot-2")
    second = 10**9
    arrivals = [(1, NODE, 0), (9, rebooted, 60), (2, NODE, 61), (10, rebooted, 62), (3, NODE, 63), (11, rebooted, 64)]
    for number, (seq, machine, received) in enumerate(arrivals, 1):
        content = body(seq, NOW + seq * second, machine=machine)
        hub.writer.flush([WalRecord(number, NOW + received * second, content)])
        if number == 3:
            hub.start()
    (one,) = hub.registry.machines()
    assert one.conflict is None
    assert one.machine.boot_id == "boot-2"


def test_clone_detection_survives_a_restart(hub: Hub) -> None:
    hub.writer.flush(records(1, 2, 3))
    hub.start()
    ledger = Ledger(hub.registry.sequences())
    assert all(ledger.run(KEY).has(record.seq, digest_of(record.body)) for record in records(1, 2, 3))
    clone = body(2, NOW + 77)
    assert not ledger.run(KEY).has(2, digest_of(clone))
    assert "number 2 came with another content" in ledger.epoch_conflict(KEY, decode(clone))


def test_records_written_before_a_crash_are_not_written_again(hub: Hub) -> None:
    hub.writer.flush(records(1, 2))
    hub.start()  # the log still has both records
    assert hub.writer.flush(records(1, 2, 3)) == [1, 2, 3]
    assert hub.store.seqs == [1, 2, 3]


def test_interrupted_flush_is_repeated_exactly(hub: Hub) -> None:
    hub.store.down = True
    with pytest.raises(StoreError):
        hub.writer.flush(records(1, 2))
    first_token = hub.store.tokens[-1]
    hub.start()
    hub.store.down = False
    repeats = hub.writer.repeats
    assert repeats is not None
    assert list(repeats) == [1, 2]
    assert hub.writer.flush(records(1, 2, 3)) == [1, 2]
    assert hub.store.tokens[-1] == first_token
    assert hub.writer.repeats is None
    assert hub.writer.flush(records(3)) == [3]
    assert hub.store.seqs == [1, 2, 3]


def test_flush_is_marked_as_a_retry(hub: Hub) -> None:
    hub.writer.flush(records(1))
    hub.store.down = True
    with pytest.raises(StoreError):
        hub.writer.flush(records(2, 3))
    with pytest.raises(StoreError):
        hub.writer.flush(records(2, 3))
    hub.start()
    hub.store.down = False
    hub.writer.flush(records(2, 3))
    hub.writer.flush(records(4))
    assert hub.store.is_retry == [False, False, True, True, False]


def test_repeated_flush_has_the_same_token_and_ids(hub: Hub) -> None:
    """The hub is killed after the store's answer and before the registry's."""

    class DyingRegistry(SqlRegistry):
        def finish_flush(self, *_: object, has_rest: bool = False) -> None:
            raise RegistryError("killed here")

    dying = DyingRegistry(hub.registry._database)
    dying.migrate()
    dying.load()
    writer = StoreWriter(
        wal=WAL,
        store=hub.store,
        registry=dying,
        flushed=FlushedState.load(dying),
        quarantine=Quarantine(hub.folder / "q"),
        counters=Counters(),
        now=lambda: NOW,
    )
    with pytest.raises(RegistryError):
        writer.flush(records(1, 2))
    hub.start()
    assert hub.writer.flush(records(1, 2)) == [1, 2]
    assert hub.store.seqs == [1, 2]
    assert len(set(hub.store.tokens)) == 1
    ids = {one.machine_ids for _, batches in hub.store.writes for one in batches}
    assert ids == {(hub.registry.machines()[0].id,)}


def test_restored_log_and_registry_lose_no_new_batch(hub: Hub) -> None:
    hub.writer.flush(records(1, 2))
    hub.registry.close()
    for path in hub.folder.glob("registry.sqlite*"):
        path.unlink()
    hub.start()
    later = [WalRecord(seq, NOW + 10, body(seq + 10, NOW + seq + 10)) for seq in (1, 2)]
    assert hub.writer.flush(later) == [1, 2]
    assert hub.store.seqs == [1, 2, 11, 12]


def test_intent_without_records_is_discarded(hub: Hub) -> None:
    hub.registry.begin_flush(FlushIntent(wal=WAL, token="t", records={1: ("m-1",)}))
    hub.start()
    assert hub.writer.repeats is not None
    assert hub.writer.flush([]) == []
    assert hub.writer.repeats is None


def test_batch_twice_in_the_log_is_written_once(hub: Hub) -> None:
    twice = [WalRecord(1, NOW, body(1, NOW)), WalRecord(2, NOW, body(1, NOW))]
    assert sorted(hub.writer.flush(twice)) == [1, 2]
    assert hub.store.seqs == [1]


def test_unreadable_record_is_quarantined_alone(hub: Hub) -> None:
    bad = WalRecord(2, NOW, b"not a batch")
    assert sorted(hub.writer.flush([records(1)[0], bad, records(3)[0]])) == [1, 2, 3]
    assert hub.store.seqs == [1, 3]
    assert hub.quarantined == [f"{WAL}-2.batch", f"{WAL}-2.json"]
    assert (hub.folder / "quarantine" / f"{WAL}-2.batch").read_bytes() == b"not a batch"
    assert hub.counters.quarantined == {"normalise": 1}


@pytest.mark.parametrize("bad", [(1,), (3,), (5,), (1, 2, 3, 4), (2, 4)])
def test_record_refused_by_the_store_is_quarantined(hub: Hub, bad: tuple[int, ...]) -> None:
    hub.store.refuse = refuse(*bad)  # type: ignore[assignment]
    remaining = {record.seq: record for record in records(1, 2, 3, 4, 5)}
    for _ in range(20):
        if not remaining:
            break
        try:
            done = hub.writer.flush(list(remaining.values()))
        except StoreError:
            continue
        for seq in done:
            del remaining[seq]
    assert not remaining
    assert sorted(hub.store.seqs) == [seq for seq in range(1, 6) if seq not in bad]
    assert hub.counters.quarantined == {"write": len(bad)}
    assert len(hub.quarantined) == 2 * len(bad)


def test_single_refused_record_blocks_no_others(hub: Hub) -> None:
    hub.store.refuse = refuse(1)  # type: ignore[assignment]
    for _ in range(ISOLATE_AFTER + 2):
        with pytest.raises(StoreError):
            hub.writer.flush(records(1))
    assert hub.quarantined == []
    assert sorted(hub.writer.flush(records(1, 2))) == [1, 2]
    assert hub.store.seqs == [2]
    assert hub.counters.quarantined == {"write": 1}


def test_nothing_is_quarantined_while_the_store_is_down(hub: Hub) -> None:
    hub.store.down = True
    for _ in range(30):
        with pytest.raises(StoreError):
            hub.writer.flush(records(*range(1, 20)))
    assert hub.quarantined == []
    hub.store.down = False
    assert sorted(hub.writer.flush(records(*range(1, 20)))) == list(range(1, 20))
    assert sorted(hub.store.seqs) == list(range(1, 20))


def test_repeated_failures_after_a_write_duplicate_nothing(hub: Hub) -> None:
    hub.store.fails_after_write = True
    for attempt in range(STUCK_AFTER - 1):
        with pytest.raises(StoreError):
            hub.writer.flush(queued(hub, 3 + attempt))
        if attempt == STUCK_AFTER // 2:
            hub.start()
    hub.store.fails_after_write = False
    assert sorted(hub.writer.flush(queued(hub, 30))) == [1, 2, 3]
    assert sorted(hub.writer.flush(records(*range(4, 31)))) == list(range(4, 31))
    assert sorted(hub.store.seqs) == list(range(1, 31))


@pytest.mark.parametrize("killed_at", range(4))
def test_crash_within_a_group_duplicates_nothing(hub: Hub, killed_at: int) -> None:
    """The store wrote the group without an answer, the writer goes on to single records and is killed at each."""
    hub.store.fails_after_write = True
    for _ in range(STUCK_AFTER):
        with pytest.raises(StoreError):
            hub.writer.flush(queued(hub, 3))
    writes = iter(range(5))

    def die(_: AcceptedBatch) -> None:
        hub.store.fails_after_write = False
        number = next(writes)
        if number == 0:
            raise StoreError("the group again")
        if number > killed_at:
            raise KeyboardInterrupt

    hub.store.refuse = die
    with contextlib.suppress(KeyboardInterrupt):
        hub.writer.flush(queued(hub, 3))
    hub.start()
    hub.store.refuse = lambda _: None
    assert sorted({*hub.writer.flush(queued(hub, 3)), *hub.writer.flush(queued(hub, 3))}) == [1, 2, 3]
    assert sorted(hub.store.seqs) == [1, 2, 3]
    ids = {id_ for _, batches in hub.store.writes for one in batches for id_ in one.machine_ids}
    assert ids == {hub.registry.machines()[0].id}


def queued(hub: Hub, newest: int) -> list[WalRecord]:
    """Return the records that the flusher passes to the writer from a growing log."""
    repeats = hub.writer.repeats
    return records(*(range(1, newest + 1) if repeats is None or hub.writer.needs_more_records else repeats))


def test_record_that_breaks_the_store_is_isolated(hub: Hub) -> None:
    """The store does not name the record: every write with it fails, as in an outage."""

    def fail(accepted: AcceptedBatch) -> None:
        if accepted.batch.seq == 2:
            raise StoreError("memory limit exceeded")

    hub.store.refuse = fail
    done: set[int] = set()
    for attempt in range(4 * STUCK_AFTER):
        with contextlib.suppress(StoreError):
            done |= set(hub.writer.flush([one for one in queued(hub, 3 + attempt) if one.seq not in done]))
    assert {1, 2, 3} <= done
    assert hub.counters.quarantined == {"write": 1}
    assert hub.quarantined == [f"{WAL}-2.batch", f"{WAL}-2.json"]
    assert sorted(hub.store.seqs) == sorted(done - {2})


def test_bad_values_become_absences_and_are_counted(hub: Hub) -> None:
    from tests.fakes.batches import gpu_sample, gpu_view

    sample = gpu_sample(gpu_view(1), NOW, gpu_power_watts=float("nan"), gpu_utilization_ratio=7.0, made_up=1)
    hub.writer.flush([WalRecord(1, NOW, body(1, NOW, samples=(sample,)))])
    assert hub.counters.invalid_values == {"gpu_power_watts": 1, "gpu_utilization_ratio": 1}
    assert hub.counters.unknown_metrics == {"made_up": 1}


def bounded_writer(hub: Hub, max_cells: int) -> StoreWriter:
    return StoreWriter(
        wal=WAL,
        store=hub.store,
        registry=hub.registry,
        flushed=FlushedState.load(hub.registry),
        quarantine=Quarantine(hub.folder / "q"),
        counters=hub.counters,
        now=lambda: NOW,
        max_cells=max_cells,
    )


def test_group_is_bounded_by_its_decoded_size(hub: Hub) -> None:
    small = bounded_writer(hub, 1)
    queued = records(1, 2, 3)
    for seq in (1, 2, 3):
        assert small.flush(queued) == [seq]
        queued = queued[1:]
    assert hub.store.seqs == [1, 2, 3]


def test_content_of_cluster_objects_counts_for_the_group(hub: Hub) -> None:
    users = tuple(ClaimUser(resource="pods", name="p", uid=f"{n}") for n in range(256))
    claims = [ClusterClaim(uid=f"{n}", namespace="ml", name="c", reserved_for=users) for n in range(10)]
    queued = [
        WalRecord(seq, NOW + seq, encode(cluster_batch(seq, ClusterPart(observed_at=NOW, claims=claims))))
        for seq in (1, 2)
    ]
    assert bounded_writer(hub, 10_000).flush(queued) == [1]
    assert bounded_writer(hub, 100_000).flush(queued) == [1, 2]


def cluster_batch(seq: int, part: ClusterPart) -> Batch:
    return Batch(cluster="local", sender="collector", epoch=EPOCH, seq=seq, sent_at=NOW, cluster_part=part)
