"""GPUs known only by their place in Netdata's list: shown where nothing better is, and never twice."""

from gpufleet.agent.unnamed import without_doubles
from gpufleet.model.machine import NVIDIA_VENDOR, PciFunction
from gpufleet.model.snapshot import Device
from gpufleet.model.view import Side, ViewKind


def device(key: str, side: Side = Side.HOST, pci: str | None = None) -> Device:
    return Device(key=key, kind=ViewKind.GPU, side=side, uuid=None, pci_address=pci, readings={})


def functions(*drivers: str | None) -> dict[str, PciFunction]:
    return {
        f"0000:0{n}:00.0": PciFunction(
            address=f"0000:0{n}:00.0", vendor=NVIDIA_VENDOR, device=0x2335, class_code=0x030200, driver=driver
        )
        for n, driver in enumerate(drivers)
    }


NETDATA = [device("n0"), device("n1")]
UNNAMED = frozenset({"n0", "n1"})


def keys(devices: list[Device]) -> list[str]:
    return [one.key for one in devices]


def test_another_reader_wins() -> None:
    assert keys(without_doubles([*NETDATA, device("real", pci="0000:00:00.0")], UNNAMED, functions("nvidia"))) == [
        "real"
    ]


def test_alone_they_are_shown() -> None:
    assert keys(without_doubles(NETDATA, UNNAMED, {})) == ["n0", "n1"]


def test_the_bus_shows_the_same_ones() -> None:
    bus = [device(f"b{n}", Side.PCI_ONLY, f"0000:0{n}:00.0") for n in range(3)]
    found = without_doubles([*NETDATA, *bus], UNNAMED, functions("nvidia", "nvidia", "vfio-pci"))
    assert keys(found) == ["n0", "n1", "b2"]


def test_the_bus_shows_another_number() -> None:
    bus = [device(f"b{n}", Side.PCI_ONLY, f"0000:0{n}:00.0") for n in range(3)]
    assert keys(without_doubles([*NETDATA, *bus], UNNAMED, functions("nvidia", "nvidia", "nvidia"))) == [
        "b0",
        "b1",
        "b2",
    ]


def test_a_gpu_that_is_handed_to_a_guest_is_another_one() -> None:
    bus = [device("b0", Side.PCI_ONLY, "0000:00:00.0")]
    assert keys(without_doubles([*NETDATA, *bus], UNNAMED, functions("vfio-pci"))) == ["n0", "n1", "b0"]


def test_without_netdata_nothing_changes() -> None:
    devices = [device("real"), device("b0", Side.PCI_ONLY, "0000:00:00.0")]
    assert without_doubles(devices, frozenset(), functions("nvidia")) == devices
