"""Allocations of virtual machines, answered only by their own vGPU instances as the host reports them."""

import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.attribution.contract import NO_ANSWERER
from gpufleet.fleet.attribution.guests import MachineSamples
from gpufleet.fleet.attribution.slices import answer
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Scope, Side, View, ViewKind

NOW = 1_800_000_000 * NANOS
STALE_AFTER = 120.0
VM, OTHER_VM = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
PARENT = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-host", pci_address="0000:1b:00.0", index=0)


def at(seconds: float) -> dt.datetime:
    return to_datetime(NOW) + dt.timedelta(seconds=seconds)


def vgpu(name: str, parent: str = PARENT.key) -> View:
    return View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=name, instance="7", parent=parent)


def sample(
    view: View | None, used: int, *, vm: str | None = None, vm_kind: str = "uuid", at_ns: int = NOW, **more: object
) -> Sample:
    values: dict[str, Value] = {"gpu_memory_used_bytes" if view else "host_memory_total_bytes": used}
    if vm is not None:
        values |= {"vgpu_vm_id": vm, "vgpu_vm_id_kind": vm_kind}
    fields = {"lane": Lane.FAST, **more}
    return Sample(view=view, reader="nvml", measured_at=at_ns, values=values, **fields)  # type: ignore[arg-type]


def stored(one: Sample, age: float = 1.0) -> StoredSample:
    return StoredSample(sample=one, received_at=NOW - int(age * NANOS))


def host(*samples: StoredSample, id_: str = "m-a") -> MachineSamples:
    record = MachineRecord(
        id=id_, cluster="local", machine=Machine(name=id_), sender="s", first_seen=at(-100), last_seen=at(0)
    )
    reader = ReaderStatus(
        reader="nvml", lane=Lane.FAST, state=ReaderState.PARTIAL, interval_seconds=10, last_error="gpu/GPU-host hangs"
    )
    return MachineSamples(machine=record, stored=samples, readers=(reader,))


def allocation(kind: AllocationKind = AllocationKind.GPU_SLICE, vm: str = VM, **more: object) -> Allocation:
    fields = {"valid_from": at(-3600), **more}
    spec = AllocationSpec(kind=kind, target=Target(cluster="local", vm_uuid=vm), **fields)  # type: ignore[arg-type]
    return Allocation(id="slice", generation=1, spec=spec, created_at=at(-3600))


def answer_for(one: Allocation, *hosts: MachineSamples) -> AllocationAnswer:
    return answer(one, hosts, NOW, stale_after_seconds=STALE_AFTER)


def used(found: AllocationAnswer) -> list[object]:
    return [device.readings["gpu_memory_used_bytes"].value for device in found.devices]


def text(vm: str, seconds: float, view: View) -> StoredText:
    return StoredText(machine="m-a", view=view.key, reader="nvml", at=NOW + int(seconds * NANOS), text=vm)


@pytest.mark.parametrize(("valid_from", "shown"), [(-3600, [5, None]), (-3, [5, None]), (-1, [None, None])])
def test_reused_instance_shows_nothing_of_its_former_machine(valid_from: float, shown: list[object]) -> None:
    """The virtual machine has the instance since 2.5 s ago: 50 hertz are of the one before it."""
    view = vgpu("U-own")
    fast = sample(view, 5, vm=VM, at_ns=NOW - 2 * NANOS)
    slow = sample(view, 7, lane=Lane.SLOW, at_ns=NOW - 9 * NANOS)
    slow = msgspec.structs.replace(slow, values={"vgpu_frame_rate_limit_hertz": 50})
    texts = [text(OTHER_VM, -60, view), text(VM, -2.5, view)]
    found = answer(
        allocation(valid_from=at(valid_from)),
        [host(stored(fast), stored(slow))],
        NOW,
        stale_after_seconds=STALE_AFTER,
        texts=texts,
    )
    (device,) = found.devices
    names = ("gpu_memory_used_bytes", "vgpu_frame_rate_limit_hertz")
    assert [device.readings[name].value for name in names] == shown
    assert device.readings["vgpu_frame_rate_limit_hertz"].absent is Reason.NO_DATA


def test_first_machine_of_an_instance_has_its_earlier_readings() -> None:
    view = vgpu("U-own")
    one = stored(sample(view, 5, vm=VM, at_ns=NOW - 9 * NANOS))
    texts = [text(VM, -2.5, view)]
    found = answer(allocation(), [host(one)], NOW, stale_after_seconds=STALE_AFTER, texts=texts)
    assert used(found) == [5]


