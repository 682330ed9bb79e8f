"""Shared reads of holdings: the GPUs of MIG devices are read once per machine."""

from collections.abc import Sequence

from gpufleet.hub.query.holding_reads import SharedReads
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_sample, gpu_view
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore

AT = 1_800_000_000_000_000_000


class CountingStore(MemoryStore):
    """Store in which each machine has a MIG device of its own; counts the reads of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, ...]] = []

    def latest_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[StoredSample, ...]]:
        self.reads.append(tuple(machines))
        return {
            one: (StoredSample(sample=gpu_sample(mig(one), AT), received_at=AT),) for one in machines if one != "empty"
        }


def mig(machine: str) -> View:
    return View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{machine}", instance="7/0", parent=gpu_view(1).key)


def test_gpus_of_many_machines_are_read_with_one_query() -> None:
    store = CountingStore()
    reads = SharedReads(store, "local", [], [], 0, AT, FakeClock(AT))
    expected = {(one, mig(one).key): gpu_view(1).key for one in ("a", "b")}
    assert reads.parents("local", ["a", "b", "empty"]) == expected
    assert store.reads == [("a", "b", "empty")]
    assert reads.parents("local", ["b"]) == {("b", mig("b").key): gpu_view(1).key}
    assert reads.parents("local", ["c", "empty"]) == {("c", mig("c").key): gpu_view(1).key}
    assert store.reads == [("a", "b", "empty"), ("c",)]
