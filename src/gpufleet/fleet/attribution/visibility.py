"""Filters of what the tenant of an allocation may see: of a shared machine, and of the time before it. Pure."""

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution.bindings import pci_address
from gpufleet.fleet.devices import unlisted_keys
from gpufleet.model.absence import REASON_TEXTS, Absent, Reason
from gpufleet.model.api.answer import AnswerDevice
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind
from gpufleet.model.catalogue.events import XID_ALL, XID_ERRORS, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.catalogue.probe import PROBE_READER
from gpufleet.model.reading import DimReading, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_ns

_NOT_YET = Absent(Reason.NO_DATA, "not measured since the allocation began")
_NO_XID_YET = Absent(Reason.NO_DATA, "none since the allocation began")
_UNKNOWN_TIME = Absent(Reason.NO_DATA, "its time is not reported: it can be from before the allocation began")
_EARLIER_COUNT = Absent(Reason.NO_DATA, "the count began before the allocation: its events have its XIDs")


def newest_failure(readers: Sequence[ReaderStatus]) -> ReaderStatus | None:
    """Return the status with the newest error, or None."""
    failed = [one for one in readers if one.last_error]
    return max(failed, key=lambda one: (one.last_attempt or 0, one.reader, one.lane)) if failed else None


def failure_since(begin: int, readers: Sequence[ReaderStatus], *, whole_machine: bool) -> ReaderStatus | None:
    """Return the newest error of a failed pass that a tenant may see. The arguments are those of `visible_readers`."""
    found = visible_readers(begin, readers, whole_machine=whole_machine)
    return newest_failure([one for one in found if one.state is not ReaderState.OK])


def visible_readers(begin: int, readers: Sequence[ReaderStatus], *, whole_machine: bool) -> list[ReaderStatus]:
    """Return the readers of a machine whose error a tenant may see.

    The tenant of some devices does not see that a pass failed for single devices: these can be another tenant's, and
    the readings of its own devices have their reasons.

    Args:
        begin: nanoseconds since 1970; errors of earlier passes are another tenant's.
        readers: of the machine.
        whole_machine: whether the tenant has the whole machine.
    """
    recent = [one for one in readers if (one.last_attempt or 0) >= begin]
    return [one for one in recent if whole_machine or one.state is not ReaderState.PARTIAL]


_DEVICE_NAME = re.compile(
    r"(?:GPU|MIG)-[\w/-]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?|[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
    r"|\b(?:v?GPU|MIG|GI|CI|VM|device|instance|domain)(?: device| instance)?[ :=#]*\d+\b(?!:[0-9a-f]{2}[:.])"
    r"|/dev/nvidia\d+|\bpids?\b|\bprocess(?:es)?\b",
    re.IGNORECASE,
)
"""UUIDs, PCI addresses and indexes of devices, virtual machines and processes in a text."""


CONSTANT_DETAILS = frozenset(
    {
        *(Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER, Reason.NOT_IN_MIG_MODE, Reason.NOT_IN_GUEST),
        *(Reason.NO_DATA, Reason.NOT_REPORTED, Reason.NOT_COLLECTED, Reason.BOUND_TO_VFIO, Reason.OTHER_DRIVER),
    }
)
"""Reasons whose details are constants of the readers: names of calls, fields, files and kernel drivers.

The details of all other reasons may have texts of drivers, commands and operating systems.
"""


def visible_error(status: ReaderStatus, *, whole_machine: bool) -> str:
    """Return the error of a reader as a tenant may see it.

    Only the tenant of a whole machine sees the reader's text. The tenant of some of its devices sees the kind of the
    reader, the reason and the fixed text of that reason: a text of a driver or a command can name another tenant's GPU,
    process or user in any form.

    Args:
        status: with an error.
        whole_machine: whether the tenant has the whole machine.
    """
    if whole_machine:
        return status.last_error
    kind, reason = status.reader.partition("/")[0], Reason(status.error_class)
    if reason is Reason.UNKNOWN:  # the name of an exception, or a reason of a newer build
        return f"{kind}: error"
    return f"{kind}: {reason}: {REASON_TEXTS[reason]}"


def without_foreign_details(stored: StoredSample) -> StoredSample:
    """Remove the details of absences that may be about another tenant's device or process.

    Only `CONSTANT_DETAILS` stay, and of these only details that name no device and no process.

    Args:
        stored: of the machine, of an own device or of a device that an own one is a part of.
    """

    def is_shown(absent: Absent) -> bool:
        return absent.reason in CONSTANT_DETAILS and _DEVICE_NAME.search(absent.detail) is None

    return _with_details(stored, is_shown)


_PEER = "peer_pci_address"
"""Dimension with the PCI address of another GPU."""


def without_foreign_peers(found: Iterable[AnswerDevice]) -> tuple[AnswerDevice, ...]:
    """Remove the NVLinks to GPUs that are not among the devices: such a GPU may be another tenant's.

    A link without value names the GPU, too: a stale one, or that of a lost GPU.

    Args:
        found: the devices of one machine in an answer.
    """
    found = tuple(found)
    own = {None, *(one.pci_address for one in found)}

    def is_shown(dim: DimReading) -> bool:  # an absence that is about no single link has the label "unknown"
        return pci_address(dim.labels.get(_PEER, "")) in own

    return tuple(msgspec.structs.replace(one, dimensions=tuple(filter(is_shown, one.dimensions))) for one in found)


