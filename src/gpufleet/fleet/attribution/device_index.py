"""Resolution of device names of holder sources to views of the machine. Pure.

A name resolves only by identity: UUID, PCI address, mediated device, device node, or MIG instance of an identified GPU.
A position in a list never resolves.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gpufleet.model.view import View, ViewKind, normalise_pci_address, normalise_uuid
from gpufleet.ports.holder import DeviceName, Naming


class IndexedDevice(NamedTuple):
    """A view with the identities that are not part of its key.

    Attributes:
        view: the view.
        minor: N of its device node /dev/nvidiaN, or None.
        mdev: UUID of its mediated device, or None.
    """

    view: View
    minor: int | None = None
    mdev: str | None = None


class ResolvedName(NamedTuple):
    """A device name and the view that it identified when its device was last listed."""

    name: DeviceName
    view: View


class UnresolvedName(NamedTuple):
    """A device name that identifies no view, or more than one.

    Attributes:
        name: the name.
        detail: why it does not resolve.
        is_ambiguous: whether it identifies several views.
    """

    name: DeviceName
    detail: str
    is_ambiguous: bool = False


class DeviceIndex:
    """Views of a machine by each of their identities."""

    def __init__(self, devices: Iterable[IndexedDevice]) -> None:
        """Take the views."""
        self._by_identity: dict[tuple[Naming, str], set[str]] = {}
        self.views: dict[str, View] = {}
        known = list(devices)
        for device in known:
            self.views[device.view.key] = device.view
        minors = {device.view.key: device.minor for device in known}
        for device in known:
            view, key = device.view, device.view.key
            self._add(Naming.VIEW, key, key)
            if view.uuid:
                self._add(Naming.UUID, _folded(view.uuid), key)
            if view.pci_address and view.kind is ViewKind.GPU:
                self._add(Naming.PCI, view.pci_address, key)
            if device.mdev and (mdev := normalise_uuid(device.mdev)):
                self._add(Naming.MDEV, mdev, key)
            if device.minor is not None and view.kind is ViewKind.GPU:
                self._add(Naming.MINOR, str(device.minor), key)
            if view.kind is ViewKind.MIG and view.instance and view.parent:
                self._add_instance(view, key, minors.get(view.parent))

    @property
    def leaves(self) -> list[str]:
        """Keys of the views that contain no other view: a GPU that is split into MIG devices or vGPUs is left out."""
        parents = {view.parent for view in self.views.values()}
        return [key for key in self.views if key not in parents]

    def resolve(self, name: DeviceName) -> str | UnresolvedName:
        """Return the key of the only view that the name identifies."""
        keys = self._by_identity.get((name.naming, _normalised(name)), set())
        if len(keys) == 1:
            return next(iter(keys))
        shown = name.original or name.text
        if name.naming is Naming.UNRESOLVED:
            return UnresolvedName(name, f"{shown!r} identifies no device by itself")
        if not keys:
            return UnresolvedName(name, f"no device of this machine has the {name.naming} {shown!r}")
        detail = f"{shown!r} identifies several devices: {', '.join(sorted(keys))}"
        return UnresolvedName(name, detail, is_ambiguous=True)

    def _add(self, naming: Naming, text: str, key: str) -> None:
        self._by_identity.setdefault((naming, text), set()).add(key)

    def _add_instance(self, view: View, key: str, minor: int | None) -> None:
        """Add a MIG device by its GPU and both forms of its instance: `gi` and `gi/ci`."""
        instance = (view.instance or "").split("@")[0]
        parent = self.views.get(view.parent or "")
        for text in (instance, instance.split("/")[0]):
            if parent is not None and parent.uuid:
                self._add(Naming.MIG_OF_GPU, f"{_folded(parent.uuid)}/{text}", key)
            if minor is not None:
                self._add(Naming.MIG_OF_MINOR, f"{minor}/{text}", key)


def _normalised(name: DeviceName) -> str:
    """Return the text of a name as the index has it, or an empty text if it is malformed."""
    match name.naming:
        case Naming.PCI:
            try:
                return normalise_pci_address(name.text)
            except ValueError:
                return ""
        case Naming.MDEV:
            return normalise_uuid(name.text) or ""
        case Naming.UUID | Naming.MIG_OF_GPU:
            return _folded(name.text)
        case _:
            return name.text


def _folded(uuid: str) -> str:
    """Write a UUID in one case: drivers and plugins differ in it."""
    return uuid.lower()
