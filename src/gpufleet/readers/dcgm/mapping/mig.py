"""Readings of a MIG device: a compute instance and its GPU instance."""

from collections.abc import Mapping

from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.fleet.board import NOT_OF_MIG
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Value
from gpufleet.readers.dcgm.mapping.device import MEMORY_ROWS, NAME, UUID
from gpufleet.readers.dcgm.mapping.row import EngineGpuModes, fields_of, read_row

_NOT_OF_MIG = sorted(NOT_OF_MIG)


def mig_fields(lane: Lane, unknown: frozenset[int]) -> tuple[int, ...]:
    """Return the fields to request in a pass of a lane, for compute instances and GPU instances alike."""
    if lane is Lane.FAST:
        return tuple(sorted({UUID, NAME, *fields_of(MEMORY_ROWS, unknown)}))
    return (UUID,) if lane is Lane.SLOW else ()


def map_mig(
    values: Mapping[int, FieldValue], name: str, instances: tuple[int, int], slices: tuple[int, int],
    unknown: frozenset[int],
) -> dict[str, Value | Absent]:  # fmt: skip
    """Return the readings of a MIG device.

    Args:
        values: of the compute instance, by field.
        name: value of `NAME` of the GPU instance, which is its profile such as `2g.20gb`; or empty.
        instances: ids of GPU instance and compute instance.
        slices: number of slices of GPU instance and compute instance.
        unknown: fields that the engine does not know.
    """
    found: dict[str, Value | Absent] = dict.fromkeys(_NOT_OF_MIG, Absent(Reason.NOT_IN_MIG_MODE))
    found |= {row.metric: read_row(row, values, EngineGpuModes(), unknown) for row in MEMORY_ROWS}
    found["mig_profile"] = _profile(name, slices)
    found["mig_gpu_instance"], found["mig_compute_instance"] = map(str, instances)
    return found


def map_mig_size(slices: tuple[int, int]) -> dict[str, Value | Absent]:
    """Return the size of a MIG device in slices."""
    return {"mig_gpu_slices": slices[0], "mig_compute_slices": slices[1]}


def _profile(name: str, slices: tuple[int, int]) -> Value | Absent:
    """Return the profile as printed by `nvidia-smi -L`.

    A compute instance with only some of the GPU instance's slices has their number as prefix: `1c.2g.20gb`.
    """
    profile = name.rpartition(" MIG ")[2].removeprefix("MIG ").strip()
    if not profile:
        return Absent(Reason.NO_DATA, f"DCGM {NAME} of the GPU instance")
    return profile if slices[0] == slices[1] else f"{slices[1]}c.{profile}"
