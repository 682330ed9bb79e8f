"""XIDs: the engine keeps a sample of each; those that are new become events."""

from collections.abc import Iterable, Mapping

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.codes import NO_DATA, NOT_WATCHED, blank_of
from gpufleet.codecs.dcgm_wire.commands import Latest
from gpufleet.codecs.dcgm_wire.values import MOST_RECORD_BYTES, Entity, FieldValue
from gpufleet.model.event import Event, EventKind
from gpufleet.model.view import View
from gpufleet.readers.dcgm.client import EngineClient, EngineError
from gpufleet.readers.dcgm.session import latest
from gpufleet.readers.dcgm.watches import WatchSet

FIELD = 230
SET = WatchSet("xids", (FIELD,), every_seconds=10.0, keep_seconds=3600.0, keep_samples=256)
"""The driver tells the engine of an XID when it happens, not when the engine samples."""

MOST = 64
"""XIDs of one entity that are taken in one pass; the next pass takes the next."""

LAST_NUMBER = 0xFFFF
AHEAD_MICROSECONDS = 1_000_000


class XidHistory:
    """Remembers, over connections, up to when the XIDs of each entity were told."""

    def __init__(self) -> None:
        self._told: dict[Entity, int] = {}

    async def new(
        self, client: EngineClient, form: Latest, entities: tuple[Entity, ...], engine_now: int
    ) -> list[FieldValue]:
        """Return the samples that were not told yet, the oldest of each entity first.

        Args:
            client: of the engine.
            form: of latest values.
            entities: that are watched; of one that is new here, what the engine has of it by now is not told.
            engine_now: microseconds since 1970 by the engine's clock.

        Raises:
            EngineError, ChannelError, WireError: as `EngineClient.ask`.
        """
        newest = {one.entity: one for one in await latest(client, form, entities, (FIELD,), live=False) if _number(one)}
        known, self._told = self._told, {}
        found: list[FieldValue] = []
        for entity in entities:
            sample = newest.get(entity)
            last = sample.microseconds if sample is not None else 0
            mark = known.get(entity, last)
            if mark > engine_now + AHEAD_MICROSECONDS:  # of before the engine's clock was set back
                mark = engine_now - AHEAD_MICROSECONDS
            self._told[entity] = mark
            if last > mark:
                found += await self._since(client, entity, engine_now + AHEAD_MICROSECONDS)
        return found

    async def _since(self, client: EngineClient, entity: Entity, until: int) -> list[FieldValue]:
        since = self._told[entity] + 1
        try:
            samples = await client.ask(
                commands.HISTORY,
                lambda n: requests.ask_history(n, entity, FIELD, since, MOST),
                lambda body: replies.read_history(body, MOST),
                most_bytes=commands.HISTORY_FIXED + MOST * MOST_RECORD_BYTES,
            )
        except EngineError as error:
            if error.code in (NO_DATA, NOT_WATCHED):
                return []
            raise
        new = [one for one in samples if one.entity == entity and since <= one.microseconds <= until]
        self._told[entity] = max([self._told[entity], *(one.microseconds for one in new)])
        return sorted((one for one in new if _number(one)), key=lambda one: one.microseconds)


def events_of(
    samples: Iterable[FieldValue], views: Mapping[Entity, tuple[View, Mapping[str, str]]], offset_ns: int, now: int
) -> tuple[Event, ...]:
    """Return events.

    Args:
        samples: of the XID field.
        views: entity to the GPU's view, and the words that name the instance.
        offset_ns: the engine's clock minus ours: events bear our time.
        now: nothing happened later than this.
    """
    return tuple(
        Event(
            view=views[sample.entity][0],
            kind=EventKind.XID,
            code=_number(sample),
            at=min(sample.microseconds * 1000 - offset_ns, now),
            attributes={"sources": "dcgm", **views[sample.entity][1]},
        )
        for sample in samples
        if sample.entity in views
    )


def _number(value: FieldValue) -> int:
    """Return an XID, or 0 for what is none."""
    told = value.value
    is_one = value.field == FIELD and not value.status and isinstance(told, int) and blank_of(told) is None
    return told if is_one and isinstance(told, int) and 0 < told <= LAST_NUMBER else 0
