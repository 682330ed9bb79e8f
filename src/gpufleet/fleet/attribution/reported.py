"""Holdings and holder states that machines reported to a hub: how long they last, and which are present. Pure.

Agents and importers repeat each holding every `REPEAT_SECONDS` and report its end. A holding that is neither repeated
nor ended is not known any more: its agent stopped, or lost the file with its holdings. It then ends at its last report.
A holder state that is not repeated within the same time is not known either.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpufleet.model.holdings import (
    MAX_UNRESOLVED_NAMES,
    REPEAT_SECONDS,
    DeviceState,
    HolderState,
    Holding,
    HoldingVerdict,
)
from gpufleet.model.stored.holdings import StoredHolderStates, StoredHolding
from gpufleet.model.text import clean
from gpufleet.model.time import NANOS

HOLDING_TTL_NS = (3 * REPEAT_SECONDS + 60) * NANOS
"""Time after which a holding that was not repeated is not known any more: three repetitions and a minute."""

NOT_REPORTED = "no agent reports the holders of the device now"
"""Detail of a device without holdings and without a present holder state."""

_LEAST_CERTAIN = (HolderState.UNKNOWN, HolderState.HELD, HolderState.FREE)

NOT_CERTAIN = frozenset({HoldingVerdict.CONFLICT, HoldingVerdict.UNKNOWN, HoldingVerdict.NONE})
"""Verdicts with which a holding does not prove who has the device."""


def known_until(stored: StoredHolding, now: int) -> int | None:
    """Return the end of the time in which the holder is known to have the device, or None if it lasts.

    Args:
        stored: the holding.
        now: nanoseconds since 1970 by the hub's clock.
    """
    if stored.holding.until is not None:
        return stored.holding.until
    if now - stored.reported_at <= HOLDING_TTL_NS:
        return None
    return max(stored.holding.since, stored.reported_at)


def may_overlap(stored: StoredHolding, start: int, end: int) -> bool:
    """Return whether a holding may overlap an interval, at any present time from `start` on.

    Args:
        stored: the holding.
        start, end: nanoseconds since 1970, `end` excluded.
    """
    one = stored.holding
    if one.until is not None:
        return one.since < end and one.until > start
    return one.since < end and max(one.since, stored.reported_at + HOLDING_TTL_NS) >= start


def current_holdings(stored: Iterable[StoredHolding], now: int) -> tuple[Holding, ...]:
    """Return the holdings that last at an instant, with any verdict."""
    return tuple([one.holding for one in stored if known_until(one, now) is None])


def is_certain(holding: Holding) -> bool:
    """Return whether a holding proves that its holder has the device: its readings may be answered to the holder."""
    return holding.verdict not in NOT_CERTAIN


def by_certainty(stored: StoredHolding) -> Iterator[StoredHolding]:
    """Yield the parts of a holding with a constant verdict: with the last certain one, and from then on `unknown`."""
    one, certain = stored.holding, stored.holding.certain
    if one.verdict is not HoldingVerdict.UNKNOWN or certain is None or certain.verdict in NOT_CERTAIN:
        yield stored
        return
    at = max(one.since, certain.until if one.until is None else min(certain.until, one.until))
    first = msgspec.structs.replace(one, verdict=certain.verdict, until=at, certain=None)
    rest = msgspec.structs.replace(one, since=at, certain=None)
    yield msgspec.structs.replace(stored, holding=first)
    yield msgspec.structs.replace(stored, holding=rest)


def may_label(holding: Holding, at: int) -> bool:
    """Return whether a reading may name the holder: it is certain, and had the device when the reading was measured.

    Args:
        holding: the holding.
        at: time of the measurement, nanoseconds since 1970.
    """
    return is_certain(holding) and holding.since <= at and (holding.until is None or at < holding.until)


def current_states(reports: Iterable[StoredHolderStates], now: int) -> dict[str, DeviceState]:
    """Return view key to the present holder state of each device of a machine.

    If reports of several senders have a device, the least certain state counts: a device is free only if none of them
    reports otherwise.

    Args:
        reports: the newest report of each sender.
        now: nanoseconds since 1970 by the hub's clock.
    """
    found: dict[str, DeviceState] = {}
    for report in reports:
        if not _is_repeated(report, now):
            continue
        for one in report.devices:
            before = found.get(one.view)
            if before is None or _LEAST_CERTAIN.index(one.state) < _LEAST_CERTAIN.index(before.state):
                found[one.view] = one
    return found


def unresolved_counts(reports: Iterable[StoredHolderStates], now: int) -> dict[str, int | None]:
    """Return the number of unresolved device names by holder source, as senders report it now; None if it is unknown.

    If reports of several senders have a source, the largest number counts. Arguments as for `current_states`.
    """
    found: dict[str, list[int]] = {}
    for report in reports:
        if _is_repeated(report, now):
            for one in report.unresolved:
                known = found.setdefault(clean(one.source), [])
                if one.names is not None:
                    known.append(one.names)
    return {source: max(known, default=None) for source, known in sorted(found.items())}


def unresolved_total(counts: Mapping[str, int | None]) -> int | None:
    """Return the number of unresolved device names of all sources.

    None if there is no source, or if all known numbers are 0 and the number of a source is unknown.
    """
    total = sum(count for count in counts.values() if count is not None)
    return total or (0 if counts and None not in counts.values() else None)


def unresolved_names(reports: Iterable[StoredHolderStates], now: int) -> dict[str, tuple[str, ...]]:
    """Return the first unresolved device names by holder source; sources without a name are left out.

    If reports of several senders have a source, the names of all of them count. Arguments as for `current_states`.
    """
    found: dict[str, set[str]] = {}
    for report in reports:
        if _is_repeated(report, now):
            for one in report.unresolved:
                found.setdefault(clean(one.source), set()).update(map(clean, one.examples))
    return {source: tuple(sorted(names)[:MAX_UNRESOLVED_NAMES]) for source, names in sorted(found.items()) if names}


def _is_repeated(report: StoredHolderStates, now: int) -> bool:
    """Return whether a report is recent enough to describe the present.

    A backlog is received late, and the hub's clock can move back: both instants must be within the limit.
    """
    return all(abs(now - at) <= HOLDING_TTL_NS for at in (report.reported_at, report.sent_at))
