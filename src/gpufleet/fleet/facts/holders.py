"""Holders of GPUs, as holdings and holder states of a machine show them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpufleet.fleet.attribution.device_states import device_holders
from gpufleet.fleet.attribution.reported import current_holdings, current_states
from gpufleet.fleet.facts.supplied import HolderColumns
from gpufleet.model.holdings import HolderKind, HolderState, Holding, HoldingVerdict, Method
from gpufleet.model.stored.holdings import StoredHolderStates, StoredHolding
from gpufleet.model.view import ViewKind

GPU_PREFIX = f"{ViewKind.GPU}/"
"""Prefix of the view key of a GPU."""


class GpuHolders(NamedTuple):
    """Holders of a GPU and its parts; fields as in `HolderColumns`."""

    view: str
    held: float
    since: int
    conflict: bool


class MachineHoldings(NamedTuple):
    """Holders of the GPUs of a machine.

    Attributes:
        gpus: GPUs with known or unknown holders; GPUs that no source lists are left out.
        pods, jobs: number of devices that pods have, and that SLURM declares for jobs.
    """

    gpus: tuple[GpuHolders, ...]
    pods: int
    jobs: int


def views_of(holdings: Iterable[StoredHolding], states: Iterable[StoredHolderStates]) -> set[str]:
    """Return the keys of all views in reports of a machine."""
    held = {one.holding.view for one in holdings}
    return held | {device.view for report in states for device in report.devices}


def machine_holdings(
    holdings: Sequence[StoredHolding], states: Sequence[StoredHolderStates], parents: Mapping[str, str], now: int
) -> MachineHoldings:
    """Return the holders of the GPUs of a machine.

    A GPU is held if a holder has it or a part of it. It is free if it and its parts are reported as free. While a held
    part is of an unknown GPU, no GPU of the machine is free for certain.

    Args:
        holdings: holdings of the machine.
        states: the newest report of each sender.
        parents: view key of a part (MIG device, vGPU instance) to that of its GPU.
        now: nanoseconds since 1970 by the hub's clock.
    """
    present = current_holdings(holdings, now)
    reported = current_states(states, now)
    of_gpu: dict[str, list[Holding]] = {}
    is_complete = True
    for one in present:
        gpu = _gpu_of(one.view, parents)
        is_complete = is_complete and gpu is not None
        if gpu is not None:
            of_gpu.setdefault(gpu, []).append(one)
    free: dict[str, bool] = {}
    for view, state in reported.items():
        gpu = _gpu_of(view, parents)
        if gpu is not None:
            free[gpu] = free.get(gpu, True) and state.state is HolderState.FREE
    without = [GpuHolders(gpu, 0.0 if free[gpu] and is_complete else np.nan, 0, False) for gpu in free.keys() - of_gpu]
    return MachineHoldings(
        gpus=(*(_held(gpu, own) for gpu, own in of_gpu.items()), *sorted(without)),
        pods=len({one.view for one in present if one.holder.kind is HolderKind.POD}),
        jobs=len({one.view for one in present if Method.SCHEDULER in one.methods}),
    )


def _held(gpu: str, holdings: Sequence[Holding]) -> GpuHolders:
    is_held = device_holders(holdings).state is HolderState.HELD
    conflict = any(one.verdict is HoldingVerdict.CONFLICT for one in holdings)
    return GpuHolders(gpu, 1.0 if is_held else np.nan, max(one.since for one in holdings), conflict)


def _gpu_of(view: str, parents: Mapping[str, str]) -> str | None:
    return view if view.startswith(GPU_PREFIX) else parents.get(view)


def holder_columns(machines: Iterable[tuple[str, Sequence[GpuHolders]]]) -> HolderColumns:
    """Return the holders of the GPUs of machines, given by machine id."""
    rows = [(machine, one) for machine, gpus in machines for one in gpus]
    return HolderColumns(
        machine=[machine for machine, _ in rows],
        view=[one.view for _, one in rows],
        held=[one.held for _, one in rows],
        since=[one.since for _, one in rows],
        conflict=[one.conflict for _, one in rows],
    )
