"""What an engine samples for us: profiling fields and XIDs, which it does not tell otherwise.

Each set has groups of fields of its own, over a group of entities of our own where `all GPUs` does not say it. They
are this connection's: the engine forgets them when it ends, and nobody else's are touched.
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

HOPELESS = 3
"""After so many fields that were refused one by one, and none that was not, the others are not tried."""


class WatchSet(NamedTuple):
    """Fields that are watched together.

    Attributes:
        name: of the set.
        fields: at most `MAX_FIELDS`.
        every_seconds: how often the engine samples them.
        keep_seconds: for how long it keeps a sample.
        keep_samples: how many of each it keeps at the most.
    """

    name: str
    fields: tuple[int, ...]
    every_seconds: float
    keep_seconds: float
    keep_samples: int


class Watched(NamedTuple):
    """What became of a set.

    Attributes:
        fields: those that the engine samples now.
        refused: the others, to the code with which it refused them.
    """

    fields: tuple[int, ...]
    refused: dict[int, int]


class Watches:
    """Makes each set once a connection and list of entities."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._names = (f"gpufleet-{secrets.token_hex(4)}-{number}" for number in itertools.count())
        self._made_for: tuple[int, tuple[Entity, ...]] | None = None
        self._group: int | None = None
        self._own_group = False
        self._made: dict[str, Watched] = {}
        self._groups_of_fields: list[int] = []

    async def ensure(self, wanted: WatchSet, entities: tuple[Entity, ...]) -> Watched:
        """Have a set watched, unless it is already; what was watched for other entities is given back.

        Raises:
            EngineError, ChannelError, WireError: as `EngineClient.ask`. That fields are refused is no error.
        """
        connection = await self._client.open()
        if self._made_for != (connection, entities):
            if self._made_for is not None and self._made_for[0] == connection:
                await self._give_back()
            self._made_for = (connection, entities)
            self._group, self._own_group, self._made, self._groups_of_fields = None, False, {}, []
        if self._group is None:
            self._group = await self._group_of(entities)
        if wanted.name not in self._made:
            self._made[wanted.name] = await self._all(wanted, self._group)
        return self._made[wanted.name]

    def try_refused_again(self) -> None:
        """Forget which sets the engine refused as a whole: a module can be loaded, or resumed, meanwhile."""
        self._made = {name: made for name, made in self._made.items() if made.fields}

    async def _group_of(self, entities: tuple[Entity, ...]) -> int:
        if all(entity.group == GPU for entity in entities):
            return commands.ALL_GPUS
        group = await self._client.ask(
            commands.GROUP_CREATE, lambda n: requests.ask_group(n, next(self._names)), replies.read_group
        )
        try:
            for entity in entities:
                await self._client.ask(
                    commands.GROUP_ADD,
                    partial(requests.ask_group_add, group=group, entity=entity),
                    replies.read_nothing,
                )
        except EngineError:
            await self._end_group(group)  # an engine has room for 64, of all its clients
            raise
        self._own_group = True
        return group

    async def _all(self, wanted: WatchSet, group: int) -> Watched:
        """Watch a set; where one field fails it as a whole, find out which."""
        refused: dict[int, int] = {}
        await self._halves(wanted, group, wanted.fields, refused, len(self._groups_of_fields))
        return Watched(tuple(field for field in wanted.fields if field not in refused), refused)

    async def _halves(
        self, wanted: WatchSet, group: int, fields: Sequence[int], refused: dict[int, int], before: int
    ) -> None:
        if len(refused) >= HOPELESS and len(self._groups_of_fields) == before:
            refused |= dict.fromkeys(fields, next(reversed(refused.values())))
            return
        code = await self._some(wanted, group, fields)
        if code and len(fields) == 1:
            refused[fields[0]] = code
        elif code:
            half = len(fields) // 2
            await self._halves(wanted, group, fields[:half], refused, before)
            await self._halves(wanted, group, fields[half:], refused, before)

    async def _some(self, wanted: WatchSet, group: int, fields: Sequence[int]) -> int:
        """Watch some fields of a set; return the code with which the engine refuses, or 0."""
        try:
            made = await self._client.ask(
                commands.FIELDS_CREATE, lambda n: requests.ask_fields(n, next(self._names), fields), replies.read_fields
            )
        except EngineError as error:
            return error.code
        try:
            await self._client.ask(
                commands.WATCH,
                lambda n: requests.ask_watch(
                    n,
                    group,
                    made,
                    every_seconds=wanted.every_seconds,
                    keep_seconds=wanted.keep_seconds,
                    keep_samples=wanted.keep_samples,
                ),
                replies.read_nothing,
            )
        except EngineError as error:
            await self._end_fields(made)
            return error.code
        self._groups_of_fields.append(made)
        return 0

    async def _give_back(self) -> None:
        group = self._group
        if group is None:
            return
        for fields in self._groups_of_fields:
            await self._end(commands.UNWATCH, partial(requests.ask_unwatch, group=group, fields=fields))
            await self._end_fields(fields)
        if self._own_group:
            await self._end_group(group)

    async def _end_group(self, group: int) -> None:
        await self._end(commands.GROUP_DESTROY, partial(requests.ask_group_end, group=group))

    async def _end_fields(self, fields: int) -> None:
        await self._end(commands.FIELDS_DESTROY, partial(requests.ask_fields_end, fields=fields))

    async def _end(self, command: commands.Command, request: Callable[[int], bytes]) -> None:
        """Give something back; what the engine has no more need not be."""
        with contextlib.suppress(EngineError):
            await self._client.ask(command, request, replies.read_nothing)