SHARED_GPU = (
    stored(sample(PARENT, 1)),
    stored(sample(None, 2)),
    stored(sample(vgpu("U-own"), 30, vm=VM)),
    stored(sample(vgpu("U-neighbour"), 4, vm=OTHER_VM)),
)


@pytest.mark.parametrize("kind", [AllocationKind.GPU_SLICE, AllocationKind.KUBEVIRT_VMI])
def test_virtual_machine_is_answered_by_its_own_instance(kind: AllocationKind) -> None:
    found = answer_for(allocation(kind, VM.upper()), host(*SHARED_GPU))

    assert (found.source, found.reason, found.machine) == (Provenance.SLICE_VGPU_HOST, None, "m-a")
    (device,) = found.devices
    assert (device.kind, device.side, device.uuid) == (ViewKind.VGPU, Side.VGPU_HOST, "U-own")
    assert device.source is Provenance.SLICE_VGPU_HOST
    assert device.parent is None
    assert used(found) == [30]
    assert device.readings["gpu_memory_used_bytes"].scope is Scope.OWN
    assert (found.host, found.host_dimensions, found.last_error) == ({}, (), None)
    assert found.aggregate.coverage == "1 of 1 devices"
    assert found.aggregate.metrics["gpu_memory_used_bytes"].value == 30


def test_vm_may_list_some_of_its_instances() -> None:
    two = host(*SHARED_GPU, stored(sample(vgpu("U-second"), 50, vm=VM)))
    assert sorted(used(answer_for(allocation(), two))) == [30, 50]  # type: ignore[type-var]
    found = answer_for(allocation(devices=("U-second", "U-never-there")), two)
    assert used(found) == [50]
    assert found.aggregate.coverage == "1 of 2 devices"


def test_instance_may_be_listed_in_either_case() -> None:
    name = "abcdef00-1111-4222-8333-444455556666"
    assert used(answer_for(allocation(devices=(name.upper(),)), host(stored(sample(vgpu(name), 30, vm=VM))))) == [30]


def test_instance_may_be_listed_by_its_guest_uuid() -> None:
    name = "abcdef00-1111-4222-8333-444455556666"
    assert used(answer_for(allocation(devices=(f"GPU-{name}",)), host(stored(sample(vgpu(name), 30, vm=VM))))) == [30]
    assert used(answer_for(allocation(devices=(name,)), host(stored(sample(vgpu(f"GPU-{name}"), 30, vm=VM))))) == [30]


def test_listed_instance_without_vm_uuid_is_shown() -> None:
    xen = host(stored(sample(PARENT, 1)), stored(sample(vgpu("U-own"), 30, vm="17", vm_kind="domain_id")))
    assert used(answer_for(allocation(devices=("U-own",)), xen)) == [30]
    assert answer_for(allocation(), xen).reason is Reason.GUEST_NOT_COLLECTED


@pytest.mark.parametrize(
    ("reason", "shown"), [(Reason.NOT_SUPPORTED, [30]), (Reason.DRIVER_ERROR, []), (Reason.TIMEOUT, [])]
)
def test_listed_instance_is_shown_if_its_holder_is_not_supported(reason: Reason, shown: list[object]) -> None:
    one = sample(vgpu("U-own"), 30)
    one.values.update(dict.fromkeys(("vgpu_vm_id", "vgpu_vm_id_kind"), Absent(reason, "nvmlVgpuInstanceGetVmID")))
    assert used(answer_for(allocation(devices=("U-own",)), host(stored(one)))) == shown


def unanswered(view: View, reason: Reason) -> StoredSample:
    """Return the sample of an instance of a lost or hanging GPU: the driver answers nothing about it."""
    one = sample(view, 0, vm=VM)
    return stored(msgspec.structs.replace(one, values=dict.fromkeys(one.values, Absent(reason))))


