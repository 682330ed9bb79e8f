"""Samples of boards."""

from gpufleet.fleet.ecc import ECC_MODE
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.view import Side, View, ViewKind

COUNT = "gpu_ecc_corrected_errors_total"


def board_sample(
    mode: Value | Absent | None, *counts: tuple[str, Value | Absent], kind: ViewKind = ViewKind.GPU
) -> Sample:
    """Return a sample of a GPU, or of its MIG device, with an ECC mode and counts."""
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    view = gpu if kind is ViewKind.GPU else View(kind=kind, side=Side.HOST, uuid="MIG-1", parent=gpu.key)
    values = dict(counts) if mode is None else {ECC_MODE: mode, **dict(counts)}
    return Sample(view=view, reader="x", lane=Lane.SLOW, measured_at=1, values=values)
