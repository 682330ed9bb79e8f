"""Holdings of job arrays and heterogeneous jobs, queried by the id of the whole."""

import pytest

from gpufleet.codecs.batch import to_wire
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict, Owner
from gpufleet.model.machine import Machine
from gpufleet.model.stored.holdings import HoldingQuery
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
    holdings = tuple(
        Holding(view=f"gpu/GPU-{number}", holder=holder, since=T0, methods=("slurm",), verdict=HoldingVerdict.AGREED)
        for number, holder in enumerate(HOLDERS)
    )
    report = MachineReport(machine=Machine(name="n"), holdings=holdings)
    batch = Batch(cluster=cluster, sender="s", epoch="0" * 32, seq=1, sent_at=T0, reports=(report,))
    accepted = AcceptedBatch(received_at=T0 + 1, reported_at=T0, machine_ids=("m",), batch=to_wire(batch))
    store.write([accepted], f"{cluster}-1")
    query = HoldingQuery(cluster=cluster, kind=HolderKind.JOB, ids=ids, groups=groups, start=T0, end=T0 + NANOS)
    assert [one.holding.holder.id for one in store.holdings(query)] == found
