"""GPUs by PCI address."""

import msgspec
import pytest

from gpufleet.agent.events.occupants import Occupants
from gpufleet.fleet.device_events import MAX_DEVICES
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.view import View, ViewKind
from tests.support.passes import gpu

UNNAMED = msgspec.structs.replace(gpu(0), uuid=None)
OTHER = msgspec.structs.replace(gpu(0), uuid="GPU-new")


def sample(view: View | None, at: int) -> Sample:
    return Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values={})


def occupants(*samples: Sample) -> Occupants:
    known = Occupants()
    for one in samples:
        known.note(one)
    return Occupants(known.known)


@pytest.mark.parametrize(
    ("view", "at", "expected"),
    [
        (UNNAMED, 15, gpu(0)),
        (UNNAMED, 5, gpu(0)),
        (UNNAMED, 25, OTHER),
        (OTHER, 15, OTHER),
        (gpu(0), 25, gpu(0)),
        (msgspec.structs.replace(gpu(1), uuid=None), 25, msgspec.structs.replace(gpu(1), uuid=None)),
        (View(kind=ViewKind.MIG, side=UNNAMED.side, pci_address=gpu(0).pci_address), 25, None),
    ],
    ids=["in its time", "before it", "after a swap", "named", "named, of before", "nothing known", "of another kind"],
)
def test_gpu_at_an_address(view: View, at: int, expected: View | None) -> None:
    known = occupants(sample(None, 5), sample(gpu(0), 10), sample(UNNAMED, 12), sample(gpu(0), 14), sample(OTHER, 20))
    assert known.key(view, at) == (expected or view).key


def test_gpu_that_another_one_replaced() -> None:
    known = occupants(sample(gpu(0), 10), sample(OTHER, 20))
    assert known.is_replaced(UNNAMED, 15)
    assert not known.is_replaced(UNNAMED, 25)
    assert not known.is_replaced(gpu(0), 15)
    assert not occupants(sample(gpu(0), 10)).is_replaced(UNNAMED, 5)


@pytest.mark.parametrize(
    ("boots", "views", "uuid"),
    [
        (["b1"], [UNNAMED], gpu(0).uuid),
        (["b1"], [], None),
        (["b1"], [UNNAMED, OTHER], None),
        (["b1"], [OTHER, UNNAMED], OTHER.uuid),
        (["b1", "b2"], [UNNAMED], None),
        (["b1", "b2", "b2"], [UNNAMED], None),
        (["b1", "b2"], [gpu(0), UNNAMED], gpu(0).uuid),
        ([""], [UNNAMED], None),
    ],
    ids=[
        "lost",
        "not read",
        "named",
        "exchanged, lost",
        "boot",
        "start after a boot",
        "read since a boot",
        "boot unknown",
    ],
)
def test_gpu_that_a_reader_cannot_name_is_that_of_this_boot(
    boots: list[str], views: list[View], uuid: str | None
) -> None:
    known = Occupants(boot=boots[0])
    known.note(sample(gpu(0), 10))
    for boot in boots:
        known = Occupants(known.known, boot=boot)
    for view in views:
        known.note(sample(view, 20))
    assert known.named(UNNAMED).uuid == uuid
    assert known.named(OTHER) == OTHER


def test_number_of_addresses_is_bounded() -> None:
    """A guest sends its own addresses."""
    views = [msgspec.structs.replace(gpu(0), pci_address=f"{n:04x}:01:00.0") for n in range(MAX_DEVICES + 1)]
    known = occupants(*(sample(view, 1) for view in views))
    assert list(known.known) == [view.pci_address for view in views[1:]]
