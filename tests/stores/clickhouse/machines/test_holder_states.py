"""Holder states in the store: round trip, newest report of each sender, and selection."""

import msgspec

from gpufleet.model.holdings import DeviceState, HolderState, UnresolvedCount
from gpufleet.model.stored.holdings import StoredHolderStates
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.machines.holder_states import MAX_SENDERS
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept
from tests.support.holdings import HOSTILE, T0

FREE = DeviceState(view="gpu/GPU-1", state=HolderState.FREE)
UNKNOWN = DeviceState(view="gpu/GPU-1", state=HolderState.UNKNOWN, detail=HOSTILE)
HELD = DeviceState(view="mig/instance/GPU-2/7", state=HolderState.HELD)

_numbers = iter(range(1, 1_000_000))


def put(
    store: ClickHouseStore | MemoryStore,
    cluster: str,
    machine: str,
    *devices: DeviceState,
    at: int,
    sender: str = "sender",
    epoch: str = "",
    sent_at: int | None = None,
    unresolved: tuple[UnresolvedCount, ...] = (),
) -> None:
    """Write a report of holder states. By default it was sent 1 ns before."""
    part = MachinePart(machine=0, device_holders=list(devices), unresolved=list(unresolved))
    accepted = accept(cluster, machine, part=part, reported_at=at, sent_at=at - 1 if sent_at is None else sent_at)
    accepted.batch.sender, accepted.batch.epoch = sender, epoch
    store.write([accepted], f"states-{next(_numbers)}")


def report(*devices: DeviceState, at: int, sender: str = "sender") -> StoredHolderStates:
    return StoredHolderStates(sender=sender, reported_at=at, sent_at=at - 1, devices=devices, unresolved=())


def test_every_field_of_a_report_comes_back(store: ClickHouseStore, cluster: str) -> None:
    examples = (HOSTILE, "GPU-x")
    counts = (
        UnresolvedCount(source="kubelet", names=2**63 - 1, examples=examples),
        UnresolvedCount(source=HOSTILE, names=0),
        UnresolvedCount(source="slurm", names=None),
    )
    put(store, cluster, "m", UNKNOWN, HELD, at=T0, unresolved=counts)
    expected = msgspec.structs.replace(report(UNKNOWN, HELD, at=T0), unresolved=counts)
    assert store.holder_states(cluster, ["m", "other"], T0) == {"m": (expected,)}
    assert store.holder_states("other", ["m"], 0) == {}
    assert store.holder_states(cluster, [], 0) == {}


def test_newest_report_of_each_sender_replaces_the_earlier_ones(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, "m", UNKNOWN, HELD, at=T0 + 2)
    put(store, cluster, "m", FREE, at=T0 + 1)  # a late report of the same sender
    put(store, cluster, "m", FREE, at=T0 + 1, sender="another")
    put(store, cluster, "n", at=T0 + 1)
    expected = {
        "m": (report(FREE, at=T0 + 1, sender="another"), report(UNKNOWN, HELD, at=T0 + 2)),
        "n": (report(at=T0 + 1),),
    }
    assert store.holder_states(cluster, ["m", "n"], 0) == expected
    store._handles.writer.command("OPTIMIZE TABLE holder_states FINAL")  # merges can run at any time
    assert store.holder_states(cluster, ["m", "n"], 0) == expected
    assert store.holder_states(cluster, ["m", "n"], T0 + 2) == {"m": expected["m"][1:]}


def test_late_report_of_an_earlier_epoch_replaces_nothing(embedded: ClickHouseStore, cluster: str) -> None:
    memory = MemoryStore()
    for one in (embedded, memory):
        put(one, cluster, "m", UNKNOWN, at=T0 + 20, epoch="b")
        put(one, cluster, "m", FREE, at=T0 + 30, epoch="a", sent_at=T0 + 10)
        # The clock of this sender moved back. Its reports of an epoch are in the hub's order.
        put(one, cluster, "n", UNKNOWN, at=T0 + 20, epoch="b")
        put(one, cluster, "n", FREE, at=T0 + 30, epoch="b", sent_at=T0 + 10)
    embedded._handles.writer.command("OPTIMIZE TABLE holder_states FINAL")  # merges can run at any time
    expected = {
        "m": (report(UNKNOWN, at=T0 + 20),),
        "n": (msgspec.structs.replace(report(FREE, at=T0 + 30), sent_at=T0 + 10),),
    }
    assert embedded.holder_states(cluster, ["m", "n"], 0) == expected
    assert memory.holder_states(cluster, ["m", "n"], 0) == expected


def test_part_without_holder_states_leaves_the_newest_report(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, "m", FREE, at=T0)
    store.write([accept(cluster, "m", part=MachinePart(machine=0, inventory=[]), reported_at=T0 + 1)], f"{cluster}-x")
    assert store.holder_states(cluster, ["m"], 0) == {"m": (report(FREE, at=T0),)}


def test_only_the_newest_senders_of_a_machine_are_read(embedded: ClickHouseStore, cluster: str) -> None:
    part = MachinePart(machine=0, device_holders=[FREE])
    batches = []
    for number in range(MAX_SENDERS + 5):
        accepted = accept(cluster, "m", part=part, reported_at=T0 + number)
        accepted.batch.sender = f"sender-{number:03d}"
        batches.append(accepted)
    embedded.write(batches, f"{cluster}-many")
    found = embedded.holder_states(cluster, ["m"], 0)["m"]
    assert [one.sender for one in found] == [f"sender-{number:03d}" for number in range(5, MAX_SENDERS + 5)]


def test_the_memory_store_answers_the_same(embedded: ClickHouseStore, cluster: str) -> None:
    memory = MemoryStore()
    for one in (embedded, memory):
        put(one, cluster, "m", UNKNOWN, HELD, at=T0 + 2)
        put(one, cluster, "m", FREE, at=T0 + 1)
        put(one, cluster, "m", FREE, at=T0 + 3, sender="another")
    for since in (0, T0 + 3, T0 + 4):
        found = {
            machine: reports for machine, reports in memory.holder_states(cluster, ["m"], since).items() if reports
        }
        assert embedded.holder_states(cluster, ["m"], since) == found
