"""Numbers of GPUs of each machine by what is reported about them, for the adoption contract. Pure."""

import msgspec
import numpy as np

from gpufleet.fleet.facts.devices import ClusterDevices
from gpufleet.fleet.facts.metrics import DRIVER_STATE, GUEST_GPUS
from gpufleet.fleet.facts.newest import NETDATA_READER, NONE, MergedReadings, number_of
from gpufleet.fleet.facts.nodes import ClusterMachines
from gpufleet.fleet.readings import MEASURING_LANES
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.stored.readings import NewestColumns
from gpufleet.model.time import NANOS

USE_METRICS = ("gpu_utilization_ratio", "gpu_memory_used_bytes")
CONDITION_METRICS = ("gpu_power_watts", "gpu_temperature_celsius")

_COMPLETE = tuple(
    number_of(one) for one in (Reason.NOT_SUPPORTED, Reason.NOT_IN_MIG_MODE, Reason.NOT_IN_GUEST, Reason.AMBIGUOUS_ZERO)
)
"""Reasons of an absent reading for which a source does not fail the contract."""


class ReportedGpus(msgspec.Struct, frozen=True):
    """Numbers of GPUs of the machines of a cluster, in the order of `MachineInputs`. NaN for an unknown number.

    Attributes:
        is_own: 1 if the newest readings of its GPUs are from the driver or DCGM, 0 if all of them are from an exporter
            or Netdata; NaN without any.
        known: GPUs that are not passed through, however old their readings are; a GPU that left its machine does not
            count.
        described: GPUs that a guest should have by its description.
        identified, use, condition: reporting GPUs that are known by UUID, and those with current utilisation and
            memory, and power and temperature. A metric that the device or its driver does not support counts, and so
            does a zero of all-smi.
        invalid: GPUs with a reading that is absent with `invalid_value`.
        unattributed: reporting GPUs with unknown holders.
    """

    is_own: Column
    known: Column
    described: Column
    identified: Column
    use: Column
    condition: Column
    invalid: Column
    unattributed: Column


def gpu_reports(newest: NewestColumns, machines: ClusterMachines, devices: ClusterDevices) -> ReportedGpus:
    """Return the numbers of the machines of a cluster.

    Args:
        newest: its newest readings.
        machines, devices: its machines, and its GPUs with their facts.
    """
    gpus, count = devices.gpus, len(machines.inputs.machines)
    row = machines.rows[gpus.machine]

    def total(chosen: Column) -> Column:
        return np.bincount(row[chosen & (row != NONE)], minlength=count).astype(np.float64)

    present = total(~gpus.retired & (devices.columns["bound_to_vfio"] != 1))
    reporting = devices.is_reporting
    return ReportedGpus(
        is_own=_own_readings(newest, machines, gpus.readings),
        known=np.where(present > 0, present, np.nan),
        described=machines.readings.value(GUEST_GPUS),
        identified=total(reporting & gpus.is_uuid),
        use=total(reporting & _are_reported(gpus.readings, USE_METRICS)),
        condition=total(reporting & _are_reported(gpus.readings, CONDITION_METRICS)),
        invalid=total(~gpus.retired & (devices.columns["invalid_readings"] > 0)),
        unattributed=total(reporting & np.isnan(devices.columns["held"])),
    )


def _are_reported(readings: MergedReadings, metrics: tuple[str, ...]) -> Column:
    """Return whether each GPU has a value of every metric, or an absence of `_COMPLETE`."""
    found = np.ones(readings.count, bool)
    for metric in metrics:
        found &= ~np.isnan(readings.value(metric)) | np.isin(readings.reasons(metric), _COMPLETE)
    return found


def _own_readings(newest: NewestColumns, machines: ClusterMachines, readings: MergedReadings) -> Column:
    """Return the attribute `is_own`. Without readings of GPUs, a machine with a state of its driver has its own."""
    imported = np.asarray(newest.imported, bool)
    of_netdata = np.array([name == NETDATA_READER for name in newest.readers], bool)[newest.reader]
    measuring = np.array([Lane(name) in MEASURING_LANES for name in newest.lanes], bool)[newest.lane]
    rows = readings.rows[measuring[readings.rows]]
    newest_any = _newest_by_machine(newest, machines, rows)
    newest_own = _newest_by_machine(newest, machines, rows[~imported[rows] & ~of_netdata[rows]])
    is_own = (newest_own > 0) & (newest_any - newest_own <= REPORT_WINDOW_SECONDS * NANOS)
    states = newest.values.get(DRIVER_STATE)
    reads_driver = np.zeros(len(is_own), bool)
    if states is not None:
        rows = np.flatnonzero(~np.isnan(np.asarray(states, np.float64)) & ~imported)
        reads_driver = _newest_by_machine(newest, machines, rows) > 0
    return np.where(newest_any > 0, is_own, np.where(reads_driver, 1.0, np.nan))


def _newest_by_machine(newest: NewestColumns, machines: ClusterMachines, rows: Column) -> Column:
    """Return the newest receipt among rows of each machine, 0 without any."""
    of_row = machines.rows[newest.machine[rows]]
    found = np.zeros(len(machines.inputs.machines), np.int64)
    np.maximum.at(found, of_row[of_row != NONE], np.asarray(newest.received_at, np.int64)[rows[of_row != NONE]])
    return found
