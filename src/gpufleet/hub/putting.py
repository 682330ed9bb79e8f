"""Whether an allocation can be meant. Pure."""

import re
from collections.abc import Container

import msgspec

from gpufleet.hub.history import QuestionError
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, AllocationSpec
from gpufleet.model.time import to_ns
from gpufleet.model.view import normalise_pci_address, normalise_uuid

MAX_DEVICES = 100_000
"""Devices that one allocation may list."""

_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_STATIC_POD_UID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TARGET_FIELDS = tuple(dict.fromkeys(REQUIRED_TARGET_FIELD.values()))


def check_id(id: str) -> None:  # noqa: A002 - the word of the domain
    """Refuse an id that could not be written in a path and a table.

    Raises:
        QuestionError: saying what an id is.
    """
    if not _ID.fullmatch(id):
        raise QuestionError(
            "id", "must be 1 to 128 letters, digits, '.', '_', ':' or '-', and start with a letter or digit"
        )


def canonical(spec: AllocationSpec) -> AllocationSpec:
    """Write identities as readers tell them: UUIDs and PCI addresses in lower case, `GPU-` and `MIG-` before them.

    Raises:
        QuestionError: if the UUID of a virtual machine or pod is none.
    """
    target = msgspec.structs.replace(
        spec.target, vm_uuid=_machine_uuid(spec.target.vm_uuid), pod_uid=_pod_uid(spec.target.pod_uid)
    )
    devices = None if spec.devices is None else tuple(dict.fromkeys(map(_device, spec.devices)))
    return msgspec.structs.replace(spec, target=target, devices=devices)


def _machine_uuid(text: str | None) -> str | None:
    if text is None:
        return None
    found = normalise_uuid(text)
    if found is None:
        raise QuestionError("target.vm_uuid", f"{text!r} is not a UUID: 32 hexadecimal digits, as 8-4-4-4-12")
    return found


def _pod_uid(text: str | None) -> str | None:
    """A pod's UID is a UUID; the one that a kubelet gives a static pod is a bare hash."""
    if text is None or _STATIC_POD_UID.fullmatch(text.lower()):
        return text and text.lower()
    found = normalise_uuid(text)
    if found is None:
        raise QuestionError("target.pod_uid", f"{text!r} is not a UUID: 32 hexadecimal digits, as 8-4-4-4-12")
    return found


def _device(name: str) -> str:
    if _GPU_UUID.fullmatch(name):
        return name[:4].upper() + name[4:].lower()
    try:
        return normalise_pci_address(name)
    except ValueError:
        return name


def check_spec(spec: AllocationSpec, clusters: Container[str]) -> None:
    """Refuse a spec that contradicts itself or this hub.

    Raises:
        QuestionError: naming the field.
    """
    target = spec.target
    if target.cluster not in clusters:
        raise QuestionError("target.cluster", f"{target.cluster!r} is not served here: register it")
    required = REQUIRED_TARGET_FIELD[spec.kind]
    for field in _TARGET_FIELDS:
        given = getattr(target, field) is not None
        if field == required and not given:
            raise QuestionError(f"target.{field}", f"a {spec.kind} allocation needs it")
        if field != required and given:
            raise QuestionError(f"target.{field}", f"a {spec.kind} allocation is told by target.{required} alone")
    for field in ("valid_from", "valid_to"):
        at = getattr(spec, field)
        if at is not None and at.tzinfo is None:
            raise QuestionError(field, "has no time zone: write it with Z or an offset")
    if spec.valid_from and spec.valid_to and to_ns(spec.valid_to) <= to_ns(spec.valid_from):
        raise QuestionError("valid_to", "must be after valid_from")
    if spec.devices is not None and len(spec.devices) > MAX_DEVICES:
        raise QuestionError("devices", f"lists more than {MAX_DEVICES}")
