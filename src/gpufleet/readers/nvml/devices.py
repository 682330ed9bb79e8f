"""Identity and state of the devices, their changes as events, and the events of the driver."""

import functools
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpufleet.fleet.device_events import DeviceStates
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.event import Event, EventKind
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address
from gpufleet.readers.nvml.protocol import AttachedRecord, DriverEventRecord

SOURCE = "nvml"


class Identity(NamedTuple):
    """Identity of a device.

    Attributes:
        uuid, pci: UUID and PCI address; an identified device has at least one of them.
        pci_code: return code of the query for `pci`.
        has_index: whether the device is known to be at its index.
        has_code: whether the return code at its index is known to be its own.
    """

    uuid: str | None
    pci: str | None
    pci_code: int = 0
    has_index: bool = True
    has_code: bool = True


class DeviceTracker:
    """Identities and states of devices across rounds and child processes, for devices that fail to identify themselves.

    Attributes:
        shared: UUIDs and addresses that more than one device reported in the newest round.
    """

    def __init__(self) -> None:
        self.shared: tuple[str, ...] = ()
        self._known: dict[str, Identity] = {}  # by PCI address, else by UUID: all devices of the last rounds
        self._states = DeviceStates(SOURCE)
        self._session: int | None = None
        self._uuids: dict[str, str] = {}  # by PCI address, as reported in this session
        self._attached: dict[int, AttachedRecord] = {}  # of the previous round, if all its devices were identified
        self._identified: dict[int, Identity] = {}

    def identify(
        self,
        count: int,
        attached: Mapping[int, AttachedRecord],
        *,
        session: int | None = None,
        bound: Collection[str] = (),
        codes: Mapping[int, int] = {},
    ) -> Mapping[int, Identity]:
        """Return index to identity for every device that can be identified.

        A device that was attached in this session is identified by its index: NVML's order is fixed within a session.
        A missing UUID is that of the same address in this session: the driver holds the device, so it is the same card.
        Any other device is identified by elimination only: exactly one index is unidentified, and exactly one known
        device that the kernel's driver still holds is not at another index. Without such a device, it is named by the
        only address of the kernel's driver that is left. Several devices that failed are identified together, by as
        many devices or addresses: only their indices are unknown, and their codes if these differ. A UUID or an address
        that several devices report identifies none of them.

        Args:
            count: number of devices of the driver.
            attached: index to what the device reports about itself.
            session: id of the child process; a new one is a new session of NVML.
            bound: PCI addresses of the GPUs that the kernel's driver holds; empty if unknown.
            codes: index to return code for every device that failed. A device without permission has not failed.
        """
        if session != self._session:
            self._session = session
            self._uuids.clear()
            self._attached, self._identified = {}, {}
        if len(self._identified) == count and attached == self._attached:
            return self._identified
        reported = {index: self._identity_of(record) for index, record in attached.items()}
        claims = Counter(name for identity in reported.values() for name in (identity.uuid, identity.pci) if name)
        self.shared = tuple(name for name, claimants in claims.items() if claimants > 1)
        own = {index: self._without_shared(identity) for index, identity in reported.items()}
        identified = {index: identity for index, identity in own.items() if identity.uuid or identity.pci}
        missing = [index for index in range(count) if index not in identified]
        seen = {key_of(identity) for identity in identified.values()}
        unseen = [identity for key, identity in self._known.items() if key not in seen]
        present = [identity for identity in unseen if not bound or not identity.pci or identity.pci in bound]
        left = set(bound) - {identity.pci for identity in identified.values()}
        failed = [codes[index] for index in missing if index in codes]
        if len(missing) == 1 or len(failed) == len(missing):
            found: list[Identity] = []
            if len(present) == len(missing) and len(self._known) - len(unseen) + len(missing) == count:
                found = present
            elif len(left) == len(missing) and len(bound) == count:
                found = [self._known.get(address, Identity(None, address)) for address in sorted(left)]
            has_index, has_code = len(found) == 1, len(set(failed)) <= 1
            together = [one._replace(has_index=has_index, has_code=has_code) for one in found]
            identified |= dict(zip(missing, together, strict=False))
        if not missing:
            self._known.clear()
        self._known |= {key_of(one): one._replace(has_index=True, has_code=True) for one in identified.values()}
        self._uuids |= {identity.pci: identity.uuid for identity in reported.values() if identity.pci and identity.uuid}
        self._attached, self._identified = (dict(attached), identified) if not missing else ({}, {})
        return identified

    def change(self, view: View, state: str, at: int, call: str) -> list[Event]:
        """Record the current state of a device; return the resulting events."""
        return self._states.change(view, state, at, call)

    def unproven_state(self, view: View) -> str:
        """Return the state of a device that answers a pass without the readings that prove its state."""
        return self._states.unproven_state(view)

    def state_of(self, view: View) -> str:
        """Return the last state of a device, `ok` by default."""
        return self._states.state_of(view)

    def _without_shared(self, identity: Identity) -> Identity:
        """Return the identity without a UUID or address that other devices report, too."""
        uuid, pci = (None if name in self.shared else name for name in (identity.uuid, identity.pci))
        return Identity(uuid, pci, identity.pci_code)

    def _identity_of(self, record: AttachedRecord) -> Identity:
        pci = address_of(record.pci)
        return Identity(record.uuid or self._uuids.get(pci or ""), pci, record.pci_code)


def key_of(identity: Identity) -> str:
    """Return the key of a device: its PCI address, else its UUID."""
    return identity.pci or identity.uuid or ""


def address_of(bus_id: str) -> str | None:
    """Return NVML's `00000000:1B:00.0` in sysfs notation, or None if it is not a PCI address."""
    try:
        return normalise_pci_address(bus_id)
    except ValueError:
        return None


@functools.lru_cache(1024)  # the same few in every pass
def view_of(identity: Identity, index: int) -> View:
    """Return the view of a device on this machine.

    A vGPU guest's own devices have `side: host`, too: the guest is the machine that reads them.
    """
    place = index if identity.has_index else None
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=identity.uuid, pci_address=identity.pci, index=place)


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


def map_event(record: DriverEventRecord, attached: AttachedRecord | None, shared: tuple[str, ...]) -> Event | None:
    """Return the event, or None for a type that was not requested.

    Args:
        record: the driver's record.
        attached: identity of the device at its index, if known.
        shared: UUIDs and addresses that several GPUs report: they identify none of them.
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
    """Return 1 if the driver reports events of a GPU, else 0; `code` is the return code of the registration."""
    return Absent(Reason.NO_DATA, "nvmlDeviceRegisterEvents") if code is None else int(code == 0)


def _view(record: DriverEventRecord, attached: AttachedRecord | None, shared: tuple[str, ...]) -> View | None:
    if attached is None:
        return None
    uuid = None if attached.uuid in shared else attached.uuid or None
    pci = address_of(attached.pci)
    identity = Identity(uuid, None if pci in shared else pci)
    return view_of(identity, record.index) if identity.uuid or identity.pci else None