def is_probe(stored: StoredSample) -> bool:
    """Return whether a sample is of the performance probe. Its facts are about the whole machine, with all GPUs.

    Samples of other readers have none of them, also imported ones (`dialects.sample_builder`).
    """
    return stored.sample.reader == PROBE_READER


def _with_details(stored: StoredSample, keep: Callable[[Absent], bool]) -> StoredSample:
    """Remove the details of absences that are not to be kept."""
    sample = stored.sample

    def cut(value: Value | Absent) -> Value | Absent:
        return Absent(value.reason) if isinstance(value, Absent) and not keep(value) else value

    values = {name: cut(value) for name, value in sample.values.items()}
    dims = tuple(msgspec.structs.replace(dim, value=cut(dim.value)) for dim in sample.dims)
    return msgspec.structs.replace(stored, sample=msgspec.structs.replace(sample, values=values, dims=dims))


def without_departed(
    stored: Sequence[StoredSample], readers: Sequence[ReaderStatus], begin: int, *, is_read_since: bool
) -> list[StoredSample]:
    """Return the samples of a machine without those of devices that had left it before the allocation began.

    Such a device can be another tenant's by now. A lost GPU is still listed by its reader.

    Args:
        stored: the newest samples of each view of the machine, by reader and lane.
        readers: of the machine.
        begin: nanoseconds since 1970.
        is_read_since: whether the GPUs of the machine were read since then. If not, those of the newest passes are
            shown.
    """
    newest: dict[str, int] = {}
    for one in stored:
        if one.sample.view is not None:
            key = one.sample.view.key
            newest[key] = max(newest.get(key, 0), one.sample.measured_at)
    earlier = {key for key, at in newest.items() if at < begin}
    departed = earlier if is_read_since or not earlier else earlier & unlisted_keys(stored, readers)
    return [one for one in stored if one.sample.view is None or one.sample.view.key not in departed]


def clip_to_allocation(
    stored: StoredSample,
    begin: dt.datetime | None,
    own_xids: Mapping[str, int] = {},
    xids_begin: dt.datetime | None = None,
) -> StoredSample:
    """Remove values measured before the allocation began: they belong to another tenant.

    The static lane stays, since it describes the machine and not its use. Its counters do not, and neither does the
    performance probe: its tenant installs services and reserves huge pages. Absences stay without their details, which
    may name another tenant's processes. XIDs that can be from before are removed from later samples, too: the newest
    one if it occurred earlier or has no time, and counts that began earlier.

    Args:
        stored: of any view and reader.
        begin: when the allocation began; None if that is not known.
        own_xids: view key to its newest XID without time, as far as that is known to have occurred since `begin`.
        xids_begin: instant from which on XIDs are of the allocation, if that is known to be before `begin`.
    """
    sample = stored.sample
    if begin is None:
        return stored
    if sample.measured_at >= to_ns(begin):
        return _without_earlier_xids(stored, xids_begin or begin, own_xids)
    if sample.lane is Lane.STATIC and not is_probe(stored):
        return _without_earlier_xids(_without_counters(_with_details(stored, lambda _: False)), begin, {})
    values = {
        name: Absent(value.reason) if isinstance(value, Absent) else _NOT_YET for name, value in sample.values.items()
    }
    return msgspec.structs.replace(stored, sample=msgspec.structs.replace(sample, values=values, dims=()))


def _without_counters(stored: StoredSample) -> StoredSample:
    sample = stored.sample
    counters = dict.fromkeys((name for name in sample.values if _is_counter(name)), _NOT_YET)
    dims = tuple(dim for dim in sample.dims if not _is_counter(dim.metric))
    if not counters and len(dims) == len(sample.dims):
        return stored
    kept = msgspec.structs.replace(sample, values={**sample.values, **counters}, dims=dims)
    return msgspec.structs.replace(stored, sample=kept)


def _is_counter(metric: str) -> bool:
    return metric in CATALOGUE and CATALOGUE[metric].kind is MetricKind.COUNTER


def untimed_xid(values: Mapping[str, Value | Absent]) -> int | None:
    """Return the newest XID of a sample that has no time of it; None if it has no XID, or its time."""
    code = values.get(XID_LAST)
    return code if isinstance(code, int) and not isinstance(values.get(XID_LAST_AT), int | float) else None


def _without_earlier_xids(stored: StoredSample, begin: dt.datetime, own_xids: Mapping[str, int]) -> StoredSample:
    """Remove XIDs that occurred before the allocation began, or may have."""
    sample = stored.sample
    values, dims = sample.values, sample.dims
    at, since, untimed = values.get(XID_LAST_AT), values.get(XID_SINCE), untimed_xid(values)
    removed: dict[str, Absent] = {}
    if isinstance(at, int | float) and at < begin.timestamp():
        removed = dict.fromkeys((name for name in (XID_LAST, XID_LAST_AT) if name in values), _NO_XID_YET)
    elif untimed is not None and (sample.view is None or own_xids.get(sample.view.key) != untimed):
        removed = {XID_LAST: _UNKNOWN_TIME}
    if not isinstance(since, int | float) or since < begin.timestamp():
        dims = tuple([one for one in dims if one.metric != XID_ERRORS])
        if isinstance(values.get(XID_ALL), int):
            removed[XID_ALL] = _EARLIER_COUNT
    if not removed and len(dims) == len(sample.dims):
        return stored
    kept = msgspec.structs.replace(sample, values={**values, **removed}, dims=dims)
    return msgspec.structs.replace(stored, sample=kept)
