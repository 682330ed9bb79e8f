"""Allocations of virtual machines, answered from inside the guest or not at all."""

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.attribution.guests import STAMPS, MachineSamples
from gpufleet.fleet.attribution.slices import answer
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import OK, REMOVED, STATES, Machine, MachineKind
from gpufleet.model.reading import Provenance, Reading, Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from tests.support.profiles import examples

NOW = 1_800_000_000 * NANOS
STALE_AFTER = 120.0
VM, OTHER_VM = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
GPU = View(kind=ViewKind.GPU, side=Side.GUEST, uuid="GPU-1", pci_address="0000:01:00.0", index=0)
SECOND = View(kind=ViewKind.GPU, side=Side.GUEST, uuid="GPU-2", pci_address="0000:02:00.0", index=1)


def at(seconds: float) -> dt.datetime:
    return to_datetime(NOW) + dt.timedelta(seconds=seconds)


def inside(view: View | None, number: int, *, age: float = 1.0, **more: object) -> StoredSample:
    values: dict[str, Value | Absent] = {"gpu_memory_used_bytes" if view else "host_memory_total_bytes": number}
    fields = {"reader": "nvidia_smi", "lane": Lane.FAST, "provenance": Provenance.SLICE_GUEST, **more}
    one = Sample(view=view, measured_at=NOW - int(age * NANOS), values=values, **fields)  # type: ignore[arg-type]
    return StoredSample(sample=one, received_at=NOW - int(age * NANOS))


def guest_status(
    state: str = OK, problem: str = "", *, age: float = 1.0, gpus: int | None = None, judged_at: int = NOW
) -> StoredSample:
    values: dict[str, Value | Absent] = {"guest_state": state, "guest_problem": problem}
    values["guest_state_timestamp_seconds"] = judged_at / NANOS
    if gpus is not None:
        values["guest_gpus"] = gpus
    values |= {name: 1_800_000_000.0 + place for place, name in enumerate(STAMPS)}
    one = Sample(view=None, reader="guests", lane=Lane.FAST, measured_at=NOW, values=values)
    return StoredSample(sample=one, received_at=NOW - int(age * NANOS))


def guest(
    *samples: StoredSample, id_: str = "m-g", vm: str = VM, kind: MachineKind = MachineKind.GUEST
) -> MachineSamples:
    evidence = Machine(name="ml/train-0", kind=kind, system_uuid=vm, hypervisor="node-1")
    record = MachineRecord(id=id_, cluster="local", machine=evidence, sender="s", first_seen=at(-100), last_seen=at(0))
    return MachineSamples(machine=record, stored=samples, readers=())


def allocation(kind: AllocationKind = AllocationKind.GPU_SLICE, vm: str = VM, **more: object) -> Allocation:
    fields = {"valid_from": at(-3600), **more}
    spec = AllocationSpec(kind=kind, target=Target(cluster="local", vm_uuid=vm), **fields)  # type: ignore[arg-type]
    return Allocation(id="slice", generation=1, spec=spec, created_at=at(-3600))


def answer_for(one: Allocation, *guests: MachineSamples, hosts: tuple[MachineSamples, ...] = ()) -> AllocationAnswer:
    return answer(one, hosts, NOW, stale_after_seconds=STALE_AFTER, inside=guests)


def used(found: AllocationAnswer) -> list[object]:
    return [device.readings["gpu_memory_used_bytes"].value for device in found.devices]


@pytest.mark.parametrize("kind", [AllocationKind.GPU_SLICE, AllocationKind.KUBEVIRT_VMI])
def test_virtual_machine_answers_for_itself(kind: AllocationKind) -> None:
    found = answer_for(
        allocation(kind, VM.upper()), guest(guest_status(), inside(GPU, 30), inside(None, 64, reader="host"))
    )
    assert (found.source, found.reason, found.detail, found.machine) == (Provenance.SLICE_GUEST, None, "", "m-g")
    (device,) = found.devices
    assert (device.side, device.source, device.uuid) == (Side.GUEST, Provenance.SLICE_GUEST, "GPU-1")
    assert used(found) == [30]
    assert found.host["host_memory_total_bytes"].value == 64
    assert [found.host[name].value for name in STAMPS] == [1_800_000_000.0 + place for place in range(4)]
    assert set(found.host) == {"host_memory_total_bytes", *STAMPS}
    assert found.aggregate.coverage == "1 of 1 devices"


