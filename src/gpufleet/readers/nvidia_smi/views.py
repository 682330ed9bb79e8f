"""Identity of devices in outputs: by UUID and PCI address, never by position. Pure."""

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
_VGPU_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,5}", re.ASCII)


class Gpu(NamedTuple):
    """A GPU: its view, and its merged record."""

    view: View
    record: DeviceRecord


class DeviceInstance(NamedTuple):
    """A MIG device or vGPU instance: its view, its record, and its entry in `-L` (MIG only)."""

    view: View
    record: DeviceRecord
    listed: ListedMig | None = None


def rows_as_records(rows: Iterable[dict[str, str]]) -> list[DeviceRecord]:
    """Return CSV rows as device records."""
    return [DeviceRecord(name=row.get("pci.bus_id", row.get("gpu_bus_id", "")), fields=row) for row in rows]


def identify(records: Sequence[DeviceRecord]) -> tuple[list[Gpu], list[str]]:
    """Merge the records of each GPU across outputs, and identify it. A UUID that two GPUs report is dropped.

    Returns:
        The GPUs, and error messages about records without a usable identity.
    """
    errors: list[str] = []
    together: dict[str, list[DeviceRecord]] = {}
    addresses = _addresses_by_uuid(records)
    for record in records:
        uuid = uuid_of(record)
        key = address_of(record) or addresses.get(uuid or "") or uuid
        if key is None:
            errors.append(f"a GPU without UUID and PCI address is not read: {record.name[:40] or 'no name'}")
            continue
        together.setdefault(key, []).append(record)
    claims = Counter(uuid for group in together.values() for uuid in {uuid_of(record) for record in group} if uuid)
    gpus: list[Gpu] = []
    for key, group in together.items():
        if len({uuid_of(record) for record in group} - {None}) > 1:
            errors.append(f"several GPUs report the PCI address {key}: none of them is read")
            continue
        record = merge(group)
        uuid, address = uuid_of(record), address_of(record)
        if uuid is not None and claims[uuid] > 1:
            errors.append(f"several GPUs report the UUID {uuid}: it is ignored")
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


def _addresses_by_uuid(records: Iterable[DeviceRecord]) -> dict[str, str]:
    """Return UUID to PCI address, for UUIDs with one address: an output can lack the address that another one has."""
    found: dict[str, set[str]] = {}
    for record in records:
        uuid, address = uuid_of(record), address_of(record)
        if uuid is not None and address is not None:
            found.setdefault(uuid, set()).add(address)
    return {uuid: next(iter(addresses)) for uuid, addresses in found.items() if len(addresses) == 1}


def mig_instances(gpus: Iterable[Gpu], listing: Listing | None) -> tuple[list[tuple[Gpu, DeviceInstance]], list[str]]:
    """Identify the MIG devices of all GPUs. MIG devices with the same identity are not read.

    `-q` prints no UUIDs and `-L` prints little else; both print the driver's index within the GPU, which joins them.
    Without `-L` a MIG device is identified by its instance ids and its GPU (`3/0@ADDRESS`), as ids repeat across GPUs.

    Returns:
        The MIG devices with their GPUs, and error messages about devices that are not read.
    """
    found: list[tuple[Gpu, DeviceInstance]] = []
    errors: list[str] = []
    for gpu in gpus:
        instances = _mig_instances_of(gpu, listing)
        if instances is None:
            errors.append(f"{gpu.view.key}: nvidia-smi -L and -q list different MIG devices: none is read")
        else:
            found += [(gpu, instance) for instance in instances]
    twice = _duplicate_keys([instance for _, instance in found])
    errors += [f"several MIG devices have the same identity, {key}: none of them is read" for key in twice]
    return [(gpu, instance) for gpu, instance in found if instance.view.key not in twice], errors


