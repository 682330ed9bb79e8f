"""GPUs seen on the PCI bus only: the reason of their absent readings, and functions that are not GPUs."""

import pytest

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.collect.pci import PCI_ONLY_METRICS, pci_samples
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.machine import PciFunction
from gpufleet.model.snapshot import Snapshot
from tests.support.passes import World, function, gpu

ALL = (Lane.STATIC, Lane.SLOW, Lane.FAST)


def snap(world: World) -> Snapshot:
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})


def reason_of(world: World) -> tuple[Reason | None, str]:
    (device,) = snap(world).devices
    assert tuple(device.readings) == PCI_ONLY_METRICS
    (reason,) = {(reading.absent, reading.detail) for reading in device.readings.values()}
    return reason


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ("vfio-pci", (Reason.BOUND_TO_VFIO, "passed through to a guest")),
        (None, (Reason.NO_DRIVER, "no kernel driver is bound")),
        ("nouveau", (Reason.OTHER_DRIVER, "bound to the kernel driver nouveau")),
        ("nvidia", (Reason.DRIVER_ERROR, "the driver does not list this GPU")),
    ],
)
def test_bound_driver_is_the_reason_while_nvml_works(driver: str | None, reason: tuple[Reason, str]) -> None:
    world = World({"host": ALL, "nvml": ALL})
    world.passed("nvml", Lane.FAST)
    world.passed("host", Lane.SLOW, inventory=(function(0, driver),))
    assert reason_of(world) == reason


@pytest.mark.parametrize(
    "failure",
    [
        Absent(Reason.NO_LIBRARY, "NVML Shared Library Not Found"),
        Absent(Reason.DRIVER_MISMATCH, "Driver/library version mismatch"),
        Absent(Reason.NO_SUPPORTED_GPU, "no devices"),
        Absent(Reason.TIMEOUT, "nvmlInitWithFlags"),
    ],
)
def test_reader_failure_is_the_reason_without_its_text(failure: Absent) -> None:
    world = World({"host": ALL, "nvml": ALL})
    world.failed("nvml", Lane.FAST, failure)
    world.clock.advance(7)  # the listing has another time than the failed pass
    world.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"),))
    reason, detail = reason_of(world)
    assert reason is failure.reason
    assert failure.detail not in detail


@pytest.mark.parametrize(("driver", "reason"), [(None, Reason.NO_DRIVER), ("vfio-pci", Reason.BOUND_TO_VFIO)])
def test_binding_is_the_reason_for_any_other_device(driver: str | None, reason: Reason) -> None:
    world = World({"host": ALL, "nvml": ALL})
    world.failed("nvml", Lane.FAST, Absent(Reason.NO_LIBRARY, "not found"))
    world.passed("host", Lane.SLOW, inventory=(function(0, driver),))
    assert reason_of(world)[0] is reason


def test_device_is_not_collected_before_the_first_nvml_pass() -> None:
    without = World({"host": ALL})
    without.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"),))
    assert reason_of(without) == (Reason.NOT_COLLECTED, "the nvml reader is not enabled")
    before = World({"host": ALL, "nvml": ALL})
    before.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"),))
    assert reason_of(before)[0] is Reason.NOT_COLLECTED


def test_old_inventory_makes_readings_stale() -> None:
    world = World({"host": ALL, "nvml": ALL})
    world.passed("host", Lane.SLOW, inventory=(function(0, "vfio-pci"),))
    world.clock.advance(181)
    assert reason_of(world)[0] is Reason.STALE


@pytest.mark.parametrize(
    "other",
    [
        function(0, "nvidia", physical_function="0000:0f:00.0"),
        function(0, "amdgpu", vendor=0x1002),
        function(0, "snd_hda_intel", class_code=0x040300),
        function(0, "nvidia", class_code=0x068000),
    ],
)
def test_function_that_is_not_an_nvidia_gpu_is_no_device(other: PciFunction) -> None:
    world = World({"host": ALL, "nvml": ALL})
    world.passed("host", Lane.SLOW, inventory=(other,))
    assert snap(world).devices == ()
    assert snap(world).host.pci == (other,)


@pytest.mark.parametrize("class_code", [0x030000, 0x030200, 0x038000])
def test_every_display_class_is_a_gpu(class_code: int) -> None:
    world = World({"host": ALL})
    world.passed("host", Lane.SLOW, inventory=(function(0, None, class_code=class_code),))
    assert len(snap(world).devices) == 1


def test_device_of_a_reader_is_listed_once() -> None:
    world = World({"host": ALL, "nvml": ALL})
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": 1.0}))
    world.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"), function(1, "vfio-pci")))
    snapshot = snap(world)
    assert [(device.side, device.uuid) for device in snapshot.devices] == [("host", gpu(0).uuid), ("pci_only", None)]
    assert snapshot.aggregate.coverage == "1 of 2 devices"


def test_every_metric_but_the_address_is_absent() -> None:
    gpu = [metric for metric in CATALOGUE.values() if Subject.GPU in metric.subjects and metric.role is None]
    expected = {metric.name for metric in gpu if not metric.dims}
    assert set(PCI_ONLY_METRICS) == expected - {"gpu_pci_address"}


def test_bus_only_devices_are_sent_as_samples_with_their_reason() -> None:
    world = World({"host": ALL})
    world.passed("host", Lane.SLOW, inventory=(function(0, "vfio-pci"),))
    (sample,) = pci_samples(snap(world), 77)
    assert (sample.reader, sample.lane, sample.measured_at) == ("pci", Lane.SLOW, 77)
    assert sample.view is not None
    assert sample.view.key == snap(world).devices[0].key == "gpu/pci/0000:10:00.0"
    reason = Absent(Reason.BOUND_TO_VFIO, "passed through to a guest")
    assert sample.values == {**dict.fromkeys(PCI_ONLY_METRICS, reason), "gpu_pci_address": "0000:10:00.0"}
