"""XID events from the samples that the engine stores of each XID."""

from collections.abc import Iterable, Mapping

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.codes import NO_DATA, NOT_WATCHED, blank_of
from gpufleet.codecs.dcgm_wire.commands import Latest
from gpufleet.codecs.dcgm_wire.values import MOST_RECORD_BYTES, Entity, FieldValue
from gpufleet.model.event import Event, EventKind
from gpufleet.model.view import View
from gpufleet.model.xid import LAST_NUMBER
from gpufleet.readers.dcgm.client import EngineClient, EngineError
from gpufleet.readers.dcgm.session import latest_values
from gpufleet.readers.dcgm.watches import WatchSet

FIELD = 230
WATCH_SET = WatchSet("xids", (FIELD,), every_seconds=10.0, keep_seconds=3600.0, keep_samples=256)
"""Watch of XIDs. The driver notifies the engine of an XID at once, independent of the sampling interval."""

MAX_XIDS = 64
"""Maximum number of XIDs of one entity in one pass; the next pass continues."""

AHEAD_MICROSECONDS = 1_000_000


class XidHistory:
    """Reports each XID once: stores, across connections, the time of the last reported XID of each entity."""

    def __init__(self) -> None:
        self._reported: dict[Entity, int] = {}

    async def new(
        self, client: EngineClient, form: Latest, entities: tuple[Entity, ...], engine_now: int
    ) -> list[FieldValue]:
        """Return the XIDs since the last call, oldest first within each entity.

        Args:
            client: of the engine.
            form: request form for latest values.
            entities: watched entities; XIDs that precede the first call for an entity are not reported.
            engine_now: microseconds since 1970 by the engine's clock.

        Raises:
            EngineError, ChannelError, WireError: as `EngineClient.request`.
        """
        values = await latest_values(client, form, entities, (FIELD,), live=False)
        newest = {value.entity: value for value in values if _xid(value)}
        known, self._reported = self._reported, {}
        found: list[FieldValue] = []
        for entity in entities:
            sample = newest.get(entity)
            last = sample.microseconds if sample is not None else 0
            mark = known.get(entity, last)
            if mark > engine_now + AHEAD_MICROSECONDS:  # the engine's clock was set back
                mark = engine_now - AHEAD_MICROSECONDS
            self._reported[entity] = mark
            if last > mark:
                found += await self._since(client, entity, engine_now + AHEAD_MICROSECONDS)
        return found

    async def _since(self, client: EngineClient, entity: Entity, until: int) -> list[FieldValue]:
        since = self._reported[entity] + 1
        try:
            samples = await client.request(
                commands.HISTORY,
                lambda n: requests.history_request(n, entity, FIELD, since, MAX_XIDS),
                lambda body: replies.read_history(body, MAX_XIDS),
                max_bytes=commands.HISTORY_FIXED + MAX_XIDS * MOST_RECORD_BYTES,
            )
        except EngineError as error:
            if error.code in (NO_DATA, NOT_WATCHED):
                return []
            raise
        new = [sample for sample in samples if sample.entity == entity and since <= sample.microseconds <= until]
        self._reported[entity] = max([self._reported[entity], *(sample.microseconds for sample in new)])
        return sorted((sample for sample in new if _xid(sample)), key=lambda sample: sample.microseconds)


def map_events(
    samples: Iterable[FieldValue], views: Mapping[Entity, tuple[View, Mapping[str, str]]], offset_ns: int, now: int
) -> tuple[Event, ...]:
    """Convert samples of the XID field to events, with this machine's time.

    Args:
        samples: of the XID field.
        views: entity to the GPU's view and the attributes that identify the instance.
        offset_ns: the engine's clock minus this machine's.
        now: upper bound of event times, in nanoseconds since 1970.
    """
    return tuple(
        Event(
            view=views[sample.entity][0],
            kind=EventKind.XID,
            code=_xid(sample),
            at=min(sample.microseconds * 1000 - offset_ns, now),
            attributes={"sources": "dcgm", **views[sample.entity][1]},
        )
        for sample in samples
        if sample.entity in views
    )


def _xid(value: FieldValue) -> int:
    """Return the XID, or 0 if the value is not an XID."""
    xid = value.value
    if value.field != FIELD or value.status or not isinstance(xid, int) or blank_of(xid) is not None:
        return 0
    return xid if 0 < xid <= LAST_NUMBER else 0
