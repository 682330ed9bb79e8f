"""Placements: instance type and region of a GPU over time."""

from gpufleet.fleet.usage.placements import MachinePlacement, placements_of
from gpufleet.fleet.usage.residence import UNBOUNDED
from gpufleet.fleet.usage.units import UnitPlacement

HOST = MachinePlacement(False, ((10, "p5"), (30, "p4")), ((10, "eu-1"),))
OTHER = MachinePlacement(False, ((0, "g6"),), ())
GUEST = MachinePlacement(True, ((0, "vm"),), ((0, "guest-region"),))


def test_text_holds_until_the_next_one_and_is_unknown_before() -> None:
    found = placements_of([("m", "gpu/0")], {"m": HOST}, {})
    assert found == (UnitPlacement(0, None, None), UnitPlacement(10, "p5", "eu-1"), UnitPlacement(30, "p4", "eu-1"))


def test_gpu_of_a_guest_has_the_place_of_its_host() -> None:
    found = placements_of([("g", "gpu/0"), ("m", "gpu/0")], {"m": HOST, "g": GUEST}, {})
    assert found[-1] == UnitPlacement(30, "p4", "eu-1")
    assert placements_of([("g", "gpu/0")], {"g": GUEST}, {}) == (UnitPlacement(0, "vm", "guest-region"),)


def test_gpu_of_a_guest_has_the_place_of_its_host_since_that_reports_it() -> None:
    """The host gets the GPU back from its guest. The view without a first report is that of the PCI bus."""
    views = [("g", "gpu/0"), ("m", "gpu/0"), ("m", "gpu/pci/0")]
    machines, first = {"m": HOST, "g": GUEST}, {("g", "gpu/0"): 5, ("m", "gpu/0"): 20}
    found = placements_of(views, machines, {}, first)
    assert [one for one in found if one.since < 20] == [UnitPlacement(0, "vm", "guest-region")]
    assert found[1:] == (UnitPlacement(20, "p5", "eu-1"), UnitPlacement(30, "p4", "eu-1"))
    assert placements_of(views, machines, {}, first | {("m", "gpu/0"): 4}) == placements_of(views, machines, {})


def test_moved_gpu_has_the_place_of_its_machine_at_the_time() -> None:
    stays = {("m", "gpu/0"): ((0, 20),), ("n", "gpu/0"): ((20, UNBOUNDED),)}
    found = placements_of([("m", "gpu/0"), ("n", "gpu/0")], {"m": HOST, "n": OTHER}, stays)
    assert found == (UnitPlacement(0, None, None), UnitPlacement(10, "p5", "eu-1"), UnitPlacement(20, "g6", None))


def test_machine_without_texts_has_no_place() -> None:
    assert placements_of([("x", "gpu/0")], {"m": HOST}, {}) == (UnitPlacement(0, None, None),)
