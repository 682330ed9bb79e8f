"""Fields that all objects have, and the selection of labels."""

import datetime as dt
import re
from collections.abc import Iterable

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.model.holdings import MAX_LABELS, Owner
from gpufleet.model.text import bounded
from gpufleet.model.time import LATEST, to_ns

MAX_NAME = 320
"""Maximum length of a name in characters. The longest in Kubernetes is a resource name: 253, a slash, and 63."""

MAX_VALUE = 256
"""Maximum length of a label's, annotation's or attribute's value in characters."""

QUEUES = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/local-queue-name",
    "volcano.sh/queue-name",
    "scheduling.volcano.sh/queue-name",
    "kai.scheduler/queue",
    "runai/queue",
    "yunikorn.apache.org/queue",
)
"""Labels and annotations that name the queue of a batch scheduler, in order of precedence."""

_QUANTITY = re.compile(r"([0-9]{1,12})(k|M|Ki|Mi|e3|e6)?")
_FACTORS = {None: 1, "k": 1000, "M": 1_000_000, "Ki": 1024, "Mi": 1024 * 1024, "e3": 1000, "e6": 1_000_000}


class OwnerReference(msgspec.Struct):
    """Owner reference in the metadata of an object."""

    kind: str
    name: str
    uid: str = ""
    api_version: str = msgspec.field(name="apiVersion", default="")
    controller: bool | None = None


class ObjectMetadata(msgspec.Struct):
    """Metadata of an object, as far as it is needed."""

    name: str
    uid: str
    namespace: str | None = None
    created: str | None = msgspec.field(name="creationTimestamp", default=None)
    deleted: str | None = msgspec.field(name="deletionTimestamp", default=None)
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owners: list[OwnerReference] | None = msgspec.field(name="ownerReferences", default=None)

    @property
    def controller(self) -> Owner | None:
        """Return the controller reference. There is at most one."""
        for reference in self.owners or ():
            if reference.controller:
                return Owner(
                    kind=text(reference.kind),
                    name=text(reference.name),
                    uid=text(reference.uid),
                    api_version=text(reference.api_version),
                )
        return None

    @property
    def queue(self) -> str:
        """Return the queue that a label or annotation names, or an empty text."""
        for fields in (self.labels, self.annotations):
            for name in QUEUES:
                if fields and (queue := fields.get(name)):
                    return text(queue)
        return ""


class LabelSelection(msgspec.Struct, frozen=True):
    """Allow-list of labels or annotations.

    Attributes:
        names: exact names.
        prefixes: beginnings of names.
    """

    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "LabelSelection":
        """Return the selection of names; a name that ends with `*` is a prefix."""
        names = frozenset(patterns)
        prefixes = tuple(sorted(name[:-1] for name in names if name.endswith("*")))
        return cls(frozenset(name for name in names if not name.endswith("*")), prefixes)

    def select(self, labels: dict[str, str] | None) -> dict[str, str]:
        """Return the permitted labels, at most `MAX_LABELS` in order of name, with bounded values."""
        chosen = sorted(name for name in labels or () if name in self.names or name.startswith(self.prefixes))
        return {text(name): bounded((labels or {})[name], MAX_VALUE) for name in chosen[:MAX_LABELS]}


def text(value: str | None) -> str:
    """Return a bounded text; empty for None."""
    return bounded(value or "", MAX_NAME)


def required(value: str | None, field: str) -> str:
    """Return a bounded text.

    Raises:
        WireError: if it is empty.
    """
    if not value:
        raise WireError(field, "is empty")
    return bounded(value, MAX_NAME)


def instant(value: str | None) -> int | None:
    """Return an RFC 3339 time as nanoseconds since 1970; None for an invalid time, or one before 1970 or after 2262."""
    if not value or len(value) > 64:
        return None
    try:
        at = to_ns(dt.datetime.fromisoformat(value))
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at <= LATEST else None


def whole_count(value: str | int | None) -> int | None:
    """Return a quantity as a number of devices; None if it is not a whole number."""
    if isinstance(value, int):
        return value if 0 <= value < 10**12 else None
    match = _QUANTITY.fullmatch(value) if value else None
    return int(match[1]) * _FACTORS[match[2]] if match else None