@pytest.mark.parametrize("state", [state for state in STATES if state not in (OK, REMOVED)])
def test_every_state_is_a_reason_with_its_detail(state: str) -> None:
    found = answer_for(allocation(), guest(guest_status(state, "driver text"), inside(GPU, 30, age=STALE_AFTER + 1)))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason(state))
    if state == Reason.NOT_PERMITTED:
        assert "driver text" not in found.detail + str(found.last_error)
    else:
        assert "driver text" in found.detail
    assert used(found) == [None]
    assert found.devices[0].readings["gpu_memory_used_bytes"].last_known == 30


def test_problem_from_before_the_allocation_is_not_shown() -> None:
    problem = guest_status(Reason.GUEST_UNREACHABLE, "text about another tenant")
    for begin, shown in ((-10, True), (1, False)):
        one = allocation(valid_from=at(begin))
        inside_of = (guest(problem, inside(GPU, 30, age=STALE_AFTER + 1)),)
        found = answer(one, (), NOW + 2 * NANOS, stale_after_seconds=STALE_AFTER, inside=inside_of)
        assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.GUEST_UNREACHABLE)
        assert ("text about another tenant" in found.detail + str(found.last_error)) is shown


def test_problem_that_is_reported_again_is_as_old_as_its_pass() -> None:
    """The pass that is under way when the allocation begins has not ended, so that its agent repeats the report."""
    for judged_at, shown in ((NOW - 20 * NANOS, False), (NOW - 5 * NANOS, True)):
        problem = guest_status(Reason.DRIVER_ERROR, "driver text", judged_at=judged_at)
        found = answer_for(allocation(valid_from=at(-10)), guest(problem, inside(GPU, 30, age=5)))
        assert (found.reason, found.last_error) == (Reason.DRIVER_ERROR, "driver text" if shown else None)
        assert found.detail == (found.last_error or "")


def test_state_of_an_earlier_pass_does_not_show_that_a_gpu_left() -> None:
    earlier = guest_status(Reason.NO_DRIVER, judged_at=NOW - 20 * NANOS)
    found = answer_for(allocation(valid_from=at(-10)), guest(earlier, inside(GPU, 30, age=30)))
    assert [one.uuid for one in found.devices] == ["GPU-1"]


@pytest.mark.parametrize(("problem", "begin"), [("", "last seen"), ("no answer", "no answer; last seen")])
def test_detail_without_a_problem_begins_with_the_last_report(problem: str, begin: str) -> None:
    unreachable = guest_status(Reason.GUEST_UNREACHABLE, problem)
    found = answer_for(allocation(), guest(unreachable, inside(GPU, 30, age=STALE_AFTER + 1)))
    assert found.detail.startswith(begin)


def test_unreachable_guest_keeps_its_values_until_they_are_stale() -> None:
    unreachable = guest_status(Reason.GUEST_UNREACHABLE, "no answer in time")
    assert used(answer_for(allocation(), guest(unreachable, inside(GPU, 30, age=60)))) == [30]
    found = answer_for(allocation(), guest(unreachable, inside(GPU, 30, age=STALE_AFTER + 1)))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.GUEST_UNREACHABLE)
    reading = found.devices[0].readings["gpu_memory_used_bytes"]
    assert (reading.value, reading.absent, reading.last_known) == (None, Reason.STALE, 30)
    assert reading.age_seconds == pytest.approx(STALE_AFTER + 1)


def test_identity_mismatch_hides_values_at_once() -> None:
    found = answer_for(allocation(), guest(guest_status(Reason.IDENTITY_MISMATCH, "another host key"), inside(GPU, 30)))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.IDENTITY_MISMATCH)
    assert used(found) == [None]


def test_guest_values_of_a_stale_agent_are_stale() -> None:
    old = STALE_AFTER + 1
    found = answer_for(allocation(), guest(guest_status(age=old), inside(GPU, 30, age=old), inside(None, 64, age=old)))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.STALE)
    assert found.host["host_memory_total_bytes"] == Reading(
        absent=Reason.STALE,
        reader="nvidia_smi",
        measured_at=at(-old),
        received_at=at(-old),
        age_seconds=old,
        last_known=64,
    )


