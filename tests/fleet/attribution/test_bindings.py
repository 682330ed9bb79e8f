"""Bindings of allocations: which machine and devices, and in which interval."""

import msgspec
import pytest

from gpufleet.fleet.attribution.bindings import (
    bind,
    binding_at,
    bound_intervals,
    bound_slots,
    first_occupant,
    is_pending,
    rebind,
    vacant_addresses,
    with_bound_gpus,
    with_device,
    without_addresses,
)
from gpufleet.model.allocation import Binding
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime, to_ns
from gpufleet.model.view import Side, View, ViewKind
from tests.fleet.attribution.named_machine import FIRST, SECOND, START, allocation, at

MACHINE = MachineRecord(
    id="m-a",
    cluster="c",
    machine=Machine(name="node-a"),
    sender="s",
    first_seen=to_datetime(0),
    last_seen=to_datetime(0),
)


def seen(uuid: str | None, address: str, age: int = 0, *, backlog: bool = False) -> StoredSample:
    side = Side.HOST if uuid else Side.PCI_ONLY
    view = View(kind=ViewKind.GPU, side=side, uuid=uuid, pci_address=address)
    sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=START - age * NANOS, values={})
    return StoredSample(sample=sample, received_at=START + NANOS if backlog else START - age * NANOS)


@pytest.mark.parametrize(
    ("stored", "keys"),
    [
        ([seen("GPU-1", FIRST)], ("gpu/GPU-1",)),
        ([seen("GPU-1", FIRST, 60), seen(None, FIRST)], ("gpu/GPU-1",)),
        ([seen("GPU-1", FIRST, 60), seen("GPU-2", FIRST)], ("gpu/GPU-2",)),
        ([seen("GPU-1", FIRST, 60, backlog=True), seen("GPU-2", FIRST)], ("gpu/GPU-2",)),
        ([seen(None, FIRST)], (f"gpu/pci/{FIRST}",)),
        ([seen("GPU-1", FIRST, 60), seen("GPU-2", SECOND)], None),
    ],
    ids=["driver", "passed through", "swapped", "swapped, backlog of the first", "never read by a driver", "empty"],
)
def test_pci_address_is_bound_to_the_gpu_last_seen_there(stored: list[StoredSample], keys: tuple[str, ...]) -> None:
    devices = bind(allocation(devices=(FIRST,)).spec, MACHINE, stored).devices or {}
    assert devices.get(FIRST) == keys


def test_slot_that_the_last_gpu_left_is_not_bound() -> None:
    """No sample shows the later passes, in which the reader listed no GPU."""
    status = ReaderStatus(reader="nvml", lane=Lane.FAST, state=ReaderState.OK, last_success=START)
    spec, left = allocation(devices=(FIRST,)).spec, [seen("GPU-1", FIRST, 300)]
    assert bind(spec, MACHINE, left, (status,)).devices == {}
    hangs = msgspec.structs.replace(status, last_success=START - 290 * NANOS)
    assert bind(spec, MACHINE, left, (hangs,)).devices == {FIRST: ("gpu/GPU-1",)}


def test_vacated_slot_is_not_bound_to_the_gpu_before_the_last_one() -> None:
    spec, stored = allocation(devices=(FIRST,)).spec, [seen("GPU-1", FIRST, 300), seen("GPU-2", FIRST, 60)]
    assert bind(spec, MACHINE, stored, vacated={FIRST}).devices == {}
    slot = seen(None, FIRST)
    assert bind(spec, MACHINE, [*stored, slot], vacated={FIRST}).devices == {FIRST: (f"gpu/pci/{FIRST}",)}


def test_uuid_is_bound_without_a_sample_and_an_unseen_address_is_not() -> None:
    spec = allocation(devices=("GPU-1", "MIG-1", SECOND)).spec
    assert bind(spec, MACHINE, [seen("GPU-9", FIRST)]).devices == {"GPU-1": ("gpu/GPU-1",), "MIG-1": ("mig/MIG-1",)}
    assert bind(allocation().spec, MACHINE, []).devices is None


