"""GPUs known only by their list index: shown if no other reader names them, and never twice."""

import pytest

from gpufleet.fleet.devices import GpuListing, duplicate_gpus
from gpufleet.model.absence import Reason
from gpufleet.model.reading import Reading

LISTED = [GpuListing("n0", unnamed=True), GpuListing("n1", unnamed=True)]


def bus(*why: Reason) -> list[GpuListing]:
    return [GpuListing(f"b{number}", unnamed=False, why=one) for number, one in enumerate(why)]


def test_address_of_a_gpu_on_the_bus_is_no_value() -> None:
    readings = {"gpu_pci_address": Reading(value="0000:41:00.0"), "gpu_power_watts": Reading(absent=Reason.NO_DRIVER)}
    assert GpuListing.of("b0", named=True, readings=readings).why is Reason.NO_DRIVER


def test_named_gpu_replaces_unnamed_gpus() -> None:
    assert duplicate_gpus([*LISTED, GpuListing("real", unnamed=False)]) == {"n0", "n1"}


def test_unnamed_gpus_alone_are_shown() -> None:
    assert duplicate_gpus(LISTED) == frozenset()


@pytest.mark.parametrize("count", [1, 2])
def test_stale_unnamed_gpus_alone_are_shown(count: int) -> None:
    stale = [GpuListing(one.key, unnamed=True, why=Reason.STALE) for one in LISTED[:count]]
    assert duplicate_gpus([*stale, *LISTED[count:]]) == frozenset()


def test_stale_unnamed_gpus_are_duplicates_of_stale_bus_devices() -> None:
    stale = [GpuListing(one.key, unnamed=True, why=Reason.STALE) for one in LISTED]
    assert duplicate_gpus([*stale, *bus(Reason.STALE, Reason.STALE)]) == {"n0", "n1"}


def test_partly_stale_unnamed_gpus_replace_bus_devices() -> None:
    one, other = LISTED
    stale = GpuListing(other.key, unnamed=True, why=Reason.STALE)
    assert duplicate_gpus([one, stale, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY)]) == {"b0", "b1"}


def test_equally_many_bus_devices_are_duplicates() -> None:
    assert duplicate_gpus([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.BOUND_TO_VFIO)]) == {"b0", "b1"}


def test_different_number_of_bus_devices_replaces_unnamed_gpus() -> None:
    assert duplicate_gpus([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.NO_LIBRARY)]) == {"n0", "n1"}


def test_bus_devices_without_the_driver_are_other_gpus() -> None:
    assert duplicate_gpus([*LISTED, *bus(Reason.BOUND_TO_VFIO, Reason.NO_DRIVER)]) == frozenset()


def test_named_gpus_and_bus_devices_are_no_duplicates() -> None:
    assert duplicate_gpus([GpuListing("real", unnamed=False), *bus(Reason.NO_LIBRARY)]) == frozenset()
