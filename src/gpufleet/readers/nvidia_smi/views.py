"""Which device a row or section is: by UUID and PCI address, never by its place in the output. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.codecs.nvidia_smi import DeviceRecord, ListedMig
from gpufleet.codecs.nvidia_smi.listing import Listing
from gpufleet.codecs.nvidia_smi.records import lookup, merge
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address

_UUID = re.compile(r"GPU-[0-9A-Fa-f-]{1,60}", re.ASCII)
_VGPU_UUID = re.compile(r"(?:GPU-)?[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)


class Gpu(NamedTuple):
    """One GPU, and everything that was printed of it."""

    view: View
    record: DeviceRecord


class Part(NamedTuple):
    """One MIG device or vGPU instance: its view, what was printed of it, and how a list names it."""

    view: View
    record: DeviceRecord
    listed: ListedMig | None = None


def rows_as_records(rows: Iterable[dict[str, str]]) -> list[DeviceRecord]:
    """Return rows of CSV as records of devices."""
    return [DeviceRecord(name=row.get("pci.bus_id", row.get("gpu_bus_id", "")), fields=row) for row in rows]


def identify(records: Sequence[DeviceRecord]) -> tuple[list[Gpu], list[str]]:
    """Join what several outputs say of one GPU, and name each; a name that two GPUs of one output claim names none.

    Returns:
        The GPUs, and words about what could not be named.
    """
    errors: list[str] = []
    together: dict[str, list[DeviceRecord]] = {}
    for record in records:
        key = address_of(record) or uuid_of(record)
        if key is None:
            errors.append(f"a GPU without UUID and PCI address is not read: {record.name[:40] or 'nameless'}")
            continue
        together.setdefault(key, []).append(record)
    claims = Counter(uuid for group in together.values() for uuid in {uuid_of(one) for one in group} if uuid)
    gpus: list[Gpu] = []
    for group in together.values():
        record = merge(group)
        uuid, address = uuid_of(record), address_of(record)
        if uuid is not None and claims[uuid] > 1:
            errors.append(f"several GPUs say that they are {uuid}: it names none of them")
            uuid = None
        if uuid is None and address is None:
            continue
        index = record.fields.get("index", "")
        view = View(
            kind=ViewKind.GPU,
            side=Side.HOST,
            uuid=uuid,
            pci_address=address,
            index=int(index) if index.isascii() and index.isdigit() and len(index) < 6 else None,
        )
        gpus.append(Gpu(view, record))
    return gpus, list(dict.fromkeys(errors))


def mig_parts(gpu: Gpu, listing: Listing | None) -> list[Part] | None:
    """Name the MIG devices of a GPU; None if the list and the output disagree about which there are.

    `-q` prints no UUIDs and `-L` prints nothing else; both print the driver's index within the GPU. Without a list
    a MIG device is named by its instance ids and its GPU (`3/0@ADDRESS`): the ids alone are those of another GPU, too.
    """
    listed: dict[int, ListedMig] = {}
    if listing is not None:
        listed = {one.index: one for of in listing.gpus if of.uuid == gpu.view.uuid for one in of.mig}
        indexes = {record.leaves.get("index", "") for record in gpu.record.mig}
        if indexes != {str(index) for index in listed} or len(indexes) != len(gpu.record.mig):
            return None
    parts: list[Part] = []
    for record in gpu.record.mig:
        index = record.leaves.get("index", "")
        named = listed.get(int(index)) if index.isascii() and index.isdigit() and len(index) < 6 else None
        ids = f"{record.leaves.get('gpu_instance_id', '?')}/{record.leaves.get('compute_instance_id', '?')}"
        view = View(
            kind=ViewKind.MIG,
            side=Side.HOST,
            uuid=named.uuid if named is not None else None,
            instance=ids if named is not None else f"{ids}@{gpu.view.pci_address or gpu.view.uuid}",
            parent=gpu.view.key,
            index=named.index if named is not None else None,
        )
        parts.append(Part(view, record, named))
    return parts


def vgpu_parts(gpus: Iterable[Gpu]) -> tuple[list[Part], list[str]]:
    """Name the vGPU instances of all GPUs: by UUID, and several of one UUID by number and GPU."""
    parts: list[Part] = []
    addresses: dict[str, str] = {}
    for gpu in gpus:
        addresses[gpu.view.key] = gpu.view.pci_address or gpu.view.key
        for record in gpu.record.vgpus:
            uuid = record.leaves.get("vgpu_uuid", "")
            view = View(
                kind=ViewKind.VGPU,
                side=Side.VGPU_HOST,
                uuid=uuid.lower() if _VGPU_UUID.fullmatch(uuid) is not None else None,
                instance=record.name,
                parent=gpu.view.key,
            )
            parts.append(Part(view, record))
    shared = _shared(parts)
    errors = [f"several vGPU instances say that they are {key}: it names none of them" for key in shared]
    named = [part._replace(view=_by_place(part.view, addresses)) if part.view.key in shared else part for part in parts]
    twice = _shared(named)
    errors += [f"several vGPU instances are in one place, {key}: none of them is read" for key in twice]
    return [part for part in named if part.view.key not in twice], errors


def _shared(parts: Iterable[Part]) -> list[str]:
    claims = Counter(part.view.key for part in parts)
    return [key for key, claimants in claims.items() if claimants > 1]


def _by_place(view: View, addresses: Mapping[str, str]) -> View:
    place = f"{view.instance}@{addresses[view.parent or '']}"
    return msgspec.structs.replace(view, uuid=None, instance=place)


def uuid_of(record: DeviceRecord) -> str | None:
    """Return the UUID that a record tells, or None."""
    told = (
        record.fields.get("uuid") or record.fields.get("gpu_uuid"),
        record.leaves.get("uuid"),
        record.leaves.get("gpu_uuid"),
    )
    return next((text.strip() for text in told if text and _UUID.fullmatch(text.strip()) is not None), None)


def address_of(record: DeviceRecord) -> str | None:
    """Return the PCI address that a record tells, or None."""
    told = (
        record.fields.get("pci.bus_id") or record.fields.get("gpu_bus_id"),
        lookup(record.leaves, "pci/pci_bus_id"),
        lookup(record.leaves, "pci/bus_id"),
        record.name,
    )
    for text in told:
        try:
            return normalise_pci_address(text or "")
        except ValueError:
            continue
    return None