@pytest.mark.parametrize("reason", [Reason.GPU_LOST, Reason.TIMEOUT])
@pytest.mark.parametrize("listed", [None, ("U-own",)])
def test_instance_of_a_lost_gpu_has_the_reason_for_its_last_machine(
    reason: Reason, listed: tuple[str, ...] | None
) -> None:
    view, neighbour = vgpu("U-own"), vgpu("U-neighbour")
    slow = sample(view, 7, lane=Lane.SLOW, at_ns=NOW - 9 * NANOS)
    lost = host(stored(sample(PARENT, 1)), unanswered(view, reason), unanswered(neighbour, reason), stored(slow))
    texts = [text(VM, -60, view), text(OTHER_VM, -60, neighbour)]
    one = allocation(devices=listed)
    found = answer(one, [lost], NOW, stale_after_seconds=STALE_AFTER, texts=texts)
    assert (found.source, found.reason) == (Provenance.SLICE_VGPU_HOST, None)
    (device,) = found.devices
    assert device.uuid == "U-own"
    assert {reading.absent for reading in device.readings.values()} == {reason}
    assert found.aggregate.coverage == "0 of 1 devices"
    reused = [*texts, text(OTHER_VM, -30, view)]
    found = answer(one, [lost], NOW, stale_after_seconds=STALE_AFTER, texts=reused)
    assert (found.reason, found.devices) == (Reason.GUEST_NOT_COLLECTED, ())


def test_machine_that_left_a_lost_gpu_is_answered_by_its_new_host() -> None:
    view = vgpu("U-own")
    lost, other = host(unanswered(view, Reason.GPU_LOST)), host(stored(sample(vgpu("U-new"), 5, vm=VM)), id_="m-b")
    found = answer(allocation(), [lost, other], NOW, stale_after_seconds=STALE_AFTER, texts=[text(VM, -60, view)])
    assert (found.machine, used(found)) == ("m-b", [5])


def test_instance_of_another_vm_is_not_shown() -> None:
    found = answer_for(allocation(devices=("U-neighbour",)), host(*SHARED_GPU))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.GUEST_NOT_COLLECTED)
    assert found.devices == ()


def test_instance_of_an_earlier_pass_is_gone() -> None:
    dead = stored(sample(vgpu("U-own"), 30, vm=VM, at_ns=NOW - 10 * NANOS), age=11)
    found = answer_for(allocation(), host(stored(sample(PARENT, 1)), dead))
    assert (found.reason, found.devices) == (Reason.GUEST_NOT_COLLECTED, ())


def test_instance_moved_to_another_host_is_reported_by_that_host() -> None:
    old = host(stored(sample(vgpu("U-old"), 30, vm=VM), age=STALE_AFTER + 1), id_="m-b")
    assert used(answer_for(allocation(), old, host(*SHARED_GPU))) == [30]
    both = answer_for(allocation(), host(stored(sample(vgpu("U-old"), 5, vm=VM)), id_="m-b"), host(*SHARED_GPU))
    assert both.reason is Reason.AMBIGUOUS_TARGET
    assert "m-a, m-b" in both.detail
    assert both.devices == ()


def test_stale_host_has_no_current_values() -> None:
    found = answer_for(allocation(), host(*(stored(one.sample, age=STALE_AFTER + 1) for one in SHARED_GPU)))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.STALE)
    (device,) = found.devices
    assert {reading.absent for reading in device.readings.values()} == {Reason.STALE}


@pytest.mark.parametrize(("detail", "is_shown"), [("nvmlVgpuInstanceGetFbUsage", True), ("gpu/GPU-host hangs", False)])
def test_absence_of_an_instance_does_not_name_its_host(detail: str, is_shown: bool) -> None:
    own = sample(vgpu("U-own"), 30, vm=VM)
    absent = Absent(Reason.NOT_SUPPORTED, detail)
    own = msgspec.structs.replace(own, values={**own.values, "vgpu_license_state": absent})
    (device,) = answer_for(allocation(), host(stored(own))).devices
    reading = device.readings["vgpu_license_state"]
    assert (reading.absent, reading.detail) == (Reason.NOT_SUPPORTED, detail if is_shown else "")


def test_instance_values_before_the_allocation_are_not_shown() -> None:
    found = answer_for(
        allocation(valid_from=at(-1)), host(stored(sample(vgpu("U-own"), 30, vm=VM, at_ns=NOW - 5 * NANOS)))
    )
    assert used(found) == [None]
    assert answer_for(allocation(valid_from=at(1)), host(*SHARED_GPU)).reason is Reason.NOT_STARTED