@pytest.mark.parametrize("expected", [{"h100": 2}, {"h100": 1, "a100": 1}, {"h100": 3}])
def test_gpu_count_must_match_the_allocation(expected: dict[str, int]) -> None:
    found = answer_for(allocation(expected=expected), guest(guest_status(), inside(GPU, 30)))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.GPU_COUNT_DIFFERS)
    assert found.detail == f"the allocation has {sum(expected.values())} GPUs, and the guest shows 1"
    assert used(found) == [None]
    assert used(
        answer_for(allocation(expected={"h100": 2}), guest(guest_status(), inside(GPU, 1), inside(SECOND, 2)))
    ) == [1, 2]


def test_gpu_that_is_gone_is_not_counted() -> None:
    both = (inside(GPU, 1), inside(SECOND, 2, age=60))
    found = answer_for(allocation(expected={"h100": 2}), guest(guest_status(gpus=1), *both))
    assert found.detail == "the allocation has 2 GPUs, and the guest shows 1"


def test_number_of_gpus_before_the_allocation_is_not_compared() -> None:
    """The virtual machine was handed over with fewer GPUs, and no pass ended since."""
    one = allocation(valid_from=at(-10), expected={"h100": 1})
    earlier = guest_status(gpus=2, judged_at=NOW - 20 * NANOS)
    before = answer_for(one, guest(earlier, inside(GPU, 1, age=20), inside(SECOND, 2, age=20)))
    assert (before.source, before.reason, used(before)) == (Provenance.SLICE_GUEST, None, [None, None])
    assert used(answer_for(one, guest(earlier, inside(GPU, 1), inside(SECOND, 2, age=20)))) == [1]


def test_removed_guest_is_not_collected() -> None:
    found = answer_for(allocation(), guest(guest_status(REMOVED), inside(GPU, 30)))
    assert (found.source, found.reason, found.devices) == (Provenance.UNAVAILABLE, Reason.GUEST_NOT_COLLECTED, ())


def test_migrated_virtual_machine_is_answered_by_its_new_host() -> None:
    old = guest(guest_status(age=STALE_AFTER + 1), inside(GPU, 1, age=STALE_AFTER + 1), id_="m-old")
    new = guest(guest_status(), inside(GPU, 2), id_="m-new")
    assert used(answer_for(allocation(), old, new)) == [2]
    assert used(answer_for(allocation(), guest(guest_status(REMOVED), inside(GPU, 1), id_="m-old"), new)) == [2]
    both = answer_for(allocation(), guest(guest_status(), inside(GPU, 1), id_="m-old"), new)
    assert (both.reason, both.devices) == (Reason.AMBIGUOUS_TARGET, ())
    assert "m-new, m-old" in both.detail


def test_guest_values_before_the_allocation_are_not_shown() -> None:
    found = answer_for(allocation(valid_from=at(-1)), guest(guest_status(), inside(GPU, 30, age=5)))
    assert used(found) == [None]
    gone = answer_for(allocation(valid_from=at(-1)), guest(guest_status(Reason.NO_DRIVER), inside(GPU, 30, age=5)))
    assert not gone.devices  # it can be in another tenant's virtual machine by now
    one = allocation(valid_from=at(1))
    stamps = answer(one, (), NOW + 2 * NANOS, stale_after_seconds=STALE_AFTER, inside=(guest(guest_status()),)).host
    assert {stamps[name].value for name in STAMPS} == {None}


def test_vgpu_instance_completes_or_replaces_the_guest() -> None:
    view = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="U-own", instance="7", parent="gpu/GPU-host")
    values: dict[str, Value | Absent] = {"gpu_memory_used_bytes": 5, "vgpu_vm_id": VM, "vgpu_vm_id_kind": "uuid"}
    one = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=NOW, values=values)
    node = guest(StoredSample(sample=one, received_at=NOW), id_="m-node", vm="", kind=MachineKind.NODE)
    both = answer_for(allocation(), guest(guest_status(), inside(GPU, 30)), hosts=(node,))
    assert both.source is Provenance.SLICE_GUEST
    assert [(device.side, device.source) for device in both.devices] == [
        (Side.GUEST, Provenance.SLICE_GUEST),
        (Side.VGPU_HOST, Provenance.SLICE_VGPU_HOST),
    ]
    assert both.aggregate.metrics["gpu_memory_used_bytes"].value == 30
    alone = answer_for(allocation(), guest(guest_status(Reason.NO_DRIVER, "no driver")), hosts=(node,))
    assert (alone.source, used(alone)) == (Provenance.SLICE_VGPU_HOST, [5])
    assert "no_driver" in alone.detail


