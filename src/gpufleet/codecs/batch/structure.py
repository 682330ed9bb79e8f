"""Validation of a batch across fields, beyond their types."""

import re
from collections.abc import Iterable, Sequence

from gpufleet.codecs.batch.limits import Limits
from gpufleet.codecs.batch.processes import check_processes
from gpufleet.codecs.batch.records import (
    check_cluster_part,
    check_head,
    check_identities,
    check_machines,
    check_parts,
    check_views,
)
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.reading import Provenance
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import DimBlock, SampleBlock, WireBatch
from gpufleet.model.wire.matrix import Matrix

_DAY_NS = 86_400 * NANOS
_EPOCH = re.compile(r"[0-9a-f]{32}")
_LANES = frozenset(lane.value for lane in Lane)
_PROVENANCES = frozenset(provenance.value for provenance in Provenance)


def check(wire: WireBatch, limits: Limits, *, with_tables: bool = True) -> None:
    """Check lengths, positions and contents; with `with_tables` also machines and views.

    Raises:
        WireLimitError: if a list is longer than `limits` allow.
        WireError: if two fields contradict each other; names the field.
    """
    counts = len(wire.machines), len(wire.views), len(wire.absences)
    check_contents(wire, limits, with_tables=with_tables)
    for index, block in enumerate(wire.samples):
        if not _has_fitting_rows(block, *counts):
            _check_rows(f"samples[{index}]", block, wire)
        if not isinstance(block.columns, Matrix):  # a matrix has columns of equal length
            _check_columns(f"samples[{index}]", block)
    for index, dim in enumerate(wire.dims):
        _check_dims(f"dims[{index}]", dim, wire)
    for index, part in enumerate(wire.parts):
        check_processes(f"parts[{index}]", part, wire)


def check_contents(wire: WireBatch, limits: Limits, *, with_tables: bool = True) -> None:
    """Check all but the lengths and positions of columns, which `to_wire` makes consistent. Raises as `check`."""
    check_head(wire)
    if not _EPOCH.fullmatch(wire.epoch):
        raise WireError("epoch", "not 32 hexadecimal digits in lower case")
    _check_count("machines", len(wire.machines), limits.machines)
    _check_count("views", len(wire.views), limits.views)
    _check_count("absences", len(wire.absences), limits.absences)
    _check_count("samples", len(wire.samples), limits.blocks)
    _check_count("dims", len(wire.dims), limits.blocks)
    if with_tables:
        check_machines(wire.machines)
        check_views(wire.views)
    check_parts(wire.parts, len(wire.machines))
    if wire.cluster_part is not None:
        check_part = check_cluster_part if with_tables else check_identities
        check_part("cluster_part", wire.cluster_part)
    _check_days(wire, limits.days)


def _check_count(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise WireLimitError(field, f"{count} entries, more than {limit}")


def _check_days(wire: WireBatch, limit: int) -> None:
    lists = [block.measured_at for block in wire.samples] + [dim.measured_at for dim in wire.dims]
    for part in wire.parts:
        lists += [event.at for event in part.events], [block.measured_at for block in part.processes]
    days: set[int] = set()
    for instants in lists:
        if instants:
            first, last = min(instants) // _DAY_NS, max(instants) // _DAY_NS
            days.update((first, last) if last - first < 2 else {at // _DAY_NS for at in instants})
    if len(days) > limit:
        raise WireLimitError("", f"has rows of {len(days)} different days, more than {limit}")


def _has_fitting_rows(block: SampleBlock, machines: int, views: int, absences: int) -> bool:
    """Return whether `_check_rows` would find nothing: a fast test that most blocks pass."""
    rows = len(block.machine)
    return (
        block.lane in _LANES
        and block.provenance in _PROVENANCES
        and len(block.view) == len(block.measured_at) == len(block.driver_session) == len(block.absence) == rows
        and (rows == 0 or (max(block.machine) < machines and max(block.view) < views and max(block.absence) < absences))
    )


def _check_columns(field: str, block: SampleBlock) -> None:
    check_metrics(field, block.metrics)
    if len(block.columns) != len(block.metrics):
        raise WireError(f"{field}.columns", f"{len(block.columns)} columns for {len(block.metrics)} metrics")
    _check_lengths(f"{field}.columns", block.columns, len(block.machine))


def check_metrics(field: str, metrics: Sequence[str]) -> None:
    """Check that no metric of a block is listed twice. Raises WireError naming the field."""
    if len(set(metrics)) != len(metrics):
        raise WireError(f"{field}.metrics", "a metric is listed twice")


def _check_dims(field: str, block: DimBlock, wire: WireBatch) -> None:
    _check_rows(field, block, wire)
    _check_lengths(f"{field}.labels", block.labels, len(block.machine))
    if len(block.values) != len(block.machine):
        raise WireError(f"{field}.values", f"{len(block.values)} cells for {len(block.machine)} rows")


def _check_lengths(field: str, columns: Iterable[Sequence[object]], rows: int) -> None:
    for index, column in enumerate(columns):
        if len(column) != rows:
            raise WireError(f"{field}[{index}]", f"{len(column)} cells for {rows} rows")


def _check_rows(field: str, block: SampleBlock | DimBlock, wire: WireBatch) -> None:
    """Check what sample and dimension blocks have in common."""
    if block.lane not in _LANES:
        raise WireError(f"{field}.lane", f"not one of {', '.join(sorted(_LANES))}")
    if block.provenance not in _PROVENANCES:
        raise WireError(f"{field}.provenance", f"not one of {', '.join(sorted(_PROVENANCES))}")
    rows = len(block.machine)
    if not len(block.view) == len(block.measured_at) == len(block.driver_session) == len(block.absence) == rows:
        for name in ("view", "measured_at", "driver_session", "absence"):
            _check_lengths_of_one(f"{field}.{name}", getattr(block, name), rows)
    _check_positions(f"{field}.machine", block.machine, "machines", len(wire.machines))
    _check_positions(f"{field}.view", block.view, "views", len(wire.views))
    _check_positions(f"{field}.absence", block.absence, "absences", len(wire.absences))


def _check_lengths_of_one(field: str, entries: Sequence[object], rows: int) -> None:
    if len(entries) != rows:
        raise WireError(field, f"{len(entries)} entries for {rows} rows")


def _check_positions(field: str, positions: list[int], name: str, count: int) -> None:
    """Check upper bounds of positions; the types reject values below 0 (or below -1, which means none)."""
    highest = max(positions, default=-1)
    if highest >= count:
        raise WireError(f"{field}[{positions.index(highest)}]", f"{highest} points past the {count} {name}")
