"""Claims of allocations: which tenants have the same machine, device or holder at the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.attribution.claims import Claims
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Binding, Target
from gpufleet.model.time import to_ns
from tests.fleet.attribution.named_machine import FIRST, SECOND, START, UUID, allocation, at

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
