"""GPUs that a fallback reader knows only by their place in a list: shown where nothing better is. Pure."""

from collections.abc import Mapping, Sequence

from gpufleet.agent.pci import NVIDIA
from gpufleet.model.machine import PciFunction
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import Sample
from gpufleet.model.snapshot import Device
from gpufleet.model.view import Side, View, ViewKind


def is_unnamed(view: View, samples: Sequence[Sample]) -> bool:
    """Tell whether a view is a GPU by its place in Netdata's list only."""
    told_by_netdata = all(sample.provenance is Provenance.HOST_NETDATA for sample in samples)
    return view.kind is ViewKind.GPU and told_by_netdata and view.uuid is None and view.pci_address is None


def without_doubles(
    devices: Sequence[Device], unnamed: frozenset[str], functions: Mapping[str, PciFunction]
) -> list[Device]:
    """Return the devices with no GPU shown twice.

    A place in a list names nothing, so these GPUs are never joined to others. They are left out where another reader
    shows GPUs. Where only the PCI bus shows them, and as many as NVIDIA's driver is bound to, they are the same ones,
    and the bus's rows are left out; where the numbers differ nobody can tell which is which, and the bus's rows stay.

    Args:
        devices: all of them.
        unnamed: keys of those that are known by their place only.
        functions: the bus's functions, by address.
    """
    if not unnamed:
        return list(devices)
    gpus = [device for device in devices if device.kind is ViewKind.GPU and device.key not in unnamed]
    bus = {device.key for device in gpus if device.side is Side.PCI_ONLY and _is_driven(device, functions)}
    read = any(device.side is not Side.PCI_ONLY for device in gpus)
    left_out = unnamed if read or (bus and len(bus) != len(unnamed)) else bus
    return [device for device in devices if device.key not in left_out]


def _is_driven(device: Device, functions: Mapping[str, PciFunction]) -> bool:
    function = functions.get(device.pci_address or "")
    return function is not None and function.driver == NVIDIA