# --- invariant: a host's GPU never answers for a guest's, on random hosts and guests -------------------

VIEWS = st.one_of(
    st.none(),
    st.builds(
        View,
        kind=st.sampled_from(ViewKind),
        side=st.sampled_from(Side),
        uuid=st.sampled_from(["GPU-1", "GPU-2", "U-1"]),
        pci_address=st.sampled_from([None, "0000:01:00.0"]),
        instance=st.sampled_from([None, "1"]),
        parent=st.sampled_from([None, "gpu/GPU-1"]),
    ),
)
AGES = st.sampled_from([0.5, 1.0, 90.0, STALE_AFTER + 1])


@st.composite
def machines(draw: st.DrawFn) -> list[MachineSamples]:
    """Draw hosts with working NVML, and guests in every state; each number belongs to one sample."""
    numbers = iter(range(1000, 100_000))
    found = []
    for index in range(draw(st.integers(1, 4))):
        samples = [
            inside(
                draw(VIEWS),
                next(numbers),
                age=draw(AGES),
                provenance=draw(st.sampled_from([*[Provenance.SLICE_GUEST] * 6, *Provenance])),
                lane=draw(st.sampled_from([Lane.FAST, Lane.SLOW, Lane.STATIC])),
                reader=draw(st.sampled_from(["nvml", "host", "nvidia_smi"])),
            )
            for _ in range(draw(st.integers(1, 6)))
        ]
        if draw(st.sampled_from([True, True, True, False])):
            samples.append(guest_status(draw(st.sampled_from([OK, OK, OK, OK, *STATES])), "text", age=draw(AGES)))
        kind, vm = draw(st.sampled_from(MachineKind)), draw(st.sampled_from([VM, OTHER_VM]))
        found.append(guest(*samples, id_=f"m-{index}", vm=vm, kind=kind))
    return found


@settings(max_examples=examples(200, 2000))
@given(machines(), st.sampled_from([{}, {"h100": 1}, {"h100": 2}]))
def test_guest_answer_has_only_values_from_inside_the_guest(
    seen: list[MachineSamples], expected: dict[str, int]
) -> None:
    hosts = tuple(one for one in seen if one.machine.machine.kind is MachineKind.NODE)
    found = answer_for(allocation(expected=expected), *seen, hosts=hosts)
    readings = [reading for device in found.devices for reading in device.readings.values()]
    readings += [reading for name, reading in found.host.items() if name not in STAMPS]
    numbers = {one.value for one in readings} | {one.last_known for one in readings}
    numbers |= {total.value for total in found.aggregate.metrics.values() if total.reporting == 1}
    origins = [
        (machine, stored)
        for machine in seen
        for stored in machine.stored
        if numbers & set(stored.sample.values.values()) - {None}
    ]
    for machine, stored in origins:
        assert (machine.machine.id, machine.machine.machine.kind) == (found.machine, MachineKind.GUEST)
        assert machine.machine.machine.system_uuid == VM
        assert stored.sample.provenance is Provenance.SLICE_GUEST
        assert stored.sample.view is None or stored.sample.view.side is Side.GUEST
    if found.source is Provenance.UNAVAILABLE:
        assert found.reason is not None
        assert all(one.value is None for one in readings)
    else:
        assert found.source is Provenance.SLICE_GUEST
        assert found.reason is None
    assert all(reading.value is None or reading.last_known is None for reading in readings)


@pytest.mark.parametrize(("begin", "shown"), [(-600, []), (-4 * 3600, ["GPU-2"])])
@pytest.mark.parametrize("others", [1, 0])
def test_gpu_that_left_the_guest_before_the_allocation_is_not_shown(begin: int, shown: list[str], others: int) -> None:
    """It can be in another tenant's virtual machine."""
    samples = [inside(GPU, 30)] * others
    left = inside(SECOND, 70, age=3 * 3600)
    found = answer_for(allocation(valid_from=at(begin)), guest(guest_status(gpus=others), *samples, left))
    assert [one.uuid for one in found.devices] == ["GPU-1"] * others + shown
