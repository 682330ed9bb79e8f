"""Machine lookup: holdings of a target. Query executor: blocking queries run on threads."""

from typing import cast

import pytest

from gpufleet.codecs.batch import to_wire
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.ports.registry import Registry
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore

MINUTE = 60 * NANOS


@pytest.mark.parametrize("window", [0, 16, 18, 19])
def test_end_of_a_holding_does_not_depend_on_the_window(window: int) -> None:
    """The end of the target's holding was lost. The next holder began 2 minutes later, and ended before the window."""
    clock, store = FakeClock(), MemoryStore()
    start = clock.now_ns() - 22 * MINUTE
    for seq, (reported, pod, since, until, verdict) in enumerate(
        [
            (10, "a", 5, None, HoldingVerdict.AGREED),
            (20, "b", 12, 15, HoldingVerdict.AGREED),
            (21, "c", 16, None, HoldingVerdict.UNKNOWN),
        ]
    ):
        holding = Holding(
            view="gpu/GPU-1",
            holder=Holder(kind=HolderKind.POD, id=pod),
            since=start + since * MINUTE,
            until=None if until is None else start + until * MINUTE,
            methods=("kubelet",),
            verdict=verdict,
        )
        report = MachineReport(machine=Machine(name="m"), holdings=(holding,))
        batch = to_wire(Batch(cluster="c", sender="s", epoch="e", seq=seq, sent_at=start, reports=(report,)))
        at = start + reported * MINUTE
        store.write([AcceptedBatch(received_at=at, reported_at=at, machine_ids=("m",), batch=batch)], str(seq))
    allocation = Allocation(
        id="a",
        generation=1,
        spec=AllocationSpec(kind=AllocationKind.KUBERNETES_POD, target=Target(cluster="c", pod_uid="a")),
        created_at=to_datetime(0),
    )
    lookup = MachineLookup(registry=cast("Registry", None), store=store, claims=Claims([]), clock=clock)
    found = lookup.holdings(allocation, start + window * MINUTE, clock.now_ns()).intervals
    assert [((one.start - start) // MINUTE, (one.end - start) // MINUTE) for one in found] == (
        [(5, 12)] if window == 0 else []
    )
