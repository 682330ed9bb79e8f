"""Engine session: version, GPUs, supported request form and unknown fields of one connection; and its MIG devices."""

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
from gpufleet.codecs.dcgm_wire.commands import LATEST_FORMS, MAX_FIELDS, Latest
from gpufleet.codecs.dcgm_wire.replies import Instance
from gpufleet.codecs.dcgm_wire.values import COMPUTE_INSTANCE, GPU, GPU_INSTANCE, MOST_RECORD_BYTES, Entity, FieldValue
from gpufleet.model.errors import GpufleetError
from gpufleet.model.text import clean
from gpufleet.readers.dcgm.client import EngineClient, EngineError

SUPPORTED_MAJOR = "4"
"""Major version of DCGM whose structs are implemented."""

MAX_VERSION_LENGTH = 64
MAX_GPUS = 32
"""Maximum of DCGM itself (DCGM_MAX_NUM_DEVICES); further GPUs of an engine are not read."""


class IncompatibleError(GpufleetError):
    """The engine's version is not supported.

    Attributes:
        version: as reported, or empty.
    """

    def __init__(self, message: str, version: str) -> None:
        self.version = version
        super().__init__(message)


class EngineSession(NamedTuple):
    """Properties of an engine, valid for one connection.

    Attributes:
        connection: number of the connection, from the client.
        version: of DCGM.
        form: request form for latest values: the first of `LATEST_FORMS` that the engine accepts.
        gpus: the first `MAX_GPUS` GPUs, by DCGM's ids.
        gpu_count: number of GPUs that the engine lists.
        unknown: requested fields that the engine does not know.
    """

    connection: int
    version: str
    form: Latest
    gpus: tuple[Entity, ...]
    gpu_count: int
    unknown: frozenset[int]


async def start_session(client: EngineClient, fields: Sequence[int]) -> EngineSession:
    """Open a session: query version, GPUs, request form and unknown fields.

    Args:
        client: of the engine.
        fields: all fields that will be requested live.

    Raises:
        IncompatibleError: if the version is not supported, or the engine accepts none of the request forms.
        EngineError, ChannelError, WireError: as `EngineClient.request`.
    """
    connection = await client.open()
    reply = await client.request(commands.VERSION, requests.version_request, replies.read_version)
    version = clean(reply.get("version", ""))[:MAX_VERSION_LENGTH]
    if version.partition(".")[0] != SUPPORTED_MAJOR:
        message = f"DCGM {version or 'of unknown version'} is not supported, only {SUPPORTED_MAJOR}.x"
        raise IncompatibleError(message, version)
    ids = await client.request(commands.ENTITIES, lambda n: requests.entities_request(n, GPU), replies.read_entities)
    listed = tuple(Entity(GPU, id_) for id_ in dict.fromkeys(ids))
    gpus = listed[:MAX_GPUS]
    for form in LATEST_FORMS:
        try:
            await _query(client, form, gpus[:1], fields[:1])
        except EngineError as error:
            if error.code not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                raise
        else:
            unknown = await _unknown_fields(client, form, gpus[:1], fields) if gpus else set()
            return EngineSession(connection, version, form, gpus, len(listed), frozenset(unknown))
    raise IncompatibleError(f"DCGM {version} supports none of the implemented requests for latest values", version)


async def _unknown_fields(client: EngineClient, form: Latest, gpu: Sequence[Entity], fields: Sequence[int]) -> set[int]:
    """Return the fields that an engine does not know, by bisection: a single one can fail a whole request."""
    try:
        values = await latest_values(client, form, gpu, fields)
    except EngineError as error:
        if error.code not in (UNKNOWN_FIELD, BAD_PARAMETER):
            raise
        if len(fields) == 1:
            return set(fields)
    else:
        return {value.field for value in values if value.status == UNKNOWN_FIELD}
    half = len(fields) // 2
    return await _unknown_fields(client, form, gpu, fields[:half]) | await _unknown_fields(
        client, form, gpu, fields[half:]
    )


async def latest_values(
    client: EngineClient, form: Latest, entities: Sequence[Entity], fields: Sequence[int], *, live: bool = True
) -> list[FieldValue]:
    """Request the latest values, in as many requests as the form needs; raises as `EngineClient.request`."""
    found: list[FieldValue] = []
    for at in range(0, len(entities), form.entities):
        some = entities[at : at + form.entities]
        for first in range(0, len(fields), MAX_FIELDS):
            found += await _query_split(client, form, some, fields[first : first + MAX_FIELDS], live=live)
    return found


async def _query_split(
    client: EngineClient, form: Latest, entities: Sequence[Entity], fields: Sequence[int], *, live: bool
) -> list[FieldValue]:
    """Send one request; if the reply exceeds its buffer, send two with half of the values each."""
    try:
        return await _query(client, form, entities, fields, live=live)
    except EngineError as error:
        if error.code != INSUFFICIENT_SIZE or len(entities) * len(fields) < 2:
            raise
    if len(entities) > 1:
        half = len(entities) // 2
        halves = [(entities[:half], fields), (entities[half:], fields)]
    else:
        half = len(fields) // 2
        halves = [(entities, fields[:half]), (entities, fields[half:])]
    return [value for some, few in halves for value in await _query_split(client, form, some, few, live=live)]


async def _query(
    client: EngineClient, form: Latest, entities: Sequence[Entity], fields: Sequence[int], *, live: bool = True
) -> list[FieldValue]:
    count = len(entities) * len(fields)
    return await client.request(
        form.command,
        lambda number: requests.latest_request(form, number, entities, fields, live=live),
        lambda body: replies.read_latest(form, body, count),
        max_bytes=form.fixed + count * MOST_RECORD_BYTES,
    )


class MigDevice(NamedTuple):
    """MIG device: a compute instance and its GPU instance.

    Attributes:
        gpu: parent GPU.
        gpu_instance, compute_instance: DCGM entities.
        ids: the driver's ids of GPU instance and compute instance, unique within the GPU.
        slices: number of slices of GPU instance and compute instance.
    """

    gpu: Entity
    gpu_instance: Entity
    compute_instance: Entity
    ids: tuple[int, int]
    slices: tuple[int, int]


async def query_mig_devices(client: EngineClient) -> list[MigDevice]:
    """Query all MIG devices of an engine; raises as `EngineClient.request`."""
    return mig_devices_of(await client.request(commands.HIERARCHY, requests.hierarchy_request, replies.read_hierarchy))


def mig_devices_of(hierarchy: Sequence[Instance]) -> list[MigDevice]:
    """Return the MIG devices; compute instances without a GPU instance and a GPU are left out."""
    instances = {
        item.entity: item for item in hierarchy if item.entity.group == GPU_INSTANCE and item.parent.group == GPU
    }
    found: dict[Entity, MigDevice] = {}
    for item in hierarchy:
        above = instances.get(item.parent)
        if item.entity.group == COMPUTE_INSTANCE and above is not None:
            found[item.entity] = MigDevice(
                gpu=above.parent,
                gpu_instance=above.entity,
                compute_instance=item.entity,
                ids=(above.gpu_instance, item.compute_instance),
                slices=(above.slices, item.slices),
            )
    return list(found.values())


def mig_entities_of(devices: Sequence[MigDevice]) -> tuple[Entity, ...]:
    """Return the DCGM entities of MIG devices, each once."""
    return tuple(
        dict.fromkeys(entity for device in devices for entity in (device.gpu_instance, device.compute_instance))
    )
