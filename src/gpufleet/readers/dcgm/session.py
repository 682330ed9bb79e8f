"""What holds for one connection to an engine: its version, its GPUs, how it tells values, what it does not know.

MIG: which parts a GPU is cut into, by the engine's hierarchy.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.codes import (
    BAD_PARAMETER,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    UNKNOWN_FIELD,
    VERSION_MISMATCH,
)
from gpufleet.codecs.dcgm_wire.commands import LADDER, MAX_FIELDS, Latest
from gpufleet.codecs.dcgm_wire.replies import Instance
from gpufleet.codecs.dcgm_wire.values import COMPUTE_INSTANCE, GPU, GPU_INSTANCE, MOST_RECORD_BYTES, Entity, FieldValue
from gpufleet.model.errors import GpufleetError
from gpufleet.model.text import clean
from gpufleet.readers.dcgm.client import EngineClient, EngineError

SPOKEN_MAJOR = "4"
"""Major version whose structs are known."""

VERSION_LETTERS = 64
MAX_GPUS = 32
"""As many as DCGM itself has room for (DCGM_MAX_NUM_DEVICES); what an engine lists beyond them is not read."""


class IncompatibleError(GpufleetError):
    """The engine is of a version that is not spoken here.

    Attributes:
        version: as it says it, or empty.
    """

    def __init__(self, words: str, version: str) -> None:
        self.version = version
        super().__init__(words)


class Session(NamedTuple):
    """What an engine said when it was first asked.

    Attributes:
        connection: the client's number of the connection.
        version: of DCGM.
        form: in which it tells latest values; not the ladder's first means that others were refused.
        gpus: its GPUs, by DCGM's ids; the first `MAX_GPUS` of them.
        listed: how many it has.
        unknown: those of the fields that it was tried with which it does not know.
    """

    connection: int
    version: str
    form: Latest
    gpus: tuple[Entity, ...]
    listed: int
    unknown: frozenset[int]


async def start(client: EngineClient, fields: Sequence[int]) -> Session:
    """Ask an engine who it is.

    Args:
        client: of the engine.
        fields: all that will be asked live.

    Raises:
        IncompatibleError: if its version is not spoken, or it knows none of the forms.
        EngineError, ChannelError, WireError: as `EngineClient.ask`.
    """
    connection = await client.open()
    said = await client.ask(commands.VERSION, requests.ask_version, replies.read_version)
    version = clean(said.get("version", ""))[:VERSION_LETTERS]
    if version.partition(".")[0] != SPOKEN_MAJOR:
        words = f"DCGM {version or 'of unknown version'} is not spoken here, {SPOKEN_MAJOR}.x is"
        raise IncompatibleError(words, version)
    ids = await client.ask(commands.ENTITIES, lambda n: requests.ask_entities(n, GPU), replies.read_entities)
    listed = tuple(Entity(GPU, id_) for id_ in dict.fromkeys(ids))
    gpus = listed[:MAX_GPUS]
    for form in LADDER:
        try:
            await _once(client, form, gpus[:1], fields[:1])
        except EngineError as error:
            if error.code not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                raise
        else:
            unknown = await _unknown(client, form, gpus[:1], fields) if gpus else set()
            return Session(connection, version, form, gpus, len(listed), frozenset(unknown))
    raise IncompatibleError(f"DCGM {version} knows none of the forms of latest values that are spoken here", version)


async def _unknown(client: EngineClient, form: Latest, gpu: Sequence[Entity], fields: Sequence[int]) -> set[int]:
    """Return which of the fields an engine does not know: one of them can fail a whole question."""
    try:
        told = await latest(client, form, gpu, fields)
    except EngineError as error:
        if error.code not in (UNKNOWN_FIELD, BAD_PARAMETER):
            raise
        if len(fields) == 1:
            return set(fields)
    else:
        return {value.field for value in told if value.status == UNKNOWN_FIELD}
    half = len(fields) // 2
    return await _unknown(client, form, gpu, fields[:half]) | await _unknown(client, form, gpu, fields[half:])


async def latest(
    client: EngineClient, form: Latest, entities: Sequence[Entity], fields: Sequence[int], *, live: bool = True
) -> list[FieldValue]:
    """Ask for the newest values, in as many questions as the form needs; raises as `EngineClient.ask`."""
    found: list[FieldValue] = []
    for at in range(0, len(entities), form.entities):
        some = entities[at : at + form.entities]
        for first in range(0, len(fields), MAX_FIELDS):
            found += await _halved(client, form, some, fields[first : first + MAX_FIELDS], live=live)
    return found


async def _halved(
    client: EngineClient, form: Latest, entities: Sequence[Entity], fields: Sequence[int], *, live: bool
) -> list[FieldValue]:
    """Ask; if the answer does not fit its buffer, ask for half of it twice."""
    try:
        return await _once(client, form, entities, fields, live=live)
    except EngineError as error:
        if error.code != INSUFFICIENT_SIZE or len(entities) * len(fields) < 2:
            raise
    if len(entities) > 1:
        half = len(entities) // 2
        parts = [(entities[:half], fields), (entities[half:], fields)]
    else:
        half = len(fields) // 2
        parts = [(entities, fields[:half]), (entities, fields[half:])]
    return [value for some, few in parts for value in await _halved(client, form, some, few, live=live)]


async def _once(
    client: EngineClient, form: Latest, entities: Sequence[Entity], fields: Sequence[int], *, live: bool = True
) -> list[FieldValue]:
    most = len(entities) * len(fields)
    return await client.ask(
        form.command,
        lambda number: requests.ask_latest(form, number, entities, fields, live=live),
        lambda body: replies.read_latest(form, body, most),
        most_bytes=form.fixed + most * MOST_RECORD_BYTES,
    )


class Part(NamedTuple):
    """One MIG device: a compute instance.

    Attributes:
        gpu: that it is cut from.
        gpu_instance, compute_instance: entities of DCGM.
        ids: the driver's ids of both on that GPU.
        slices: of both.
    """

    gpu: Entity
    gpu_instance: Entity
    compute_instance: Entity
    ids: tuple[int, int]
    slices: tuple[int, int]


async def ask_parts(client: EngineClient) -> list[Part]:
    """Ask an engine for all MIG devices; raises as `EngineClient.ask`."""
    return parts_of(await client.ask(commands.HIERARCHY, requests.ask_hierarchy, replies.read_hierarchy))


def parts_of(hierarchy: Sequence[Instance]) -> list[Part]:
    """Return the MIG devices; a compute instance without a GPU instance of a GPU is none."""
    instances = {one.entity: one for one in hierarchy if one.entity.group == GPU_INSTANCE and one.parent.group == GPU}
    found: dict[Entity, Part] = {}
    for one in hierarchy:
        above = instances.get(one.parent)
        if one.entity.group == COMPUTE_INSTANCE and above is not None:
            found[one.entity] = Part(
                gpu=above.parent,
                gpu_instance=above.entity,
                compute_instance=one.entity,
                ids=(above.gpu_instance, one.compute_instance),
                slices=(above.slices, one.slices),
            )
    return list(found.values())


def entities_of(parts: Sequence[Part]) -> tuple[Entity, ...]:
    """Return the entities of all parts, each once."""
    return tuple(dict.fromkeys(entity for part in parts for entity in (part.gpu_instance, part.compute_instance)))