@pytest.mark.parametrize(
    "claim",
    [
        sample(msgspec.structs.replace(vgpu("U-own"), side=Side.GUEST), 30, vm=VM),
        sample(msgspec.structs.replace(vgpu("U-own"), side=Side.HOST), 30, vm=VM),
        sample(msgspec.structs.replace(vgpu("U-own"), kind=ViewKind.GPU), 30, vm=VM),
        sample(msgspec.structs.replace(vgpu("U-own"), kind=ViewKind.MIG), 30, vm=VM),
        sample(vgpu("U-own"), 30, vm=VM, provenance=Provenance.IMPORTED),
        sample(vgpu("U-own"), 30, vm=VM, provenance=Provenance.SLICE_GUEST),
        sample(vgpu("U-own"), 30, vm=VM, vm_kind="domain_id"),
        sample(None, 30, vm=VM),
    ],
)
def test_only_host_readings_of_a_vgpu_instance_answer(claim: Sample) -> None:
    found = answer_for(allocation(), host(stored(sample(PARENT, 1)), stored(claim)))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.GUEST_NOT_COLLECTED)
    assert found.devices == ()


# --- invariant: a host's GPU never answers for a guest's, on random hosts ------------------------------

NAMES = st.sampled_from(["U-1", "U-2", "U-3", "GPU-host"])
VIEWS = st.one_of(
    st.none(),
    st.builds(
        View,
        kind=st.sampled_from(ViewKind),
        side=st.sampled_from(Side),
        uuid=st.one_of(st.none(), NAMES),
        pci_address=st.sampled_from([None, "0000:1b:00.0"]),
        instance=st.sampled_from(["1", "2"]),
        parent=st.sampled_from([None, PARENT.key, "vgpu/U-1"]),
    ),
)
VMS = st.sampled_from([None, VM, VM.upper(), OTHER_VM, "17", ""])


@st.composite
def hosts(draw: st.DrawFn) -> list[MachineSamples]:
    """Draw up to three hosts; each value belongs to one sample."""
    numbers = iter(range(1000, 10_000))
    return [
        host(
            *(
                stored(
                    sample(
                        draw(VIEWS),
                        next(numbers),
                        vm=draw(VMS),
                        vm_kind=draw(st.sampled_from(["uuid", "domain_id"])),
                        lane=draw(st.sampled_from(Lane)),
                        provenance=draw(st.sampled_from(Provenance)),
                        at_ns=NOW - draw(st.integers(0, 3)) * NANOS,
                    ),
                    age=draw(st.sampled_from([0.5, 1, STALE_AFTER + 1])),
                )
                for _ in range(draw(st.integers(0, 6)))
            ),
            id_=f"m-{index}",
        )
        for index in range(draw(st.integers(0, 3)))
    ]


@given(
    hosts(), st.sampled_from([VM, OTHER_VM, "17", "U-1"]), st.one_of(st.none(), st.lists(NAMES, max_size=3).map(tuple))
)
def test_answer_has_only_values_of_its_own_instance(
    seen: list[MachineSamples], vm: str, listed: tuple[str, ...] | None
) -> None:
    requested = allocation(vm=vm, devices=listed)
    found = answer_for(requested, *seen)

    assert (found.host, found.host_dimensions, found.last_error) == ({}, (), None)
    shown = {
        reading.value
        for device in found.devices
        for reading in device.readings.values()
        if isinstance(reading.value, int)
    }
    origins = [one.sample for each in seen for one in each.stored if shown & set(one.sample.values.values())]
    for origin in origins:
        assert origin.view is not None
        assert (origin.view.kind, origin.view.side) == (ViewKind.VGPU, Side.VGPU_HOST)
        assert origin.provenance is Provenance.HOST_LOCAL_PROBE
        vm_id = origin.values.get("vgpu_vm_id")
        if isinstance(vm_id, str) and origin.values["vgpu_vm_id_kind"] == "uuid" and "-" in vm_id:
            assert vm_id.lower() == vm
        else:
            assert listed is not None or _another_lane_names(seen, origin, vm)
        assert listed is None or origin.view.uuid in listed
    if not found.devices:
        assert found.source is Provenance.UNAVAILABLE
        assert found.reason in {NO_ANSWERER[requested.spec.kind][0], Reason.AMBIGUOUS_TARGET}
    assert all(device.source is found.source for device in found.devices)
    totals = {one.value for one in found.aggregate.metrics.values()} - {None}
    assert not totals or shown


def _another_lane_names(seen: list[MachineSamples], origin: Sample, vm: str) -> bool:
    """Return whether a sample of the same instance from another lane names this virtual machine."""
    assert origin.view is not None
    return any(
        one.sample.view is not None
        and one.sample.view.uuid == origin.view.uuid
        and str(one.sample.values.get("vgpu_vm_id")).lower() == vm
        for each in seen
        for one in each.stored
    )
