"""Holder state of a device, by the holdings of all views of its machine. Pure: agent and hub use the same rules."""

from collections.abc import Mapping, Sequence

from gpufleet.fleet.attribution.evidence import OBSERVING, SHARED
from gpufleet.model.holdings import DeviceHolders, HolderState, Holding, HoldingVerdict
from gpufleet.model.view import View

NOT_CONFIRMED = "the newest answer of its source lacks the holder"
NO_SOURCE = "no kubelet, SLURM or libvirt on this machine reports holders"


def device_holders(holdings: Sequence[Holding], why_unknown: str = "") -> DeviceHolders:
    """Return the holders of a device. They are not all known if a source has a problem and the device can be shared.

    Args:
        holdings: present holdings of the device, at least one.
        why_unknown: why other holders of it may be missing, or empty.
    """
    ordered = tuple(sorted(holdings, key=lambda one: (one.holder.kind, one.holder.id, one.container)))
    current = [one for one in ordered if one.verdict is not HoldingVerdict.UNKNOWN]
    is_exclusive = any(one.share not in SHARED and not OBSERVING.issuperset(one.methods) for one in current)
    if not current or (why_unknown and why_unknown != NO_SOURCE and not is_exclusive):
        return DeviceHolders(state=HolderState.UNKNOWN, detail=why_unknown or NOT_CONFIRMED, holdings=ordered)
    conflicting = [one for one in current if one.verdict is HoldingVerdict.CONFLICT]
    detail = "; ".join(
        [f"{one.holder.kind} {one.holder.name or one.holder.id} by {', '.join(one.methods)}" for one in conflicting]
    )
    return DeviceHolders(state=HolderState.HELD, detail=detail, holdings=ordered)


def hidden_holders(held: Mapping[str, View | None], listed: Mapping[str, View]) -> dict[str, str]:
    """Return the views that a holder of another view may have, each with the reason: without holders, they are unknown.

    These are parts of a GPU that is held as a whole. While a held view is not listed (its MIG device was removed, its
    GPU changed the driver), they are also the other views of its GPU, or all views if its GPU is not known.

    Args:
        held: key of each held view to the view as last listed, or None if it was never listed.
        listed: key to view of each present view of the machine.
    """
    hidden: dict[str, str] = {}
    for gone in held.keys() - listed.keys():
        known = held[gone]
        same = listed if known is None else _same_gpu(known, listed)
        hidden |= dict.fromkeys(same, f"{gone} is held and not listed")
    for key, view in listed.items():
        if view.parent in held:
            hidden[key] = f"{view.parent} is held as a whole"
    return hidden


def _same_gpu(gone: View, listed: Mapping[str, View]) -> list[str]:
    """Return the keys of the views of the GPU that a view was, or was a part of."""
    gpu = gone.parent or gone.key
    return [
        key
        for key, view in listed.items()
        if gpu in (key, view.parent) or (gone.pci_address and gone.pci_address == view.pci_address)
    ]
