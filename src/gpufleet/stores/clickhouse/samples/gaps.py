"""Reasons of steps without a value, from the absence sets of the samples in them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet.model.absence import Absent, Reason, worst_absence
from gpufleet.model.reading import Provenance
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.cache import SubjectRow, subject_slices
from gpufleet.stores.clickhouse.schema.sets import AbsenceSets, fetch_absences

MAX_ROWS = 200_000
"""Maximum number of rows of a query, newest first: earlier steps have no reason."""

MAX_SPANS = 50
"""Maximum number of intervals in a query; more gaps are read as one interval from the first to the last."""

NEWEST_SET = "argMax(absence_set, measured_at)"
"""SQL expression for the absence set of the newest sample of a step; 0 if nothing is absent."""

_QUERY = """
SELECT subject, intDiv(toUnixTimestamp64Nano(measured_at) - {{start:Int64}}, {{step:Int64}}) AS number,
    {newest_set} AS newest
FROM samples
WHERE subject IN {{subjects:Array(UInt32)}} AND provenance = {{provenance:String}} AND ({spans})
GROUP BY subject, number
HAVING newest != 0
ORDER BY number DESC, subject
LIMIT {max_rows}
"""

SeriesKey = tuple[str, str]
"""View key ('' for the machine itself) and metric."""

StepSet = tuple[int, int, int]
"""Subject, number of a step, and absence set of the subject's newest sample in it."""


class StepGrid(msgspec.Struct, frozen=True):
    """Steps of a query: its start and end, and their length, in nanoseconds. The end can be within the last step."""

    start: int
    end: int
    step: int

    @property
    def count(self) -> int:
        """Number of steps."""
        return -(-(self.end - self.start) // self.step)

    def interval(self, numbers: range) -> tuple[int, int]:
        """Return start and end of consecutive steps."""
        return self.start + numbers.start * self.step, min(self.start + numbers.stop * self.step, self.end)

    def gaps(self, present: Mapping[int, object]) -> Iterator[range]:
        """Return the intervals of step numbers without a value."""
        following = 0
        for number in (*sorted(present), self.count):
            if number > following:
                yield range(following, number)
            following = number + 1


def fetch_gap_reasons(
    handle: Handle,
    cache: AbsenceSets,
    subjects: Mapping[int, SubjectRow],
    series: Mapping[SeriesKey, tuple[str, Mapping[int, object]]],
    grid: StepGrid,
    provenance: Provenance,
    known: Sequence[StepSet] | None = None,
) -> dict[SeriesKey, dict[int, Reason]]:
    """Return the reasons of the steps in which a metric was read and absent, by number of the step.

    The reason of a step is that of its newest sample by the reader of the series; other readers count only if it has
    none. A step without a sample has no reason, and so does a step whose samples have expired.

    Args:
        handle: connection of the queries.
        cache: known absence sets.
        subjects: number to subject of the machine.
        series: key to the reader of the series, and its values by step.
        grid: the steps.
        provenance: of the samples.
        known: absence sets of all steps, if the caller has them; otherwise those of the gaps are queried.
    """
    missing = {key: list(grid.gaps(present)) for key, (_, present) in series.items()}
    spans = _spans(gap for gaps in missing.values() for gap in gaps)
    views = {view for view, _ in series}
    chosen = {number: one for number, one in subjects.items() if one.view in views}
    if not spans or not chosen:
        return {}
    found = _fetch_sets(handle, chosen, spans, grid, provenance) if known is None else known
    rows: dict[str, dict[int, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for subject, number, absence_set in found:
        of = chosen.get(subject)
        if of is not None:
            rows[of.view][number].append((of.reader, absence_set))
    in_gaps = {number for gap in spans for number in gap}
    ids = {id_ for _, number, id_ in found if number in in_gaps}
    absences = fetch_absences(handle, ids, cache)
    return {
        (view, metric): _reasons(metric, series[view, metric][0], gaps, rows.get(view, {}), absences)
        for (view, metric), gaps in missing.items()
    }


def _fetch_sets(
    handle: Handle, subjects: Mapping[int, SubjectRow], spans: Iterable[range], grid: StepGrid, provenance: Provenance
) -> list[StepSet]:
    """Return the absence sets of steps, newest first."""
    query = _QUERY.format(
        newest_set=NEWEST_SET,
        spans=" OR ".join(
            f"(measured_at >= {_instant(start)} AND measured_at < {_instant(end)})"
            for start, end in map(grid.interval, spans)
        ),
        max_rows=MAX_ROWS,
    )
    parameters = {"provenance": provenance.value, "start": grid.start, "step": grid.step}
    slices = [{**parameters, "subjects": slice_} for slice_ in subject_slices(subjects)]
    return [row for one in slices for row in handle.query(query, parameters=one).result_rows]


def _reasons(
    metric: str,
    reader: str,
    gaps: Iterable[range],
    rows: Mapping[int, list[tuple[str, int]]],
    absences: Mapping[int, Mapping[str, Absent]],
) -> dict[int, Reason]:
    found = {}
    for number in (number for gap in gaps for number in gap if number in rows):
        absent: dict[bool, list[Absent]] = {True: [], False: []}
        for of, id_ in rows[number]:
            one = absences.get(id_, {}).get(metric)
            if one is not None:
                absent[of == reader].append(one)
        candidates = absent[True] or absent[False]
        if candidates:
            found[number] = worst_absence(candidates).reason
    return found


def _spans(gaps: Iterable[range]) -> list[range]:
    """Return the union of gaps as ascending intervals, at most `MAX_SPANS`."""
    merged: list[range] = []
    for one in sorted(gaps, key=lambda gap: gap.start):
        if merged and one.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, one.stop))
        else:
            merged.append(one)
    return merged if len(merged) <= MAX_SPANS else [range(merged[0].start, merged[-1].stop)]


def _instant(at: int) -> str:
    return f"fromUnixTimestamp64Nano(toInt64({at}), 'UTC')"
