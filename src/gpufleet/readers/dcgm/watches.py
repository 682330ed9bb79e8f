"""Watches: profiling fields and XIDs, which an engine reports only while it samples them.

Each set has its own field groups. They watch DCGM's group of all GPUs, or an entity group of our own if there are MIG
devices. Groups belong to the connection: the engine drops them when it ends. Groups of other clients are not touched.
"""

import contextlib
import itertools
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.values import GPU, Entity
from gpufleet.readers.dcgm.client import EngineClient, EngineError

MAX_REFUSALS = 3
"""If this many single fields were refused and none accepted, the remaining fields are not tried."""


class WatchSet(NamedTuple):
    """Set of fields that are watched together.

    Attributes:
        name: of the set.
        fields: at most `MAX_FIELDS`.
        every_seconds: sampling interval of the engine.
        keep_seconds: maximum age of a stored sample.
        keep_samples: maximum number of stored samples of each field.
    """

    name: str
    fields: tuple[int, ...]
    every_seconds: float
    keep_seconds: float
    keep_samples: int


class WatchResult(NamedTuple):
    """Result of watching a set.

    Attributes:
        fields: fields that the engine samples.
        refused: refused fields, with the return code of the engine.
    """

    fields: tuple[int, ...]
    refused: dict[int, int]


class WatchManager:
    """Creates each watch set once per connection and list of entities."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._names = (f"gpufleet-{secrets.token_hex(4)}-{number}" for number in itertools.count())
        self._made_for: tuple[int, tuple[Entity, ...]] | None = None
        self._group: int | None = None
        self._own_group = False
        self._made: dict[str, WatchResult] = {}
        self._groups_of_fields: list[int] = []

    async def ensure(self, wanted: WatchSet, entities: tuple[Entity, ...]) -> WatchResult:
        """Watch a set unless it is watched already; watches of earlier entities are removed.

        Raises:
            EngineError, ChannelError, WireError: as `EngineClient.request`. Refused fields are no error.
        """
        connection = await self._client.open()
        if self._made_for != (connection, entities):
            if self._made_for is not None and self._made_for[0] == connection:
                await self._remove_watches()
            self._made_for = (connection, entities)
            self._group, self._own_group, self._made, self._groups_of_fields = None, False, {}, []
        if self._group is None:
            self._group = await self._create_group(entities)
        if wanted.name not in self._made:
            self._made[wanted.name] = await self._watch_all(wanted, self._group)
        return self._made[wanted.name]

    def retry_refused(self) -> None:
        """Retry sets whose fields were all refused: a module may have been loaded or resumed since."""
        self._made = {name: made for name, made in self._made.items() if made.fields}

    async def _create_group(self, entities: tuple[Entity, ...]) -> int:
        if all(entity.group == GPU for entity in entities):
            return commands.ALL_GPUS
        group = await self._client.request(
            commands.GROUP_CREATE, lambda n: requests.create_group_request(n, next(self._names)), replies.read_group
        )
        try:
            for entity in entities:
                await self._client.request(
                    commands.GROUP_ADD,
                    partial(requests.add_to_group_request, group=group, entity=entity),
                    replies.read_empty,
                )
        except EngineError:
            await self._destroy_group(group)  # an engine has at most 64 groups, shared by all clients
            raise
        self._own_group = True
        return group

    async def _watch_all(self, wanted: WatchSet, group: int) -> WatchResult:
        """Watch a set; if the engine refuses it, find the refused fields by bisection."""
        refused: dict[int, int] = {}
        await self._watch_split(wanted, group, wanted.fields, refused, len(self._groups_of_fields))
        return WatchResult(tuple(field for field in wanted.fields if field not in refused), refused)

    async def _watch_split(
        self, wanted: WatchSet, group: int, fields: Sequence[int], refused: dict[int, int], before: int
    ) -> None:
        if len(refused) >= MAX_REFUSALS and len(self._groups_of_fields) == before:
            refused |= dict.fromkeys(fields, next(reversed(refused.values())))
            return
        code = await self._watch(wanted, group, fields)
        if code and len(fields) == 1:
            refused[fields[0]] = code
        elif code:
            half = len(fields) // 2
            await self._watch_split(wanted, group, fields[:half], refused, before)
            await self._watch_split(wanted, group, fields[half:], refused, before)

    async def _watch(self, wanted: WatchSet, group: int, fields: Sequence[int]) -> int:
        """Watch fields of a set in one group; return the code of the refusal, or 0."""
        try:
            made = await self._client.request(
                commands.FIELDS_CREATE,
                lambda n: requests.create_fields_request(n, next(self._names), fields),
                replies.read_fields,
            )
        except EngineError as error:
            return error.code
        try:
            await self._client.request(
                commands.WATCH,
                lambda n: requests.watch_request(
                    n,
                    group,
                    made,
                    every_seconds=wanted.every_seconds,
                    keep_seconds=wanted.keep_seconds,
                    keep_samples=wanted.keep_samples,
                ),
                replies.read_empty,
            )
        except EngineError as error:
            await self._destroy_fields(made)
            return error.code
        self._groups_of_fields.append(made)
        return 0

    async def _remove_watches(self) -> None:
        group = self._group
        if group is None:
            return
        for fields in self._groups_of_fields:
            await self._undo(commands.UNWATCH, partial(requests.unwatch_request, group=group, fields=fields))
            await self._destroy_fields(fields)
        if self._own_group:
            await self._destroy_group(group)

    async def _destroy_group(self, group: int) -> None:
        await self._undo(commands.GROUP_DESTROY, partial(requests.destroy_group_request, group=group))

    async def _destroy_fields(self, fields: int) -> None:
        await self._undo(commands.FIELDS_DESTROY, partial(requests.destroy_fields_request, fields=fields))

    async def _undo(self, command: commands.Command, request: Callable[[int], bytes]) -> None:
        """Remove a watch or group; one that the engine no longer has is no error."""
        with contextlib.suppress(EngineError):
            await self._client.request(command, request, replies.read_empty)
