"""Holdings that machines reported to a hub: how long they last, and which of them name the present holders. Pure.

Agents and importers repeat each holding every `REPEAT_SECONDS` and report its end. A holding that is neither repeated
nor ended is not known any more: its agent stopped, or lost the file with its holdings. It then ends at its last report.
"""

from collections.abc import Iterable

from gpufleet.model.holdings import REPEAT_SECONDS, Holding, HoldingVerdict
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS

HOLDING_TTL_NS = (3 * REPEAT_SECONDS + 60) * NANOS
"""Time after which a holding that was not repeated is not known any more: three repetitions and a minute."""

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


def may_label(holding: Holding, at: int) -> bool:
    """Return whether a reading may name the holder: it is certain, and had the device when the reading was measured.

    Args:
        holding: the holding.
        at: time of the measurement, nanoseconds since 1970.
    """
    return is_certain(holding) and holding.since <= at and (holding.until is None or at < holding.until)
