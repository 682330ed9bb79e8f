"""Bindings of allocations: which machine and devices, in which interval, and whose they are."""

import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.attribution.bindings import (
    Claims,
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
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Binding, Target
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime, to_ns
from gpufleet.model.view import Side, View, ViewKind

START = 1_800_000_000 * NANOS
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
UUID = "aaaaaaaa-0000-4000-8000-000000000001"
MACHINE = MachineRecord(
    id="m-a",
    cluster="c",
    machine=Machine(name="node-a"),
    sender="s",
    first_seen=to_datetime(0),
    last_seen=to_datetime(0),
)


def at(seconds: float) -> dt.datetime:
    return to_datetime(START + int(seconds * NANOS))


def allocation(name: str = "a", tenant: str | None = "acme", **more: object) -> Allocation:
    fields = {"valid_from": at(0), "target": Target(cluster="c", machine="node-a"), **more}
    bindings, kind = fields.pop("bindings", ()), fields.pop("kind", AllocationKind.BARE_METAL)
    spec = AllocationSpec(kind=kind, tenant=tenant, **fields)  # type: ignore[arg-type]
    return Allocation(id=name, generation=1, spec=spec, created_at=at(0), bindings=bindings)  # type: ignore[arg-type]


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
    ],
    ids=["driver", "passed through", "swapped", "swapped, backlog of the first", "never read by a driver"],
)
def test_pci_address_is_bound_to_the_gpu_last_seen_there(stored: list[StoredSample], keys: tuple[str, ...]) -> None:
    assert bind(allocation(devices=(FIRST,)).spec, MACHINE, stored).devices == {FIRST: keys}


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


machines = st.sampled_from(["m-a", "m-b"])
gpus = st.none() | st.sets(st.sampled_from(["gpu/GPU-1", "gpu/GPU-2"]), min_size=1, max_size=2)
spans = st.tuples(st.integers(0, 5), st.integers(1, 5))


@given(st.lists(st.tuples(st.sampled_from(["acme", "bravo", None]), machines, gpus, spans), max_size=5))
def test_rivals_are_tenants_with_the_same_device_at_the_same_time(
    rows: list[tuple[str | None, str, set[str] | None, tuple[int, int]]],
) -> None:
    made = [
        allocation(
            f"n{number}",
            tenant,
            valid_from=at(start),
            valid_to=at(start + length),
            devices=None if devices is None else tuple(sorted(devices)),
            bindings=(Binding(machine=machine, devices=None if devices is None else {key: (key,) for key in devices}),),
        )
        for number, (tenant, machine, devices, (start, length)) in enumerate(rows)
    ]
    claims = Claims(made)
    for one, (tenant, machine, devices, (start, length)) in zip(made, rows, strict=True):
        expected = {
            other.id
            for other, (whose, where, which, (begin, time)) in zip(made, rows, strict=True)
            if None not in (tenant, whose)
            and (tenant, machine) != (whose, machine)
            and where == machine
            and (devices is None or which is None or devices & which)
            and start < begin + time
            and begin < start + length
        }
        assert {other.id for other in claims.rivals(one)} == expected


def test_unbound_claims_conflict_by_the_given_names() -> None:
    claims = Claims([allocation("a", devices=(FIRST, "GPU-1"))])
    for devices, rivals in (((FIRST,), 1), (("GPU-1",), 1), ((SECOND,), 0), (None, 1)):
        assert len(claims.rivals(allocation("b", "bravo", devices=devices))) == rivals
    assert claims.rivals(allocation("b", "bravo", target=Target(cluster="c", machine="node-b"))) == ()


@pytest.mark.parametrize(
    ("name", "rivals"),
    [(f"GPU-{UUID}", 1), (UUID.upper(), 1), (f"GPU-{'0' * 8}{UUID[8:]}", 0), (FIRST, 0), ("vgpu-1", 0)],
    ids=["as in the guest", "upper case", "other", "address", "no UUID"],
)
def test_device_of_a_virtual_machine_has_one_tenant(name: str, rivals: int) -> None:
    """Its UUID is of one device; an address is of as many as there are virtual machines."""
    one, other = (
        allocation(
            tenant, tenant, kind=AllocationKind.GPU_SLICE, target=Target(cluster="c", vm_uuid=vm), devices=listed
        )
        for tenant, vm, listed in (("acme", UUID, (UUID, FIRST, "vgpu-1")), ("bravo", "1" + UUID[1:], (name,)))
    )
    assert len(Claims([one]).rivals(other)) == rivals


def test_replaced_allocation_leaves_its_earlier_claim() -> None:
    claims = Claims([allocation("a", bindings=(Binding(machine="m-a"),))])
    rival = allocation("b", "bravo", bindings=(Binding(machine="m-a"),))
    assert claims.rivals(rival)
    claims.update(allocation("a", bindings=(Binding(machine="m-b"),)))
    assert claims.rivals(rival) == ()


def test_ended_allocation_is_no_longer_pending() -> None:
    claims = Claims([allocation("a", valid_to=at(10))])
    assert [one.id for one in claims.pending(to_ns(at(9)), devices=False)] == ["a"]
    assert claims.pending(to_ns(at(10)), devices=True) == ()


class CountedId(str):
    """Id that counts its look-ups in a mapping."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        CountedId.lookups += 1
        return super().__hash__()


def lookups_for(count: int) -> int:
    target = [Target(cluster="c", pod_uid=f"{number:032x}") for number in range(count)]
    specs = [AllocationSpec(kind=AllocationKind.KUBERNETES_POD, target=one, tenant="acme") for one in target]
    every = [
        Allocation(id=CountedId(number), generation=1, spec=spec, created_at=at(0)) for number, spec in enumerate(specs)
    ]
    CountedId.lookups = 0
    claims = Claims(every)
    assert claims.has_workload_rivals(allocation(tenant="other"), START, START + 1)
    return CountedId.lookups


def test_work_to_add_pods_grows_with_their_number_and_not_its_square() -> None:
    assert lookups_for(800) < 3 * lookups_for(400)
