"""Who holds a device, as the labels of its series say: told when it changes. Pure.

A scrape can come in parts. So a holder that a scrape does not name has let go of the device at that scrape, once the
next one begins. A series that ends says nothing of its holder: the exporter may be down.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.holding import Holder, Holding, Share, Verdict
from gpufleet.model.machine import Machine
from gpufleet.model.view import ViewKind

METHOD = "exporter_labels"
"""How these holdings were established."""

Place = tuple[Machine, str]
"""A machine, and the key of a view."""

Found = Mapping[tuple[str, int], frozenset[Holder]]
"""Key of a view and an instant (nanoseconds since 1970) to the holders that series of it name."""


class Held(msgspec.Struct, frozen=True):
    """Who holds one view.

    Attributes:
        at: the newest instant at which it was told of; 0 where only the store remembers it.
        seen: holders that were named then.
        since: holder to when it was first named, of those that have not let go.
        together: holder to how many were named in the last whole scrape that named it.
    """

    at: int = 0
    seen: frozenset[Holder] = frozenset()
    since: Mapping[Holder, int] = {}
    together: Mapping[Holder, int] = {}


class Holders:
    """What one writer's series say."""

    def __init__(self) -> None:
        self._held: dict[Place, Held] = {}

    def __len__(self) -> int:
        """Return how many views are remembered."""
        return len(self._held)

    def remember(self, machine: Machine, holdings: Iterable[Holding]) -> None:
        """Take what an earlier process has stored of a machine."""
        for one in holdings:
            if METHOD in one.methods and one.until is None:
                before = self._held.get((machine, one.view), Held())
                since = {**before.since, one.holder: one.since}
                self._held[machine, one.view] = msgspec.structs.replace(before, since=since)

    def changes(self, machine: Machine, found: Found) -> tuple[tuple[Holding, ...], dict[Place, Held]]:
        """Return what changes by what was found of a machine, and what is to be kept once that is durable."""
        new: dict[Place, Held] = {}
        told: dict[tuple[str, Holder, int], Holding] = {}
        for (view, at), holders in sorted(found.items(), key=lambda one: one[0]):
            place = machine, view
            before = new.get(place) or self._held.get(place, Held())
            if at < before.at:
                continue  # of a time that is known already
            after = _after(before, at, holders)
            for holder, since in before.since.items() - after.since.items():
                sharers = after.together.get(holder, len(before.since))
                told[view, holder, since] = _holding(view, holder, since, before.at, sharers)
            if after.since != before.since:
                for holder, since in after.since.items():
                    told[view, holder, since] = _holding(view, holder, since, None, len(after.since))
            new[place] = after
        return tuple(told.values()), new

    def keep(self, held: Mapping[Place, Held]) -> None:
        """Remember what `changes` returned."""
        self._held.update(held)

    def forget_before(self, at: int) -> None:
        """Forget views that nothing was said of since then; who held them last stays as it is."""
        self._held = {place: held for place, held in self._held.items() if held.at >= at or not held.at}


def _after(before: Held, at: int, holders: frozenset[Holder]) -> Held:
    """Return who holds a view after a part of a scrape."""
    if at == before.at:
        since, seen, together = dict(before.since), before.seen | holders, before.together
    else:
        # The scrape before is complete: whoever it does not name had let go of the view by then.
        gone = before.since.keys() - before.seen if before.at else set()
        since = {holder: begun for holder, begun in before.since.items() if holder not in gone}
        seen = holders
        together = {one: count for one, count in before.together.items() if one in before.since}
        together |= dict.fromkeys(before.seen, len(before.seen))
    for holder in sorted(holders, key=lambda one: one.id):
        since.setdefault(holder, at)
    return Held(at, seen, since, together)


def _holding(view: str, holder: Holder, since: int, until: int | None, sharers: int) -> Holding:
    share = Share.TIMESLICE if sharers > 1 else Share.EXCLUSIVE
    return Holding(
        view=view,
        holder=holder,
        share=Share.MIG if view.startswith(f"{ViewKind.MIG}/") else share,
        since=since,
        until=until,
        methods=(METHOD,),
        verdict=Verdict.OBSERVED_ONLY,
    )
