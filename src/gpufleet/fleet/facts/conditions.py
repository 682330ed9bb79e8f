"""Conditions of GPUs that follow from their newest readings alone: states, failed readings, faults and links. Pure."""

from typing import Protocol

import msgspec
import numpy as np

from gpufleet.fleet.facts import metrics
from gpufleet.fleet.facts.memory import CounterReading
from gpufleet.fleet.facts.newest import NONE, MergedReadings
from gpufleet.fleet.rules.logic import Column, any_known, equal
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.device_state import (
    CORE_READINGS,
    HUNG,
    LOST,
    OK,
    PROVING_READINGS,
    RESET_REQUIRED,
    UNREADABLE,
    is_core_error,
)

SLOWDOWN_BITS = 0x8 | 0x20 | 0x40 | 0x80
"""Bits of `gpu_clock_event_reasons_mask`: hardware slowdown, heat by software or hardware, and power brake."""

CORE_FAILURES = frozenset(reason for reason in Reason if is_core_error("gpu_power_watts", Absent(reason)))
"""Reasons of a core reading that failed."""

STATES = CATALOGUE[metrics.STATE].states
RECOVERIES = CATALOGUE[metrics.RECOVERY].states
_HEALTH = CATALOGUE[metrics.FABRIC_STATUS].states
_CONFIGURATIONS = CATALOGUE[metrics.FABRIC_CONFIGURATION].states
_MIX = np.uint64(0x9E3779B97F4A7C15)


class InstantValues(Protocol):
    """Values of GPUs at an instant."""

    def value(self, metric: str) -> Column:
        """Return the value of each GPU, NaN for none."""
        ...


def proven_states(readings: MergedReadings) -> Column:
    """Return the state of each GPU by its position in `STATES`, NaN if it is unknown.

    A GPU without a state is `ok` if it has a reading that proves that it works: some exporters report failures only.
    While the newest row of any reader has a failed state or a `stale` one, nothing is proven: others repeat old values.
    """
    state = readings.value(metrics.STATE)
    works = readings.has_value(PROVING_READINGS) & ~readings.may_have_failed()
    return np.where(np.isnan(state) & works, STATES.index(OK), state)


def state_columns(readings: InstantValues, state: Column) -> dict[str, Column]:
    """Return the inputs that depend on the recommended recovery, and on the state by its position in `STATES`."""
    recovery = readings.value(metrics.RECOVERY)
    return {
        "lost": equal(state, STATES.index(LOST)),
        "reset_required": equal(state, STATES.index(RESET_REQUIRED)),
        "hung": equal(state, STATES.index(HUNG)),
        "unreadable": equal(state, STATES.index(UNREADABLE)),
        "recovery_needed": np.where(np.isnan(recovery), np.nan, recovery != RECOVERIES.index("none")),
    }


def quality_columns(readings: MergedReadings, known: Column) -> dict[str, Column]:
    """Return the numbers of failed and invalid readings, and the largest quotient of two readers' values.

    Args:
        readings: of the GPUs.
        known: whether a reader reports each GPU now.
    """
    failed = readings.count_absences(sorted(CORE_READINGS), CORE_FAILURES)
    invalid = readings.count_absences(metrics.DEVICE_METRICS, {Reason.INVALID_VALUE})
    return {
        "failed_core_readings": np.where(known, failed, np.nan),
        "invalid_readings": np.where(known, invalid, np.nan),
        "reader_ratio": readings.quotients(metrics.UNIT_METRICS),
    }


