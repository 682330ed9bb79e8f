"""Process tables in the store: the newest of each device."""

import msgspec

from gpufleet.codecs.batch import to_wire
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.process import PROCESS_READINGS, Process
from gpufleet.model.reading import Sample
from gpufleet.model.stored.samples import AcceptedBatch, ProcessQuery, StoredProcesses
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.passes import gpu

T0 = 1_700_000_000 * NANOS

ONE = Process(
    pid=2**32 - 1,
    kinds=("compute", "graphics"),
    start_time=2**63 - 1,
    values={name: number / 10 or 2**64 - 1 for number, name in enumerate(PROCESS_READINGS)},
    name="train",
)
OTHER = Process(
    pid=0,
    kinds=(),
    start_time=None,
    values={
        name: Absent(Reason.NOT_REPORTED if name == "memory_bytes" else Reason.NO_DATA, f"call of {name}")
        for name in PROCESS_READINGS
    },
)


def put(store: ClickHouseStore, cluster: str, second: int, *processes: Process, device: int = 0, seq: int = 1) -> None:
    sample = Sample(
        view=gpu(device),
        reader="nvml",
        lane=Lane.FAST,
        measured_at=T0 + second * NANOS,
        values={"gpu_power_watts": 1.0},
        processes=processes,
    )
    report = MachineReport(machine=Machine(name="n"), samples=(sample,))
    batch = Batch(cluster=cluster, sender="s", epoch="0" * 32, seq=seq, sent_at=T0, reports=(report,))
    accepted = AcceptedBatch(received_at=T0 + 1, reported_at=T0, machine_ids=("m",), batch=to_wire(batch))
    store.write([accepted], f"{cluster}-{seq}")


def query(store: ClickHouseStore, cluster: str, **changes: object) -> tuple[StoredProcesses, ...]:
    whole = ProcessQuery(cluster=cluster, machine="m", start=T0, end=T0 + 1000 * NANOS)
    return store.processes(msgspec.structs.replace(whole, **changes))


def test_process_table_round_trip(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, 5, OTHER, ONE)
    (found,) = query(store, cluster)
    assert (found.view, found.reader, found.measured_at, found.received_at) == (
        gpu(0).key,
        "nvml",
        T0 + 5 * NANOS,
        T0 + 1,
    )
    assert (found.total, sorted(found.processes, key=lambda one: one.pid)) == (2, [OTHER, ONE])


def test_newest_table_of_each_device_in_the_range(store: ClickHouseStore, cluster: str) -> None:
    for seq, (second, device, processes) in enumerate(
        [(1, 0, [ONE]), (9, 0, []), (5, 1, [ONE]), (4, 0, [OTHER])], start=1
    ):
        put(store, cluster, second, *processes, device=device, seq=seq)
    first, second_ = gpu(0).key, gpu(1).key
    assert [(one.view, one.total) for one in query(store, cluster)] == [(first, 0), (second_, 1)]
    before = query(store, cluster, end=T0 + 9 * NANOS)
    assert [(one.view, one.processes) for one in before] == [(first, (OTHER,)), (second_, (ONE,))]
    assert [one.view for one in query(store, cluster, view=second_)] == [second_]
    assert query(store, cluster, start=T0 + 10 * NANOS) == ()
    assert query(store, cluster, machine="other") == ()


def test_table_written_twice_is_returned_once(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, 1, ONE)
    put(store, cluster, 1, ONE, seq=2)
    assert len(query(store, cluster)) == 1
