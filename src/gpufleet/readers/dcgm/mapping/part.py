"""What is told of a MIG device: a compute instance, and the GPU instance that it is part of."""

from collections.abc import Mapping

from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.reading import Value
from gpufleet.readers.dcgm.mapping.device import MEMORY_ROWS, UUID
from gpufleet.readers.dcgm.mapping.row import Modes, by_nature, fields_of, read

NAME = 50
"""Of a GPU instance this is its profile, such as `2g.20gb`."""

_UNDEFINED = tuple(
    metric.name
    for metric in CATALOGUE.values()
    if Subject.MIG in metric.subjects and metric.lane is Lane.FAST and by_nature(metric, Reason.NOT_IN_MIG_MODE)
)


def part_fields(unknown: frozenset[int]) -> tuple[int, ...]:
    """Return the fields to ask for, of compute instances and GPU instances alike."""
    return tuple(sorted({UUID, NAME, *fields_of(MEMORY_ROWS, unknown)}))


def map_part(
    values: Mapping[int, FieldValue], name: str, instances: tuple[int, int], slices: tuple[int, int],
    unknown: frozenset[int],
) -> dict[str, Value | Absent]:  # fmt: skip
    """Return the readings of a MIG device.

    Args:
        values: of the compute instance, by field.
        name: what the engine calls the GPU instance, or empty.
        instances: ids of GPU instance and compute instance.
        slices: of each.
        unknown: fields that the engine does not know.
    """
    found: dict[str, Value | Absent] = dict.fromkeys(_UNDEFINED, Absent(Reason.NOT_IN_MIG_MODE))
    found |= {row.metric: read(row, values, Modes(), unknown) for row in MEMORY_ROWS}
    found["mig_profile"] = _profile(name, slices)
    found["mig_gpu_instance"], found["mig_compute_instance"] = map(str, instances)
    return found


def map_part_size(slices: tuple[int, int]) -> dict[str, Value | Absent]:
    """Return how large a MIG device is."""
    return {"mig_gpu_slices": slices[0], "mig_compute_slices": slices[1]}


def _profile(name: str, slices: tuple[int, int]) -> Value | Absent:
    """Return the profile as `nvidia-smi -L` writes it: of a part of a GPU instance's slices, with their number."""
    profile = name.rpartition(" MIG ")[2].removeprefix("MIG ").strip()
    if not profile:
        return Absent(Reason.NO_DATA, f"DCGM {NAME} of the GPU instance")
    return profile if slices[0] == slices[1] else f"{slices[1]}c.{profile}"
