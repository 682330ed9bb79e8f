"""Validation of the objects of a Kubernetes cluster in a batch. Pure.

Texts lose control characters and are cut. An object without a usable identity is dropped, and the others are kept.
"""

import re
from typing import Any, NamedTuple, TypeVar

import msgspec

from gpufleet.model.stored.kubernetes import ClusterObject, ObjectKind
from gpufleet.model.text import bounded, clean
from gpufleet.model.wire.batch import ClusterPart, RemovedObject

MAX_TEXT = 1024
"""Maximum length of a text of an object."""

MAX_IDENTITY = 253
"""Maximum length of a UID, namespace or name, as in Kubernetes."""

_KINDS = frozenset(ObjectKind)

_JSON_ENCODER = msgspec.json.Encoder()
_LONG_TEXT = re.compile(f'"[^"]{{{MAX_TEXT + 1}}}')

_Record = TypeVar("_Record", bound=msgspec.Struct)
_Object = TypeVar("_Object", bound=ClusterObject)


class CleanClusterPart(NamedTuple):
    """Valid cluster part, and the number of objects and ends that were dropped."""

    part: ClusterPart
    dropped: int


def clean_cluster_part(part: ClusterPart, latest: int) -> CleanClusterPart:
    """Return the part with valid objects only, each once.

    Args:
        part: as decoded.
        latest: the latest instant allowed, nanoseconds since 1970; a later state, end or copy counts as of this
            instant.
    """
    lists: dict[str, list[Any]] = {
        "nodes": _valid(part.nodes),
        "pods": _valid(part.pods),
        "slices": _valid(part.slices),
        "claims": _valid(part.claims),
        "vmis": _valid(part.vmis),
        "removed": _known_ends(part.removed, latest),
    }
    dropped = sum(len(getattr(part, name)) - len(kept) for name, kept in lists.items())
    found = msgspec.structs.replace(
        part,
        observed_at=min(part.observed_at, latest),
        system_uid=bounded(part.system_uid, MAX_IDENTITY),
        server_version=bounded(part.server_version, MAX_TEXT),
        copies=[_no_later(_cleaned(one), "since", latest) for one in part.copies],
        **lists,
    )
    return CleanClusterPart(found, dropped)


def _valid(objects: list[_Object]) -> list[_Object]:
    """Return the objects with a usable identity; of several with one UID, the last."""
    found = {one.uid: one if _is_clean(one) else _cleaned(one) for one in objects if _is_identified(one)}
    return list(found.values())


def _is_identified(one: ClusterObject) -> bool:
    """Return whether UID, namespace and name can be those of a Kubernetes object."""
    namespace = getattr(one, "namespace", None)
    names = [one.uid, one.name, *([] if namespace is None else [namespace])]
    return all(name and len(name) <= MAX_IDENTITY and clean(name) == name and "/" not in name for name in names)


def _known_ends(removed: list[RemovedObject], latest: int) -> list[RemovedObject]:
    """Return the ends of objects of known kinds; of several ends of an object, the last."""
    found = {(one.resource, one.uid): _no_later(one, "at", latest) for one in removed if one.resource in _KINDS}
    return list(found.values())


def _no_later(record: _Record, field: str, latest: int) -> _Record:
    """Return the record with an instant that is at most `latest`."""
    return record if getattr(record, field) <= latest else msgspec.structs.replace(record, **{field: latest})


def _is_clean(content: ClusterObject) -> bool:
    """Return whether `_cleaned` would return the same object: a fast test that most objects pass.

    In JSON, a text with a control character has a backslash. Without any backslash, a quote begins or ends a text.
    """
    json = _JSON_ENCODER.encode(content).decode()
    return json.isprintable() and "\\" not in json and (len(json) <= MAX_TEXT or not _LONG_TEXT.search(json))


def _cleaned(content: Any) -> Any:
    """Return a record, list or map with cleaned texts; the same object if it is clean."""
    if isinstance(content, str):
        return bounded(content, MAX_TEXT)
    if isinstance(content, msgspec.Struct):
        changed = {}
        for name in content.__struct_fields__:
            value = getattr(content, name)
            cleaned = _cleaned(value)
            if cleaned is not value:
                changed[name] = cleaned
        return msgspec.structs.replace(content, **changed) if changed else content
    if isinstance(content, dict):
        entries = {_cleaned(key): _cleaned(value) for key, value in content.items()}
        return content if entries == content else entries
    if isinstance(content, tuple):
        items = tuple([_cleaned(item) for item in content])
        same = all(new is old for new, old in zip(items, content, strict=True))
        return content if same else items
    return content
