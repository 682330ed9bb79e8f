"""Physical units: one GPU, however many machines and readers report it."""

from collections.abc import Mapping

import msgspec
import pytest

from gpufleet.fleet.usage.units import WHOLE, PhysicalUnits, UnitPart, ratio_changes
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, View, ViewKind

A, B = "GPU-0000000a-0000-4000-8000-000000000000", "GPU-0000000b-0000-4000-8000-000000000000"


def stored(view: View, at: int = 1, reader: str = "nvml", **values: Value) -> StoredSample:
    return StoredSample(
        sample=Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=at, values={**values}), received_at=at
    )


def gpu(uuid: str | None, address: str | None = "0000:01:00.0", side: Side = Side.HOST) -> View:
    return View(kind=ViewKind.GPU, side=side, uuid=uuid, pci_address=address)


def units(machines: Mapping[str, list[StoredSample]]) -> PhysicalUnits:
    return PhysicalUnits("c", machines)


def test_two_machines_that_report_one_uuid_share_one_gpu() -> None:
    seen = units(
        {"old": [stored(gpu(A), gpu_name="H200")], "new": [stored(gpu(A, "0000:09:00.0")), stored(gpu(B, None))]}
    )
    assert seen.whole("old")[0] in seen.whole("new")
    assert (len(seen.whole("old")), len(seen.whole("new")), len(seen.by_id)) == (1, 2, 2)
    unit = seen.by_id[seen.whole("old")[0][0]]
    assert unit.model == "H200"
    assert unit.views == (("old", f"gpu/{A}"), ("new", f"gpu/{A}"))


def test_two_readers_and_the_bus_report_one_gpu() -> None:
    bus = gpu(None, side=Side.PCI_ONLY)
    seen = units({"m": [stored(gpu(A)), stored(gpu(A), reader="dcgm"), stored(bus, at=0, reader="pci")]})
    assert len(seen.whole("m")) == len(seen.by_id) == 1


def test_passed_through_gpu_is_the_gpu_of_the_guest() -> None:
    seen = units(
        {
            "host": [stored(gpu(A), at=1), stored(gpu(None, side=Side.PCI_ONLY), at=5, reader="pci")],
            "guest": [stored(gpu(A, "0000:00:05.0", Side.GUEST), at=6)],
        }
    )
    assert seen.whole("host") == seen.whole("guest")
    assert len(seen.by_id) == 1


def test_guest_cannot_claim_the_gpu_of_another_machine() -> None:
    machines = {
        "host": [stored(gpu(B))],
        "other": [stored(gpu(A))],
        "one": [stored(gpu(A, "0000:00:05.0", Side.GUEST)), stored(gpu(B, "0000:00:06.0", Side.GUEST))],
        "two": [stored(gpu(A, "0000:00:05.0", Side.GUEST))],
    }
    seen = PhysicalUnits("c", machines, guests={"host": ["one", "two"]})
    claimed, own = seen.whole("one")
    assert own == seen.whole("host")[0]
    assert seen.whole("two") == [claimed]  # two guests of one host, which does not report it
    assert claimed not in seen.whole("other")


@pytest.mark.parametrize("names", [("guest", "host"), ("a-host", "guest")])
def test_guest_does_not_describe_the_gpu_of_a_host(names: tuple[str, str]) -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=f"gpu/{A}")
    of_guest = msgspec.structs.replace(mig, side=Side.GUEST)
    samples = {
        Side.HOST: [stored(gpu(A), gpu_mig_devices_max=7), stored(mig, mig_gpu_slices=3)],
        Side.GUEST: [
            stored(gpu(A, None, Side.GUEST), gpu_name="B300", gpu_mig_devices_max=7),
            stored(of_guest, mig_gpu_slices=7),
        ],
    }
    sides = {name: Side.GUEST if name == "guest" else Side.HOST for name in names}
    host = next(name for name, side in sides.items() if side is Side.HOST)
    seen = PhysicalUnits("c", {name: samples[side] for name, side in sides.items()}, guests={host: ["guest"]})
    (unit,) = seen.by_id.values()
    assert unit.model is None
    assert unit.claims == {("guest", f"gpu/{A}")}
    part = unit.parts["MIG-1"]
    assert (part.ratio, len(part.views), [one.machine for one in part.reported]) == (3 / 7, 2, [host])


def unread(*addresses: str) -> list[StoredSample]:
    return [stored(gpu(None, address, Side.PCI_ONLY), reader="pci") for address in addresses]


def test_gpu_unread_by_the_host_is_the_gpu_of_its_only_guest() -> None:
    seen = PhysicalUnits(
        "c",
        {"host": unread("0000:01:00.0"), "guest": [stored(gpu(A, "0000:00:05.0", Side.GUEST))]},
        guests={"host": ["guest"]},
    )
    assert seen.whole("host") == seen.whole("guest") == seen.at([("host", "gpu/pci/0000:01:00.0")])
    assert len(seen.whole("host")) == 1


def test_unread_gpus_match_the_number_seen_by_guests() -> None:
    machines = {
        "host": [stored(gpu(B, "0000:09:00.0")), *unread("0000:01:00.0", "0000:02:00.0", "0000:03:00.0")],
        "one": [stored(gpu(A, "0000:00:05.0", Side.GUEST))],
        "two": [stored(gpu("GPU-0000000c", "0000:00:05.0", Side.GUEST))],
    }
    seen = PhysicalUnits("c", machines, guests={"host": ["one", "two"]})
    assert len(seen.whole("host")) == 4
    assert set(seen.whole("host")) >= {*seen.whole("one"), *seen.whole("two")}
    # their slots are unknown, so a slot does not identify a guest's GPU
    slots = seen.at(("host", f"gpu/pci/0000:0{number}:00.0") for number in (1, 2, 3))
    assert len(slots) == 3
    assert not {*seen.whole("one"), *seen.whole("two")} & set(slots)