def _mig_instances_of(gpu: Gpu, listing: Listing | None) -> list[DeviceInstance] | None:
    """Identify the MIG devices of a GPU; None if `-L` and the output list different devices."""
    listed: dict[int, ListedMig] = {}
    if listing is not None:
        entries = [mig for entry in listing.gpus if entry.uuid == gpu.view.uuid for mig in entry.mig]
        listed = {mig.index: mig for mig in entries}
        indexes = {record.leaves.get("index", "") for record in gpu.record.mig}
        if indexes != {str(index) for index in listed} or not len(indexes) == len(gpu.record.mig) == len(entries):
            return None
    instances: list[DeviceInstance] = []
    for record in gpu.record.mig:
        index = record.leaves.get("index", "")
        known = listed.get(int(index)) if index.isascii() and index.isdigit() and len(index) < 6 else None
        ids = "/".join(_number(record, name) for name in ("gpu_instance_id", "compute_instance_id"))
        view = View(
            kind=ViewKind.MIG,
            side=Side.HOST,
            uuid=known.uuid if known is not None else None,
            instance=ids if known is not None else f"{ids}@{gpu.view.pci_address or gpu.view.uuid}",
            parent=gpu.view.key,
            index=known.index if known is not None else None,
        )
        instances.append(DeviceInstance(view, record, known))
    return instances


def vgpu_instances(gpus: Iterable[Gpu]) -> tuple[list[DeviceInstance], list[str]]:
    """Identify the vGPU instances of all GPUs: by UUID, or by number and GPU if several report the same UUID."""
    instances: list[DeviceInstance] = []
    uncounted: list[str] = []
    unnamed: list[str] = []
    addresses: dict[str, str] = {}
    for gpu in gpus:
        addresses[gpu.view.key] = gpu.view.pci_address or gpu.view.key
        counted, decoded = gpu.record.leaves.get("active_vgpus", ""), len(gpu.record.vgpus)
        if _NUMBER.fullmatch(counted) is not None and int(counted) != decoded:
            uncounted.append(f"{gpu.view.key}: the driver counts {counted} vGPU instances, but {decoded} were printed")
        for record in gpu.record.vgpus:
            uuid = record.leaves.get("vgpu_uuid", "")
            view = View(
                kind=ViewKind.VGPU,
                side=Side.VGPU_HOST,
                uuid=uuid.lower() if _VGPU_UUID.fullmatch(uuid) is not None else None,
                instance=record.name if _VGPU_ID.fullmatch(record.name) is not None else None,
                parent=gpu.view.key,
            )
            if view.uuid is None and view.instance is None:
                unnamed.append(f"{gpu.view.key}: a vGPU instance without UUID and number is not read")
                continue
            instances.append(DeviceInstance(view, record))
    shared = _duplicate_keys(instances)
    errors = list(dict.fromkeys((*uncounted, *unnamed)))
    errors += [f"several vGPU instances report the identity {key}: it is ignored" for key in shared]
    named = [
        instance._replace(view=_location_view(instance.view, addresses)) if instance.view.key in shared else instance
        for instance in instances
    ]
    twice = _duplicate_keys(named)
    errors += [f"several vGPU instances have the same number and GPU, {key}: none of them is read" for key in twice]
    return [instance for instance in named if instance.view.key not in twice], errors


def _number(record: DeviceRecord, name: str) -> str:
    """Return the number of an instance, or `?` if it is none, such as the text of an error."""
    text = record.leaves.get(name, "")
    return text if text.isascii() and text.isdigit() and len(text) < 6 else "?"


def _duplicate_keys(instances: Iterable[DeviceInstance]) -> list[str]:
    claims = Counter(instance.view.key for instance in instances)
    return [key for key, claimants in claims.items() if claimants > 1]


def _location_view(view: View, addresses: Mapping[str, str]) -> View:
    place = f"{view.instance or '?'}@{addresses[view.parent or '']}"
    return msgspec.structs.replace(view, uuid=None, instance=place)


def uuid_of(record: DeviceRecord) -> str | None:
    """Return the UUID of a record, or None."""
    candidates = (
        record.fields.get("uuid") or record.fields.get("gpu_uuid"),
        record.leaves.get("uuid"),
        record.leaves.get("gpu_uuid"),
    )
    return next((text.strip() for text in candidates if text and _UUID.fullmatch(text.strip()) is not None), None)


def address_of(record: DeviceRecord) -> str | None:
    """Return the PCI address of a record, or None."""
    candidates = (
        record.fields.get("pci.bus_id") or record.fields.get("gpu_bus_id"),
        lookup(record.leaves, "pci/pci_bus_id"),
        lookup(record.leaves, "pci/bus_id"),
        record.name,
    )
    for text in candidates:
        try:
            return normalise_pci_address(text or "")
        except ValueError:
            continue
    return None
