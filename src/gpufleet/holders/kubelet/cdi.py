"""CDI specifications: the device behind a CDI name. Pure.

A specification lists device nodes for each of its devices. `/dev/nvidiaN` identifies a GPU. The numbers of files in
`/dev/nvidia-caps/` identify a MIG device: the driver lists their instances in `/proc/driver/nvidia-caps/mig-minors`.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from gpufleet.codecs.mig_minors import MigCapability
from gpufleet.holders.kubelet.device_ids import Identity, nvidia_uuid
from gpufleet.holders.kubelet.parse import ClaimedDevice
from gpufleet.model.errors import WireError
from gpufleet.ports.holder import Naming

MAX_DEVICES = 4_096
"""Maximum number of devices that are read from a specification."""

MAX_EDITS = 256
"""Maximum number of device nodes, and of variables, that are read from a device."""

MAX_DEPTH = 32
"""Maximum nesting of a specification. The format has five levels."""

_GPU = re.compile(r"(?:/.*)?/dev/nvidia([0-9]{1,4})")  # below the root of a driver container
_CAPABILITY = re.compile(r"(?:/.*)?/dev/nvidia-caps/nvidia-cap([0-9]{1,6})")
_GROUP = re.compile(r"/dev/vfio/([0-9]{1,6})")
_CLAIM_DEVICE = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}-(?P<device>.+)")


class CdiDevice(msgspec.Struct, frozen=True):
    """A device of a specification.

    Attributes:
        uuids: UUIDs of GPUs and MIG devices in its name and in NVIDIA_VISIBLE_DEVICES.
        gpus: numbers of its GPU device nodes.
        capabilities: numbers of its capability files.
        groups: IOMMU groups.
    """

    uuids: frozenset[str] = frozenset()
    gpus: frozenset[int] = frozenset()
    capabilities: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()


def parse_specification(data: bytes, path: str) -> dict[str, CdiDevice]:
    """Decode a specification in YAML or JSON, by the end of `path`; return its devices by qualified name.

    Raises:
        WireError: if it is malformed.
    """
    document = _load_json(data, path) if path.endswith(".json") else _load_yaml(data, path)
    if not isinstance(document, dict) or not isinstance(kind := document.get("kind"), str):
        raise WireError(path, "not a CDI specification: no `kind`")
    devices: dict[str, CdiDevice] = {}
    for entry in _list(document.get("devices"), MAX_DEVICES):
        if isinstance(entry, dict) and isinstance(name := entry.get("name"), str):
            devices[f"{kind}={name}"] = _device(name, entry.get("containerEdits"))
    return devices


def identify(device: CdiDevice, mig_minors: Mapping[int, MigCapability]) -> Identity | None:
    """Return what a CDI device is, or None if it is not exactly one known device."""
    if device.capabilities:
        mig = {uuid for uuid in device.uuids if uuid.startswith("MIG-")}
        return (Naming.UUID, mig.pop()) if len(mig) == 1 else _mig_device(device, mig_minors)
    if device.uuids:
        return (Naming.UUID, next(iter(device.uuids))) if len(device.uuids) == 1 else None
    if device.gpus:
        return (Naming.MINOR, str(next(iter(device.gpus)))) if len(device.gpus) == 1 else None
    return (Naming.IOMMU_GROUP, str(next(iter(device.groups)))) if len(device.groups) == 1 else None


def identify_claimed(device: ClaimedDevice, cdi: Mapping[str, Identity]) -> Identity | None:
    """Return what a device of a resource claim is, or None if no CDI device, or several different ones, have its name.

    The kubelet lists the CDI names of several devices of a claim for each of them. Drivers name a CDI device like the
    claimed device, or put the claim's UID before that name.
    """
    if uuid := nvidia_uuid(device.name):
        return Naming.UUID, uuid
    found = {cdi[name] for name in device.cdi if name in cdi and _is_of(name, device.name)}
    found = {identity for identity in found if identity[0] is Naming.UUID} or found
    return found.pop() if len(found) == 1 else None


def _is_of(cdi_name: str, device: str) -> bool:
    name = cdi_name.partition("=")[2]
    match = _CLAIM_DEVICE.fullmatch(name)
    return name == device or (match is not None and match["device"] == device)


def _mig_device(device: CdiDevice, mig_minors: Mapping[int, MigCapability]) -> Identity | None:
    """Return the only compute instance of the capability files, or the only GPU instance."""
    if not device.capabilities <= mig_minors.keys():
        return None
    instances = {mig_minors[number] for number in device.capabilities}
    compute = {instance for instance in instances if instance.compute is not None}
    named = compute or instances
    gpus = {instance.gpu for instance in instances} | device.gpus
    if len(named) != 1 or len(gpus) != 1:
        return None
    return Naming.MIG_OF_MINOR, named.pop().name


def _device(name: str, edits: object) -> CdiDevice:
    nodes, variables = (edits.get("deviceNodes"), edits.get("env")) if isinstance(edits, dict) else (None, None)
    paths = [
        str(node.get("hostPath") or node.get("path")) for node in _list(nodes, MAX_EDITS) if isinstance(node, dict)
    ]
    texts = [name]
    for variable in _list(variables, MAX_EDITS):
        key, _, value = str(variable).partition("=")
        if key == "NVIDIA_VISIBLE_DEVICES":
            texts += value.split(",")
    return CdiDevice(
        frozenset(uuid for text in texts if (uuid := nvidia_uuid(text)) is not None),
        _numbers(_GPU, paths),
        _numbers(_CAPABILITY, paths),
        _numbers(_GROUP, paths),
    )


def _numbers(pattern: re.Pattern[str], paths: Iterable[str]) -> frozenset[int]:
    return frozenset(int(match[1]) for path in paths if (match := pattern.fullmatch(path)))


def _list(value: object, most: int) -> list[Any]:
    return list(islice(value, most)) if isinstance(value, list) else []


def _load_json(data: bytes, path: str) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(path, f"not JSON: {error}") from None


def _load_yaml(data: bytes, path: str) -> object:
    """Return the first document of a YAML file, as texts, lists and maps.

    Nodes are built from events: the library's own construction of deeply nested documents exhausts the stack.
    """
    import yaml  # an extra; a node without CDI specifications does not need it

    loader = getattr(yaml, "CLoader", yaml.Loader)
    root: list[Any] = []
    nodes: list[list[Any]] = [root]  # items of the open lists and maps; those of a map are keys and values in turn
    try:
        for event in yaml.parse(data, loader):
            if isinstance(event, yaml.AliasEvent):
                raise WireError(path, "aliases are not supported")
            if isinstance(event, yaml.ScalarEvent):
                nodes[-1].append(event.value)
            elif isinstance(event, yaml.CollectionStartEvent):
                if len(nodes) > MAX_DEPTH:
                    raise WireError(path, f"nested deeper than {MAX_DEPTH} levels")
                nodes.append([])
            elif isinstance(event, yaml.CollectionEndEvent):
                items = nodes.pop()
                is_map = isinstance(event, yaml.MappingEndEvent)
                nodes[-1].append(_map(items) if is_map else items)
            elif isinstance(event, yaml.DocumentEndEvent):
                break
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise WireError(path, f"not YAML: {type(error).__name__}") from None
    return root[0] if root else None


def _map(items: list[Any]) -> dict[str, Any]:
    return {key: value for key, value in zip(items[::2], items[1::2], strict=True) if isinstance(key, str)}