def test_guest_gpus_beyond_the_missing_ones_get_no_slot() -> None:
    machines = {
        "host": unread("0000:01:00.0"),
        "guest": [stored(gpu(A, "0000:00:05.0", Side.GUEST)), stored(gpu(B, "0000:00:06.0", Side.GUEST))],
    }
    seen = PhysicalUnits("c", machines, guests={"host": ["guest"]})
    assert len({*seen.whole("host"), *seen.whole("guest")}) == 3


def test_gpu_read_by_the_host_is_not_assigned_to_a_guest() -> None:
    machines = {
        "host": [stored(gpu(A)), *unread("0000:02:00.0")],
        "guest": [stored(gpu(A, "0000:00:05.0", Side.GUEST))],
    }
    seen = PhysicalUnits("c", machines, guests={"host": ["guest"]})
    assert len(seen.whole("host")) == 2
    assert seen.whole("guest")[0] in seen.whole("host")


def test_replaced_gpu_counts_once_and_a_swap_twice() -> None:
    seen = units({"m": [stored(gpu(A), at=1), stored(gpu(B), at=2)]})
    assert len(seen.whole("m")) == len(seen.by_id) == 1
    swapped = units(
        {
            "m": [stored(gpu(A), at=1), stored(gpu(B), at=2)],
            "n": [stored(gpu(B), at=1), stored(gpu(A), at=2)],
        }
    )
    assert swapped.whole("m") != swapped.whole("n")
    assert len(swapped.by_id) == 2


def test_mig_devices_are_parts_with_their_share() -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=f"gpu/{A}")
    bare = msgspec.structs.replace(mig, uuid="MIG-2")
    seen = units({"m": [stored(gpu(A), gpu_mig_devices_max=7), stored(mig, mig_gpu_slices=3), stored(bare)]})
    ((id_, part),) = seen.at([("m", "mig/MIG-1"), ("m", "mig/unknown")])
    assert part == "MIG-1"
    assert seen.whole("m") == [(id_, WHOLE)]
    assert {name: one.ratio for name, one in seen.by_id[id_].parts.items()} == {"MIG-1": 3 / 7, "MIG-2": None}


def test_devices_of_one_gpu_instance_share_its_slices() -> None:
    """A GPU instance of four slices is shared by two compute instances: 1c.4g and 3c.4g."""
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=f"gpu/{A}")
    other = msgspec.structs.replace(mig, uuid="MIG-2")
    seen = units(
        {
            "m": [
                stored(gpu(A), gpu_mig_devices_max=7),
                stored(mig, mig_gpu_slices=4, mig_compute_slices=1),
                stored(other, mig_gpu_slices=4, mig_compute_slices=3),
            ]
        }
    )
    (unit,) = seen.by_id.values()
    assert {name: one.ratio for name, one in unit.parts.items()} == {"MIG-1": 1 / 7, "MIG-2": 3 / 7}


def test_recreated_mig_device_has_the_share_of_each_profile() -> None:
    profiles = [(10, "1g.10gb"), (20, "1g.10gb+me"), (30, "1c.2g.20gb"), (40, "3g.40gb"), (50, "new form")]
    part = UnitPart(3 / 7, (), most=7, changes=ratio_changes(7, profiles))
    assert [part.ratio_at(at) for at in (0, 10, 29, 30, 40, 60)] == [1 / 7, 1 / 7, 1 / 7, 1 / 7, 3 / 7, 3 / 7]
    assert ratio_changes(7, profiles[:3]) == ratio_changes(7, ()) == ()
    assert UnitPart(2 / 7, ()).ratio_at(5) == 2 / 7


def test_list_index_counts_only_without_named_gpus() -> None:
    listed = View(kind=ViewKind.GPU, side=Side.HOST, instance="0")
    assert len(units({"m": [stored(listed, reader="netdata"), stored(gpu(A))]}).whole("m")) == 1
    assert len(units({"m": [stored(listed, reader="netdata")]}).whole("m")) == 1
    both = {"m": [stored(listed, reader="netdata"), stored(gpu(A))]}
    assert len(PhysicalUnits("c", both, left=[("m", listed.key)]).whole("m")) == 2


@pytest.mark.parametrize(("others", "expected"), [([], 1), ([B], 2)])
def test_slot_is_that_of_its_last_gpu_until_it_has_another_one(others: list[str], expected: int) -> None:
    """The GPU was bound to vfio in the slot before the host read and lost it."""
    seen = {"m": [*unread("0000:01:00.0"), *(stored(gpu(uuid)) for uuid in (A, *others))]}
    assert len(PhysicalUnits("c", seen, left=[("m", f"gpu/{A}")]).by_id) == expected


def test_vgpu_is_one_unit_from_both_sides() -> None:
    instance = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=A.removeprefix("GPU-"), parent=f"gpu/{B}")
    inside = stored(gpu(A, None, Side.GUEST), gpu_name="A40-8Q")
    seen = units({"host": [stored(gpu(B)), stored(instance)], "guest": [inside]})
    assert seen.at([("host", instance.key)]) == seen.whole("guest")
    assert seen.by_id[seen.whole("guest")[0][0]].model == "A40-8Q"
    assert len(seen.whole("host")) == 1