def test_gpu_at_a_vacant_address_is_bound_since_it_came() -> None:
    one = allocation(devices=(FIRST, SECOND), bindings=(Binding(machine="m-a", devices={FIRST: ("gpu/GPU-1",)}),))
    assert (is_pending(one), vacant_addresses(one)) == (True, (SECOND,))
    before, after = with_device(one, SECOND, to_ns(at(10)), "gpu/GPU-2")
    assert before == Binding(machine="m-a", devices={FIRST: ("gpu/GPU-1",)}, until=at(10))
    devices: dict[str, tuple[str, ...]] = {FIRST: ("gpu/GPU-1",), SECOND: ("gpu/GPU-2",)}
    assert after == Binding(machine="m-a", devices=devices, since=at(10))
    later = msgspec.structs.replace(one, bindings=(before, after))
    assert (is_pending(later), vacant_addresses(later)) == (False, ())


def test_gpus_stay_bound_on_a_machine_that_proved_to_be_the_bound_one() -> None:
    """What is at other addresses is bound since it came there."""
    of_uuid: dict[str, tuple[str, ...]] = {"GPU-9": ("gpu/GPU-9",)}
    bound = Binding(machine="m-a", devices={**of_uuid, FIRST: ("gpu/GPU-1",), SECOND: (f"gpu/pci/{SECOND}",)})
    found = Binding(machine="m-b", devices={**of_uuid, FIRST: ("gpu/GPU-2",), SECOND: ("gpu/GPU-3",)})
    assert with_bound_gpus(found, bound) == Binding(machine="m-b", devices={**of_uuid, FIRST: ("gpu/GPU-1",)})
    assert without_addresses(found) == Binding(machine="m-b", devices=of_uuid)
    assert with_bound_gpus(Binding(machine="m-b"), Binding(machine="m-a")) == Binding(machine="m-b")


@pytest.mark.parametrize(("key", "keys"), [("gpu/GPU-1", ("gpu/GPU-1",)), (None, ())])
def test_slot_is_bound_until_its_first_gpu_is_read(key: str | None, keys: tuple[str, ...]) -> None:
    slot = Binding(machine="m-a", devices={FIRST: (f"gpu/pci/{FIRST}",), "GPU-9": ("gpu/GPU-9",)})
    one = allocation(devices=(FIRST, "GPU-9"), bindings=(slot,))
    assert (bound_slots(one), is_pending(one)) == ((FIRST,), True)
    before, after = with_device(one, FIRST, to_ns(at(10)), key)
    assert before == msgspec.structs.replace(slot, until=at(10))
    assert after == Binding(machine="m-a", devices={FIRST: keys, "GPU-9": ("gpu/GPU-9",)}, since=at(10))
    later = msgspec.structs.replace(one, bindings=(before, after))
    assert (bound_slots(later), is_pending(later)) == ((), False)
    assert with_device(one, FIRST, START, key) == (msgspec.structs.replace(after, since=None),)


def test_first_gpu_of_a_slot_is_the_first_with_a_uuid() -> None:
    """A GPU that was there before counts only if it returned."""
    begun = {f"gpu/pci/{FIRST}": (11,), "mig/MIG-1": (12,), "gpu/GPU-3": (1,), "gpu/GPU-2": (2, 14), "gpu/GPU-1": (13,)}
    slots = [
        StoredSlot(
            cluster="c", machine="m-a", view=view, address=FIRST, first=at[0], newest=at[-1], last_seen=19, begun=at
        )
        for view, at in begun.items()
    ]
    assert first_occupant(slots, 10) == (13, "gpu/GPU-1")
    assert first_occupant(slots[:-1], 10) == (14, "gpu/GPU-2")
    assert first_occupant(slots[:3], 10) is None


def test_rebinding_ends_the_earlier_binding() -> None:
    one = allocation(bindings=(Binding(machine="m-a"),))
    later = msgspec.structs.replace(one, bindings=rebind(one, Binding(machine="m-b"), to_ns(at(10))))
    assert [(part.machine, part.start, part.end) for part in bound_intervals(later, START, to_ns(at(30)))] == [
        ("m-a", START, to_ns(at(10))),
        ("m-b", to_ns(at(10)), to_ns(at(30))),
    ]
    first, last = (binding_at(later, to_ns(at(second))) for second in (9, 10))
    assert (first and first.machine, last and last.machine) == ("m-a", "m-b")
    pending = msgspec.structs.replace(one, bindings=rebind(one, None, to_ns(at(10))))
    assert is_pending(pending)
    assert [part.end for part in bound_intervals(pending)] == [to_ns(at(10))]


def test_allocation_that_has_not_begun_is_rebound_as_a_whole() -> None:
    one = allocation(valid_from=at(60), bindings=(Binding(machine="m-a"),))
    assert rebind(one, Binding(machine="m-b"), to_ns(at(10))) == (Binding(machine="m-b"),)
