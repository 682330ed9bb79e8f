"""Stays of GPUs of a machine with two ids: "s" of its agent, and "e" of its exporter before the agent's return."""

from gpufleet.fleet.identity import MachineIds
from gpufleet.hub.query.gpu_stays import stays_of
from gpufleet.model.stored.ledger import SucceededMachine
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_sample
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept

T0 = 1_800_000_000 * NANOS
HOUR = 3600 * NANOS
IDS = MachineIds([SucceededMachine("c", machine="e", successor="s", last_seen=1, was_reported=True)])
A, B = "0000:01:00.0", "0000:02:00.0"

Report = tuple[str, int, str, str]
"""Id of the machine, hour, UUID and slot."""


def stored(*reports: Report) -> MemoryStore:
    store = MemoryStore()
    for seq, (id_, hour, uuid, slot) in enumerate(reports, start=1):
        at = T0 + hour * HOUR
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=slot)
        samples = [gpu_sample(view, at, gpu_power_watts=1.0, gpu_pci_address=slot)]
        store.write([accept("c", id_, samples, received_at=at, sent_at=at, seq=seq)], str(seq))
    return store


def hours(store: MemoryStore, id_: str, uuid: str) -> list[tuple[float, float]] | None:
    """Return the bounded stays of a GPU, in hours; None if it was always there."""
    stays = stays_of(store, "c", store.latest_of("c", ["s", "e"]), IDS).get((id_, f"gpu/{uuid}"))
    return None if stays is None else [((a - T0) / HOUR, (b - T0) / HOUR) for a, b in stays]


def test_gpu_of_one_id_displaces_none_of_the_other() -> None:
    store = stored(("s", 0, "GPU-0", A), ("e", 10, "GPU-1", A), ("s", 30, "GPU-0", A))
    assert (hours(store, "s", "GPU-0"), hours(store, "e", "GPU-1")) == (None, None)


def test_replacement_counts_under_the_id_that_reported_both() -> None:
    store = stored(("s", 0, "GPU-0", A), ("e", 10, "GPU-1", A), ("s", 30, "GPU-1", A))
    assert [end for _, end in hours(store, "s", "GPU-0") or ()] == [30]
    assert [start for start, _ in hours(store, "s", "GPU-1") or ()] == [30]
    assert hours(store, "e", "GPU-1") is None


def test_gpu_that_comes_back_under_another_id_came_then() -> None:
    """GPU-0 was away for repair, and GPU-2 was in its slot."""
    before = [("s", 0, "GPU-0", A), ("s", 0, "GPU-1", B), ("s", 2, "GPU-2", A)]
    store = stored(*before, ("e", 12, "GPU-1", B), ("e", 20, "GPU-0", A), ("s", 30, "GPU-0", A), ("s", 30, "GPU-1", B))
    assert [start for start, _ in hours(store, "e", "GPU-0") or ()] == [20]
    assert hours(store, "e", "GPU-1") is None


def test_gpu_that_both_ids_reported_never_moved() -> None:
    store = stored(("s", 0, "GPU-0", A), ("s", 0, "GPU-1", B), ("e", 10, "GPU-0", A), ("s", 30, "GPU-0", A))
    assert (hours(store, "s", "GPU-0"), hours(store, "e", "GPU-0")) == (None, None)
