"""Machines of a cluster with their own readings, for the facts about them and about their GPUs. Pure."""

import msgspec
import numpy as np

from gpufleet.fleet.facts.metrics import BOOTED_AT, DRIVER_STATE, GUEST_STATE, LOST_MESSAGES, MACHINE_TEXTS, PRODUCT
from gpufleet.fleet.facts.newest import NONE, MergedReadings
from gpufleet.fleet.facts.supplied import MachineInputs
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.machine import OK, REMOVED
from gpufleet.model.stored.readings import NewestColumns
from gpufleet.model.time import NANOS

DRIVER_STATES = CATALOGUE[DRIVER_STATE].states
GUEST_STATES = CATALOGUE[GUEST_STATE].states


class ClusterMachines(msgspec.Struct, frozen=True):
    """Machines of a cluster, in the order of `MachineInputs`.

    Attributes:
        inputs: what the hub knows about them.
        rows: row of each machine of `NewestColumns.machines`, `NONE` for one that is not listed.
        readings: readings of the machines themselves.
        is_guest: whether each machine is a guest.
        is_retired: whether each machine is retired, or a guest that its host removed.
        is_answering: whether each machine is a node, or a guest whose newest state is current and `ok`. Without a
            current state the guest can be deleted: an agent that was down meanwhile reports no removal.
        driver_state: state of the driver by its number, NaN if unknown.
        lost_messages: number of lost messages of the kernel log, NaN if unknown.
        booted_at: boot, nanoseconds since 1970; 0 if unknown.
        pools: pool of each machine, None if unknown.
    """

    inputs: MachineInputs
    rows: Column
    readings: MergedReadings
    is_guest: Column
    is_retired: Column
    is_answering: Column
    driver_state: Column
    lost_messages: Column
    booted_at: Column
    pools: list[str | None]

    def of(self, column: Column, machine: Column) -> Column:
        """Return the cells of a column of machines for GPUs, by the machines' position in `NewestColumns`."""
        missing = False if column.dtype == bool else np.nan
        return np.append(column, missing)[self.rows[machine]]


def cluster_machines(newest: NewestColumns, inputs: MachineInputs, current: Column) -> ClusterMachines:
    """Return the machines of a cluster.

    Args:
        newest: rows of the cluster.
        inputs: its machines.
        current: result of `current_rows`.
    """
    row_of = {name: row for row, name in enumerate(inputs.machines)}
    rows = np.array([row_of.get(name, NONE) for name in newest.machines], np.int64)
    own = np.array([key == "" for key in newest.views], bool)[newest.view] & (rows[newest.machine] != NONE)
    of_machines = np.flatnonzero(own)
    subject = rows[newest.machine[of_machines]]
    readings = MergedReadings(newest, of_machines, subject, len(inputs.machines), current, MACHINE_TEXTS)
    state = _newest_values(newest, GUEST_STATE, of_machines, subject, len(inputs.machines))
    booted = readings.value(BOOTED_AT)
    last_boot = _newest_values(newest, BOOTED_AT, of_machines, subject, len(inputs.machines))  # a boot is never stale
    return ClusterMachines(
        inputs=inputs,
        rows=rows,
        readings=readings,
        is_guest=inputs.is_guest,
        is_retired=np.asarray(inputs.retired, bool) | (inputs.is_guest & (state == GUEST_STATES.index(REMOVED))),
        is_answering=~inputs.is_guest | (readings.value(GUEST_STATE) == GUEST_STATES.index(OK)),
        driver_state=readings.value(DRIVER_STATE),
        lost_messages=readings.value(LOST_MESSAGES),
        booted_at=(np.nan_to_num(np.where(np.isnan(booted), last_boot, booted)) * NANOS).astype(np.int64),
        pools=_pools(inputs, readings),
    )


def _newest_values(newest: NewestColumns, metric: str, rows: Column, subject: Column, count: int) -> Column:
    """Return the newest value of each machine, however old it is; NaN without one."""
    found = np.full(count, np.nan)
    values = newest.values.get(metric)
    if values is not None:
        order = np.argsort(newest.received_at[rows], kind="stable")
        cells = np.asarray(values, np.float64)[rows[order]]
        known = ~np.isnan(cells)
        found[subject[order][known]] = cells[known]
    return found


def _pools(inputs: MachineInputs, readings: MergedReadings) -> list[str | None]:
    """Return the pool of each machine: as the hub knows it, or the product name of its system."""
    texts = [*readings.texts.texts, None]
    products = [texts[place] for place in readings.text(PRODUCT).tolist()]
    if inputs.pools is None:
        return products
    return [pool or product for pool, product in zip(inputs.pools, products, strict=True)]
