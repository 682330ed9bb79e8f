"""Core readings of GPUs that their reader gave as a value before, and gives no longer. Pure.

The memory of a GPU is 26 bytes: of each metric the reader and the time of the newest value, of all of them a bit set.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from gpufleet.fleet.facts.memory import HOUR_SECONDS, Subjects
from gpufleet.fleet.facts.newest import NONE, MergedReadings, number_of
from gpufleet.fleet.readings import MEASURING_LANES
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.stored.readings import NewestColumns

WATCHED_METRICS = (
    *("gpu_utilization_ratio", "gpu_memory_used_bytes"),
    *("gpu_temperature_celsius", "gpu_power_watts"),
)
"""Core readings that are watched: one for each question about the use and the condition of a GPU."""

MEMORY_SECONDS = HOUR_SECONDS
"""Time after which a value expires if its reader no longer reports the GPU: another reader took its place."""

UNEXPLAINED = frozenset(
    {
        *(Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER, Reason.NOT_PERMITTED, Reason.NO_DATA),
        *(Reason.NOT_REPORTED, Reason.STALE),
    }
)
"""Reasons that explain nothing if the reader gave a value before. Others state a mode, a failure or an invalid value:
these are judged by other inputs."""

_UNEXPLAINED = [0, *(number_of(reason) for reason in UNEXPLAINED)]
_WEIGHTS = np.array([1 << place for place in range(len(WATCHED_METRICS))], np.uint8)
_ANY, _EXPIRED = -1, -2
"""Numbers in place of a reader: every reader, and a value that no longer counts."""

_READERS = 1 << 16
_COUNT = len(WATCHED_METRICS)


class CoreObservation(msgspec.Struct, frozen=True):
    """Core readings of the GPUs of a cluster at a judgement. Columns of metrics have one for each `WATCHED_METRICS`.

    Attributes:
        is_given: whether each metric of each GPU has a value.
        reader: number of the reader that gives it, see `ReaderNumbers`.
        is_explained: whether the metric is absent for a reason that explains it.
        is_known: whether a reader reports the GPU now.
        has_mig: whether its MIG mode is on: then sources report other readings of it.
        reporters: GPU and reader, as `_pair` numbers them, of the current samples of the GPUs.
        missing_before: bit set of the metrics that an earlier process reported as missing.
    """

    is_given: Column
    reader: Column
    is_explained: Column
    is_known: Column
    has_mig: Column
    reporters: Column
    missing_before: Column


class CoreMemory:
    """Core readings that each GPU had."""

    columns = (
        *(("core_reader", np.dtype((np.int16, _COUNT))), ("core_second", np.dtype((np.int32, _COUNT)))),
        *(("core_missing", np.uint8), ("core_mig", np.bool_)),
    )
    """Columns of `Subjects`."""

    def judge(self, subjects: Subjects, rows: Column, seen: CoreObservation) -> tuple[Column, Column]:
        """Record the readings; return the number of missing ones, and which they are as a bit set.

        The number is NaN if it is unknown: no reader reports the GPU, or the reader that gave an absent reading
        reports it no longer. A reading that was never given is not missing.
        """
        columns, now = subjects.columns, subjects.second
        self._switch(subjects, rows, seen)
        reader, was_missing = columns["core_reader"][rows], (columns["core_missing"][rows, None] & _WEIGHTS) != 0
        begins = (reader == 0) & ((seen.missing_before[:, None] & _WEIGHTS) != 0)
        reader, was_missing = np.where(begins, _ANY, reader), was_missing | begins
        is_old = now - columns["core_second"][rows] > MEMORY_SECONDS
        reader = np.where((reader > 0) & is_old & ~was_missing, _EXPIRED, reader)
        is_known = np.broadcast_to(seen.is_known[:, None], reader.shape)
        is_absent = is_known & ~seen.is_given & ~seen.is_explained
        has_reader = (reader > 0) | (reader == _ANY)
        is_missing = is_absent & has_reader
        is_missing[is_missing] = _reports(is_missing, reader, seen.reporters)
        is_unknown = is_absent & ~is_missing & has_reader
        is_confirmed = is_known & (seen.is_given | seen.is_explained | is_missing)
        columns["core_second"][rows] = np.where(is_confirmed, now, columns["core_second"][rows])
        columns["core_reader"][rows] = np.where(seen.is_given, seen.reader, reader)
        kept = is_missing | (was_missing & ~is_confirmed)
        columns["core_missing"][rows] = kept @ _WEIGHTS
        count = is_missing.sum(axis=1).astype(np.float64)
        count[~seen.is_known | ((count == 0) & is_unknown.any(axis=1))] = np.nan
        return count, is_missing @ _WEIGHTS

    def _switch(self, subjects: Subjects, rows: Column, seen: CoreObservation) -> None:
        """Drop the readings of GPUs whose MIG mode was switched."""
        columns = subjects.columns
        switched = rows[seen.is_known & (columns["core_mig"][rows] != seen.has_mig)]
        columns["core_mig"][rows] = np.where(seen.is_known, seen.has_mig, columns["core_mig"][rows])
        held = columns["core_reader"][switched]
        columns["core_reader"][switched] = np.where(held == 0, held, _EXPIRED)
        columns["core_missing"][switched] = 0


def core_observation(
    newest: NewestColumns,
    readings: MergedReadings,
    readers: Column,
    *,
    is_known: Column,
    has_mig: Column,
    missing_before: Column,
) -> CoreObservation:
    """Return the core readings of GPUs.

    Args:
        newest: rows of the cluster.
        readings: readings of the GPUs.
        readers: number of each reader of `NewestColumns`.
        is_known, has_mig, missing_before: as in `CoreObservation`.
    """
    given, reader, explained = [], [], []
    for metric in WATCHED_METRICS:
        value, places = readings.reading(metric)
        given.append(~np.isnan(value))
        reader.append(np.append(readers, np.int16(0))[np.where(places == NONE, NONE, readings.at("reader", places))])
        explained.append(~np.isin(readings.reasons(metric), _UNEXPLAINED))
    measuring = np.array([Lane(name) in MEASURING_LANES for name in newest.lanes], bool)[newest.lane[readings.rows]]
    chosen = readings.usable & measuring
    return CoreObservation(
        is_given=np.stack(given, axis=1),
        reader=np.stack(reader, axis=1),
        is_explained=np.stack(explained, axis=1),
        is_known=is_known,
        has_mig=has_mig,
        reporters=_pair(readings.subject[chosen], readers[newest.reader[readings.rows[chosen]]]),
        missing_before=missing_before,
    )


def missing_metrics(mask: int) -> str:
    """Return the metrics of a bit set as a text of evidence."""
    return ", ".join(metric for place, metric in enumerate(WATCHED_METRICS) if mask >> place & 1)


def missing_mask(text: str) -> int:
    """Return the bit set of a text that `missing_metrics` gave; unknown names are ignored."""
    names: Sequence[str] = text.split(", ")
    return sum(1 << place for place, metric in enumerate(WATCHED_METRICS) if metric in names)


def _pair(subject: Column, reader: Column) -> Column:
    return np.asarray(subject, np.int64) * _READERS + reader


def _reports(chosen: Column, reader: Column, reporters: Column) -> Column:
    """Return whether the reader of each chosen reading reports its GPU now."""
    gpu, _ = np.nonzero(chosen)
    readers = reader[chosen]
    return np.asarray((readers == _ANY) | np.isin(_pair(gpu, readers), reporters))
