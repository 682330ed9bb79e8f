"""Views that a holder of another view may have."""

from gpufleet.fleet.attribution.device_states import hidden_holders
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_view

FIRST, SECOND = gpu_view(1), gpu_view(2)
PART, SIBLING, OTHER = (
    View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{number}", instance=f"{number}/0", parent=gpu.key)
    for number, gpu in ((7, FIRST), (8, FIRST), (9, SECOND))
)


def keyed(*views: View) -> dict[str, View]:
    return {view.key: view for view in views}


def test_parts_of_a_held_gpu_are_hidden() -> None:
    listed = keyed(FIRST, PART, SIBLING, SECOND, OTHER)
    assert hidden_holders(keyed(FIRST), listed).keys() == {PART.key, SIBLING.key}
    assert hidden_holders(keyed(PART), listed) == {}


def test_removed_part_that_is_held_hides_its_gpu() -> None:
    listed = keyed(FIRST, SIBLING, SECOND, OTHER)
    assert hidden_holders(keyed(PART), listed).keys() == {FIRST.key, SIBLING.key}


def test_gpu_with_another_driver_is_found_by_its_pci_address() -> None:
    bound = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-5", pci_address="0000:3b:00.0")
    unbound = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:3b:00.0")
    assert hidden_holders(keyed(bound), keyed(unbound, SECOND)).keys() == {unbound.key}


def test_view_that_was_never_listed_hides_all_views() -> None:
    listed = keyed(FIRST, SECOND)
    assert hidden_holders({PART.key: None}, listed).keys() == listed.keys()
