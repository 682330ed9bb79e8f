"""Keys of the GPU in a PCI slot: a reader that cannot read its UUID knows it by the address only. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from gpufleet.model.time import NANOS

REPORT_WINDOW_SECONDS = 1200
"""A GPU last reported longer than this before a newer report of its machine is gone: twice the longest usual lane."""


class KeyReport(NamedTuple):
    """Newest report of a reader about a slot under one key: the largest, as only the last three fields can differ.

    Attributes:
        key: view key of the GPU.
        is_uuid: whether the key is a UUID, and not the address.
        reader: name of the reader.
        is_listing: whether only the PCI bus shows the GPU.
        measured_at: of the newest sample, in nanoseconds.
        has_readings: whether it has a reading other than `no_data`. An import reports the end of series with `no_data`.
        received_at: receipt of the newest sample by the clock of the judge, in nanoseconds.
    """

    key: str
    is_uuid: bool
    reader: str
    is_listing: bool
    measured_at: int
    has_readings: bool
    received_at: int


class SlotKeys(NamedTuple):
    """The GPU in a slot now.

    Attributes:
        key: its view key.
        reports: key and reader of each report about it.
    """

    key: str
    reports: frozenset[tuple[str, str]]


def slot_keys(reports: Iterable[KeyReport]) -> SlotKeys:
    """Return which reports about a slot are about the GPU that is in it now.

    - Reports are ordered by measurement: a backlog is received after newer samples. In a tie, a report without readings
      is the older one: the series of the former key end in the scrape that has the new key.
    - Of one reader, the key that it reported last counts. Another key shows that the GPU was replaced, or that its UUID
      became known or unknown to this reader: it ends a loss that the reader reported under the former key. No other
      report ends it: an exporter repeats old values, and a session of the driver is known to its own reader only.
    - The newest key stands; in a tie, a key with a UUID, and a listing of the PCI bus last.
    - The address and the newest UUID are two keys of one GPU if readers report both within `REPORT_WINDOW_SECONDS`.
      The UUID then stands. A listing of the PCI bus is not joined: it is about a GPU that no reader lists.
    """
    last: dict[str, KeyReport] = {}
    for report in reports:
        known = last.get(report.reader)
        if known is None or _order(report) > _order(known):
            last[report.reader] = report
    newest = max(last.values(), key=_order)
    named = max((one for one in last.values() if one.is_uuid), key=_order, default=newest)
    standing = named if newest is named or _is_of(newest, named) else newest
    kept = [one for one in last.values() if one.key == standing.key or _is_of(one, standing)]
    return SlotKeys(standing.key, frozenset((one.key, one.reader) for one in kept))


def _is_of(report: KeyReport, named: KeyReport) -> bool:
    """Return whether a report under the address is about the GPU with a UUID."""
    is_address = named.is_uuid and not report.is_uuid and not report.is_listing
    return is_address and abs(named.received_at - report.received_at) <= REPORT_WINDOW_SECONDS * NANOS


def _order(report: KeyReport) -> tuple[int, bool, bool, bool, str]:
    return report.measured_at, report.has_readings, report.is_uuid, not report.is_listing, report.key