def fault_columns(readings: InstantValues) -> dict[str, Column]:
    """Return the inputs about slowdowns, repairs, the fabric and the MIG mode."""
    mask = readings.value(metrics.CLOCK_REASONS)
    bits = np.fmod(np.nan_to_num(mask), 256).astype(np.int64) & SLOWDOWN_BITS
    mode, pending = readings.value(metrics.MIG_MODE), readings.value(metrics.MIG_MODE_PENDING)
    pages = np.stack([readings.value(metric) for metric in metrics.RETIRED_PAGES])
    no_pages = np.isnan(pages).all(axis=0)
    return {
        "hardware_slowdown": np.where(np.isnan(mask), np.nan, bits != 0),
        "repair_pending": any_known(*(readings.value(metric) for metric in metrics.REPAIRS)),
        "retired_pages": np.where(no_pages, np.nan, np.nansum(pages, axis=0)),
        "fabric_unhealthy": _fabric(readings),
        "mig_mode_pending": np.where(np.isnan(mode) | np.isnan(pending), np.nan, mode != pending),
    }


def _fabric(readings: InstantValues) -> Column:
    """Return whether the health in the fabric is bad by any report; `not_reported` is no report."""
    status, fault = readings.value(metrics.FABRIC_STATUS), readings.value(metrics.FABRIC_CONFIGURATION)
    unhealthy = np.isin(status, [_HEALTH.index("unhealthy"), _HEALTH.index("limited_capacity")])
    no_status = np.isnan(status) | (status == _HEALTH.index("not_reported"))
    no_fault = np.isnan(fault) | (fault == _CONFIGURATIONS.index("not_reported"))
    return any_known(
        np.where(no_status, np.nan, unhealthy),
        np.where(no_fault, np.nan, fault != _CONFIGURATIONS.index("none")),
        *(readings.value(metric) for metric in metrics.FABRIC_FAULTS),
    )


def most_nvlinks(active: Column, machine: Column, name: Column, chosen: Column) -> Column:
    """Return the most active NVLinks of a GPU of the same model on the same machine.

    Args:
        active: active NVLinks of each GPU.
        machine, name: numbers of its machine and of its product name, `NONE` for an unknown name.
        chosen: GPUs that count.
    """
    rows = np.flatnonzero(chosen & (name != NONE) & ~np.isnan(active))
    found = np.full(len(active), np.nan)
    if len(rows):
        groups = machine[rows] * (int(name.max()) + 1) + name[rows]
        _, group = np.unique(groups, return_inverse=True)
        most = np.zeros(group.max() + 1)
        np.maximum.at(most, group, active[rows])
        found[rows] = most[group]
    return found


class NoisyReadings(msgspec.Struct, frozen=True):
    """Newest sample of the noisy readings of GPUs.

    Attributes:
        count: number of readings with a value.
        signature: hash of the values.
        sampled_at: measurement of the oldest one, nanoseconds since 1970; 0 without any.
    """

    count: Column
    signature: Column
    sampled_at: Column


def noisy_readings(readings: MergedReadings) -> NoisyReadings:
    """Return the noisy readings of GPUs."""
    latest = np.iinfo(np.int64).max
    count, oldest = np.zeros(readings.count), np.full(readings.count, latest)
    signature = np.zeros(readings.count, np.uint64)
    for metric in metrics.NOISY_READINGS:
        value, places = readings.reading(metric)
        known = places != NONE
        count += known
        oldest = np.where(known, np.minimum(oldest, readings.at("measured_at", places)), oldest)
        signature = (signature ^ np.where(known, value, -1.0).view(np.uint64)) * _MIX
        signature ^= signature >> np.uint64(29)
    return NoisyReadings(count, signature, np.where(count > 0, oldest, 0))


def read_counter(readings: MergedReadings, metric: str, readers: Column) -> CounterReading:
    """Return a counter with its reader and driver session.

    Args:
        readings: readings with the counter.
        metric: its name.
        readers: number of each reader of `NewestColumns`, see `ReaderNumbers`.
    """
    value, places = readings.reading(metric)
    reader = np.append(readers, np.int16(0))[np.where(places == NONE, NONE, readings.at("reader", places))]
    return CounterReading(
        value=value,
        reader=reader,
        session=readings.at("driver_session", places),
        at=readings.at("measured_at", places),
    )
