"""Holdings of job arrays and heterogeneous jobs, queried by the id of the whole."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.codecs.batch import to_wire
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict, Owner
from gpufleet.model.machine import Machine
from gpufleet.model.stored.holdings import HoldingQuery, StoredJob
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.stores.clickhouse import ClickHouseStore

T0 = 1_700_000_000 * NANOS

HOLDERS = (
    Holder(kind=HolderKind.JOB, id="123", array_job="123", array_task="5"),
    Holder(kind=HolderKind.JOB, id="130", array_job="123", array_task="4"),
    Holder(kind=HolderKind.JOB, id="201", owners=(Owner(kind="HetJob", name="200"),)),
    Holder(kind=HolderKind.JOB, id="202", owners=(Owner(kind="Job", name="200"),)),
    Holder(kind=HolderKind.JOB, id="300"),
)


def write(store: ClickHouseStore, cluster: str, holders: Sequence[Holder], seq: int = 1) -> None:
    at = T0 + (seq - 1) * NANOS
    holdings = tuple(
        Holding(view=f"gpu/GPU-{number}", holder=holder, since=at, methods=("slurm",), verdict=HoldingVerdict.AGREED)
        for number, holder in enumerate(holders)
    )
    report = MachineReport(machine=Machine(name="n"), holdings=holdings)
    batch = Batch(cluster=cluster, sender="s", epoch="0" * 32, seq=seq, sent_at=at, reports=(report,))
    accepted = AcceptedBatch(received_at=at + 1, reported_at=at + 1, machine_ids=("m",), batch=to_wire(batch))
    store.write([accepted], f"{cluster}-{seq}")


@pytest.mark.parametrize(
    ("ids", "groups", "found"),
    [
        ((), ("123",), ["123", "130"]),
        (("200",), ("200",), ["201"]),
        (("300",), ("123",), ["123", "130", "300"]),
        (("300",), (), ["300"]),
    ],
)
def test_groups_add_tasks_and_components(
    store: ClickHouseStore, cluster: str, ids: tuple[str, ...], groups: tuple[str, ...], found: list[str]
) -> None:
    write(store, cluster, HOLDERS)
    query = HoldingQuery(cluster=cluster, kind=HolderKind.JOB, ids=ids, groups=groups, start=T0, end=T0 + NANOS)
    assert [one.holding.holder.id for one in store.holdings(query)] == found


def test_jobs_of_slurm_clusters_have_ids_and_times(store: ClickHouseStore, cluster: str) -> None:
    owners = (Owner(kind="HetJobComponent", name="200+1"), Owner(kind="HetJob", name="200"))
    jobs = [
        Holder(kind=HolderKind.JOB, id="130", array_job="123", array_task="4", slurm_cluster="beta"),
        Holder(kind=HolderKind.JOB, id="200", slurm_cluster="beta"),
        Holder(kind=HolderKind.JOB, id="201", owners=owners, slurm_cluster="alpha"),
    ]
    others = [Holder(kind=HolderKind.POD, id="200"), Holder(kind=HolderKind.JOB, id="999", slurm_cluster="alpha")]
    write(store, cluster, [*HOLDERS, *jobs, *others])
    query = HoldingQuery(cluster=cluster, kind=HolderKind.JOB, ids=("200",), groups=("123", "200"), start=0, end=0)
    found = store.slurm_jobs(query)
    assert found == tuple(StoredJob(holder=one, first=T0, last=T0 + 1) for one in jobs)
    assert [one.holder.owners for one in found] == [(), (), owners]
    assert store.slurm_jobs(msgspec.structs.replace(query, cluster="other")) == ()


def test_each_run_of_a_job_has_its_own_times(store: ClickHouseStore, cluster: str) -> None:
    job = Holder(kind=HolderKind.JOB, id="123", slurm_cluster="alpha")
    write(store, cluster, [job])
    write(store, cluster, [job], seq=2)
    query = HoldingQuery(cluster=cluster, kind=HolderKind.JOB, ids=("123",), groups=("123",), start=0, end=0)
    starts = (T0, T0 + NANOS)
    assert store.slurm_jobs(query) == tuple(StoredJob(holder=job, first=at, last=at + 1) for at in starts)
