"""MIG: which parts a GPU is cut into, by the engine's hierarchy."""

from collections.abc import Sequence
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.replies import Instance
from gpufleet.codecs.dcgm_wire.values import COMPUTE_INSTANCE, GPU, GPU_INSTANCE, Entity
from gpufleet.readers.dcgm.client import EngineClient


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
