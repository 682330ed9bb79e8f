"""Which device stands behind an index, in which state it is, and what changed.

What the driver tells by itself, as events.
"""

import functools
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.event import Event, EventKind
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address
from gpufleet.readers.nvml.protocol import AttachedRecord, EventRecord

OK, LOST, RESET_REQUIRED, HUNG, UNREADABLE = "ok", "lost", "reset_required", "hung", "unreadable"
"""States of the catalogue's row `gpu_state`."""

_SICK = {LOST: "gpu_lost", RESET_REQUIRED: "gpu_reset_required"}


class Identity(NamedTuple):
    """What names a device; of a device that is named, `uuid` or `pci` is set. `pci_code` is why the latter is not."""

    uuid: str | None
    pci: str | None
    pci_code: int = 0


class Devices:
    """Memory over rounds and child processes: a sick device cannot say who it is.

    Attributes:
        shared: UUIDs and addresses that more than one device claimed in the newest round.
    """

    def __init__(self) -> None:
        self.shared: tuple[str, ...] = ()
        self._known: dict[str, Identity] = {}  # by PCI address, else by UUID: every device of the last rounds
        self._states: dict[str, str] = {}  # by view key
        self._sick: set[str] = set()  # view keys that were lost, or need a reset, and were not well since
        self._asked: dict[int, AttachedRecord] = {}  # of the round before, if every device of it could be named
        self._named: dict[int, Identity] = {}

    def identify(self, count: int, attached: Mapping[int, AttachedRecord]) -> Mapping[int, Identity]:
        """Return index to identity for every device that can be named.

        A device that was attached in this session is named by its index: NVML's order is fixed within one. For
        the others only a proof will do: if exactly one index is nameless and exactly one known device is not
        seen at another index, that is it. A UUID or an address that several devices claim names none of them.
        """
        if len(self._named) == count and attached == self._asked:
            return self._named
        told = {index: self._identity_of(record) for index, record in attached.items()}
        claims = Counter(name for identity in told.values() for name in (identity.uuid, identity.pci) if name)
        self.shared = tuple(name for name, claimants in claims.items() if claimants > 1)
        own = {index: self._own(identity) for index, identity in told.items()}
        named = {index: identity for index, identity in own.items() if identity.uuid or identity.pci}
        missing = [index for index in range(count) if index not in named]
        seen = {key_of(identity) for identity in named.values()}
        unseen = [identity for key, identity in self._known.items() if key not in seen]
        if len(missing) == 1 and len(unseen) == 1 and len(self._known) == count:
            named[missing[0]] = unseen[0]
        if not missing:
            self._known.clear()
        self._known |= {key_of(identity): identity for identity in named.values()}
        self._asked, self._named = (dict(attached), named) if not missing else ({}, {})
        return named

    def change(self, view: View, state: str, at: int, call: str) -> list[Event]:
        """Note the state a device is in now; return the events that this is."""
        key, before = view.key, self._states.get(view.key, OK)
        self._states[key] = state
        kinds = []
        if before != state and HUNG in (before, state):
            kinds.append("hang_started" if state == HUNG else "hang_ended")
        if state in _SICK and before != state:
            self._sick.add(key)
            kinds.append(_SICK[state])
        elif state == OK and key in self._sick:
            self._sick.remove(key)
            kinds.append("gpu_recovered")
        attributes = {"call": call} if call else {}
        return [Event(view=view, kind=kind, at=at, attributes=attributes) for kind in kinds]

    def state_of(self, view: View) -> str:
        """Return the state it was in last."""
        return self._states.get(view.key, OK)

    def _own(self, identity: Identity) -> Identity:
        """Return the identity without the names that others claim, too."""
        uuid, pci = (None if name in self.shared else name for name in (identity.uuid, identity.pci))
        return Identity(uuid, pci, identity.pci_code)

    def _identity_of(self, record: AttachedRecord) -> Identity:
        pci = address_of(record.pci)
        uuid = record.uuid or (self._known[pci].uuid if pci in self._known else None)
        return Identity(uuid, pci, record.pci_code)


def key_of(identity: Identity) -> str:
    """Return what a device is remembered by: its place on the bus, else its UUID."""
    return identity.pci or identity.uuid or ""


def address_of(bus_id: str) -> str | None:
    """Return NVML's `00000000:1B:00.0` as sysfs writes it, or None if it is no PCI address."""
    try:
        return normalise_pci_address(bus_id)
    except ValueError:
        return None


@functools.lru_cache(1024)  # the same few in every pass
def view_of(identity: Identity, index: int) -> View:
    """Return the view of a device as the driver of this machine sees it.

    A vGPU guest's own devices are `side: host` here too: the guest is the machine that reads them.
    """
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=identity.uuid, pci_address=identity.pci, index=index)


KINDS = {
    0x8: EventKind.XID,
    0x100: EventKind.MIG_CHANGED,
    0x200: EventKind.ECC_STORM,
    0x400: EventKind.MEMORY_RETIRED,
    0x800: EventKind.MEMORY_NOT_RETIRED,
    0x1000: EventKind.POISON,
    0x2000: EventKind.FATAL_POISON,
    0x4000: EventKind.GPU_UNAVAILABLE,
}
"""nvmlEventType* (nvml.h) to kinds."""

NO_INSTANCE = 0xFFFFFFFF
SOURCE = "nvml"


def map_event(record: EventRecord, attached: AttachedRecord | None, shared: tuple[str, ...]) -> Event | None:
    """Return the event, or None for a type that none was asked for.

    Args:
        record: what the driver told.
        attached: which device stands behind its index, if that is known.
        shared: names that several GPUs claim: they name none of them.
    """
    kind = KINDS.get(record.kind)
    if kind is None:
        return None
    attributes = {"sources": SOURCE}
    for name, number in (("gpu_instance", record.gpu_instance), ("compute_instance", record.compute_instance)):
        if number != NO_INSTANCE:
            attributes[name] = str(number)
    code = record.data if kind is EventKind.XID else 0
    return Event(view=_view(record, attached, shared), kind=kind, code=code, at=record.at, attributes=attributes)


def is_watched(code: int | None) -> int | Absent:
    """Return 1 if the driver tells of events of a GPU, 0 if it does not; `code` is that of the registration."""
    return Absent(Reason.NO_DATA, "nvmlDeviceRegisterEvents") if code is None else int(code == 0)


def _view(record: EventRecord, attached: AttachedRecord | None, shared: tuple[str, ...]) -> View | None:
    if attached is None:
        return None
    uuid = None if attached.uuid in shared else attached.uuid or None
    pci = address_of(attached.pci)
    identity = Identity(uuid, None if pci in shared else pci)
    return view_of(identity, record.index) if identity.uuid or identity.pci else None
