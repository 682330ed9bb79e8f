"""Views: a device as one side sees it."""

import enum
import uuid
from collections.abc import Iterable, Sequence

import msgspec


class ViewKind(enum.StrEnum):
    """Kind of a device."""

    GPU = "gpu"
    MIG = "mig"
    VGPU = "vgpu"


class Side(enum.StrEnum):
    """Side from which a device is seen."""

    HOST = "host"  # by the driver of the machine that holds the physical device
    GUEST = "guest"  # from inside a virtual machine
    VGPU_HOST = "vgpu_host"  # a guest's vGPU instance, as the host's vGPU manager sees it
    PCI_ONLY = "pci_only"  # on the PCI bus, but not readable by a driver of this machine


class Scope(enum.StrEnum):
    """Subject of a reading in a response."""

    OWN = "own"
    PARENT = "parent"  # the device that contains this one (board power for a MIG tenant)
    SHARED_DEVICE = "shared_device"  # a whole GPU that several holders share


SLOT_PREFIX = f"{ViewKind.GPU}/pci/"
"""Prefix of the view keys of GPUs that are identified by their PCI address only."""


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Device as one side sees it, on the observing machine.

    At least one of `uuid`, `pci_address` and `instance` is set.

    Attributes:
        kind: kind of device.
        side: side that sees it.
        uuid: the driver's UUID (`GPU-...`, `MIG-...`), or None if no driver reports it.
        pci_address: `dddd:bb:dd.f` in lower case with a four-digit domain, as sysfs writes it.
        instance: the driver's number of a vGPU instance, or `gi/ci` of a MIG device (ids of its GPU instance and
            compute instance), followed by `@` and its GPU's address if no UUID is known. Numbers are reused, so they
            identify the view only if there is no UUID.
        parent: key of the view that contains this one.
        index: the driver's position number in this round. It changes over reboots: for display
            only, never for identity.
    """

    kind: ViewKind
    side: Side
    uuid: str | None = None
    pci_address: str | None = None
    instance: str | None = None
    parent: str | None = None
    index: int | None = None

    @property
    def key(self) -> str:
        """Identity within the observing machine: `kind/uuid`, else `kind/pci/address`, else instance.

        `index`, `side` and `parent` are not part of it.
        """
        # Concatenation: formatting an enumeration is four times slower, and this runs for every device of every batch.
        if self.uuid:
            return self.kind + "/" + self.uuid
        if self.pci_address:
            return self.kind + "/pci/" + self.pci_address
        return self.kind + "/instance/" + str(self.instance)

    @property
    def unnamed_key(self) -> str:
        """Key of the device for a reader that does not know its UUID."""
        return self.key if self.pci_address is None else self.kind + "/pci/" + self.pci_address

    @property
    def named(self) -> bool:
        """Return whether the device has an identity of its own, not only a position in a list."""
        return bool(self.uuid or self.pci_address)


def view_of_key(key: str) -> View:
    """Return the view with a key, without anything else that is known about it.

    Raises:
        ValueError: if it is no key of a view.
    """
    kind, _, name = key.partition("/")
    group, _, rest = name.partition("/")
    side = Side.VGPU_HOST if kind == ViewKind.VGPU else Side.HOST
    if group == "pci":
        return View(kind=ViewKind(kind), side=side, pci_address=rest)
    if group == "instance":
        return View(kind=ViewKind(kind), side=side, instance=rest)
    return View(kind=ViewKind(kind), side=side, uuid=name)


def normalise_pci_address(address: str) -> str:
    """Write a PCI address as sysfs does: lower case, four-digit domain.

    NVML writes `00000000:1B:00.0` with an eight-digit domain.

    Raises:
        ValueError: if it is not `domain:bus:device.function`.
    """
    parts = address.strip().lower().split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    if len(parts) != 3 or "." not in parts[2]:
        raise ValueError(f"{address!r} is not a PCI address (domain:bus:device.function)")
    device, function = parts[2].split(".", 1)
    return f"{int(parts[0], 16):04x}:{int(parts[1], 16):02x}:{int(device, 16):02x}.{int(function, 16):x}"


def normalise_uuid(text: str) -> str | None:
    """Write the UUID of a machine as `8-4-4-4-12` hexadecimal digits in lower case, or None if it is not a UUID."""
    try:
        return str(uuid.UUID(text.strip()))
    except ValueError:
        return None


def bare_uuid(name: str) -> str:
    """Return a device's UUID as `normalise_uuid`, without `GPU-`; other names are returned unchanged.

    A guest's driver adds the prefix to the UUID of a vGPU instance, which the host shows without it.
    """
    return normalise_uuid(name.removeprefix("GPU-")) or name


class ViewList(list[View]):
    """Views with their keys, computed once. Must not be modified.

    Attributes:
        keys: one per view.
        kinds: kinds of all views.
        has_doubles: whether two views have the same key.
    """

    __slots__ = ("has_doubles", "keys", "kinds")

    def __init__(self, views: Iterable[View]) -> None:
        super().__init__(views)
        self.keys = tuple(view.key for view in self)
        self.kinds = frozenset(view.kind for view in self)
        self.has_doubles = len(set(self.keys)) < len(self.keys)


def keys_of(views: Sequence[View]) -> Sequence[str]:
    """Return the keys of views."""
    return views.keys if isinstance(views, ViewList) else [view.key for view in views]


def kinds_of(views: Sequence[View]) -> frozenset[ViewKind]:
    """Return the kinds of views."""
    return views.kinds if isinstance(views, ViewList) else frozenset(view.kind for view in views)
