"""Series of a machine by the source that counted at each time. Blocks.

The present answer takes the closest source to the machine that reports (`contract.host_samples`). Series apply the same
rule to each step: the past of an agent that stops stays, and an exporter fills only the time in which no agent is live.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from gpufleet.fleet.attribution.bindings import HOST_SOURCES, BoundInterval, is_of_host
from gpufleet.fleet.readings import STATE
from gpufleet.hub.query.gpu_stays import REPORTED
from gpufleet.hub.query.history import SeriesPart, SeriesWindow
from gpufleet.model.catalogue.probe import PROBE_NAMES
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import StoredSample, StoredSeries
from gpufleet.model.time import NANOS
from gpufleet.ports.store import HistoryStore, Store

PRESENCE = (STATE, *REPORTED)
"""Metrics whose readings show that a source reported although it lacks the requested metrics."""


def sources_of(stored: Iterable[StoredSample], since: int) -> tuple[Provenance, ...]:
    """Return the sources of a machine by its newest samples, the closest one first; the probe if it has none.

    Args:
        stored: newest samples of the machine.
        since: nanoseconds since 1970; sources that measured nothing since are left out.
    """
    found = {one.sample.provenance for one in stored if is_of_host(one) and one.sample.measured_at >= since}
    return tuple(source for source in HOST_SOURCES if source in found) or (Provenance.HOST_LOCAL_PROBE,)


def fetch_host_parts(
    store: Store,
    cluster: str,
    intervals: Sequence[BoundInterval],
    metrics: Sequence[str],
    step: int,
    stale_after_seconds: float,
) -> list[SeriesPart]:
    """Return the series of the machines of an allocation's intervals, in their order; see `fetch_parts`.

    The performance probe is that of whole machines only, as in the present answer.
    """
    latest = store.latest_of(cluster, sorted({one.machine for one in intervals}))
    found: list[SeriesPart] = []
    for one in intervals:
        sources = sources_of(latest.get(one.machine, ()), one.start)
        visible = metrics if one.devices is None else [name for name in metrics if name not in PROBE_NAMES]
        found += fetch_parts(store, cluster, one, visible, step, sources, stale_after_seconds)
    return found


def fetch_parts(
    store: HistoryStore,
    cluster: str,
    interval: BoundInterval,
    metrics: Sequence[str],
    step: int,
    sources: Sequence[Provenance],
    stale_after_seconds: float,
) -> list[SeriesPart]:
    """Return the series of the machine of an interval, with steps that begin with the interval.

    Each part has one source: the closest one that reported in its steps, or less than `stale_after_seconds` before.
    Steps without any source belong to the source before them.

    Args:
        store: has the series.
        cluster: cluster of the machine.
        interval: machine, devices and time.
        metrics: names of metrics.
        step: length of a step in nanoseconds.
        sources: sources of the machine, the closest one first.
        stale_after_seconds: the hub's freshness limit.
    """
    window = SeriesWindow(interval.start, interval.end, step)

    def fetch(names: Sequence[str], steps: range, source: Provenance) -> StoredSeries:
        of = window_of(window, steps)
        views, since = interval.devices, interval.since
        return store.series(cluster, interval.machine, names, of.start, of.end, step, source, views, since)

    def part(steps: range, stored: StoredSeries, source: Provenance) -> SeriesPart:
        return SeriesPart(
            f"{cluster}/{interval.machine}",
            interval.devices,
            window_of(window, steps),
            stored,
            source,
            scope=interval.scope,
            of_host=interval.of_host,
        )

    every = range(len(window.starts))
    if len(sources) == 1:
        return [part(every, fetch(metrics, every, sources[0]), sources[0])]
    fetched: dict[Provenance, StoredSeries] = {}
    owners: list[Provenance | None] = [None] * len(every)
    held = max(1, -(-int(stale_after_seconds * NANOS) // step))
    for source in sources:
        for names in (metrics, PRESENCE):  # the second query only where the requested metrics leave gaps
            missing = [number for number in every if owners[number] is None]
            if not missing or (names is PRESENCE and source is sources[-1]):
                break
            stored = fetch(names, range(missing[0], missing[-1] + 1), source)
            fetched.setdefault(source, stored)
            for number in _live_steps(stored, window, held):
                owners[number] = owners[number] or source
    return [
        part(steps, _within(fetched[source], window_of(window, steps)), source)
        for steps, source in _source_intervals(owners, sources[0])
    ]


def window_of(window: SeriesWindow, steps: range) -> SeriesWindow:
    """Return the window of some consecutive steps of a window."""
    start = window.start + steps.start * window.step
    return SeriesWindow(start, min(window.end, window.start + steps.stop * window.step), window.step)


def _live_steps(stored: StoredSeries, window: SeriesWindow, held: int) -> Iterator[int]:
    """Yield the numbers of the steps with a reading, and of those within `held` steps from one."""
    times = {at for points in stored.points.values() for at, _ in points}
    times.update(at for reasons in stored.absences.values() for at in reasons)
    following = 0
    for at in sorted(times):
        number = (at - window.start) // window.step
        end = min(number + held, len(window.starts))
        yield from range(max(number, following), end)
        following = max(following, end)


def _source_intervals(owners: Sequence[Provenance | None], default: Provenance) -> Iterator[tuple[range, Provenance]]:
    """Yield consecutive steps of one source. Steps without a source belong to the source before, or else after them."""
    source = next((owner for owner in owners if owner is not None), default)
    filled = []
    for owner in owners:
        source = owner or source
        filled.append(source)
    for owner, numbers in groupby(range(len(filled)), key=filled.__getitem__):
        listed = list(numbers)
        yield range(listed[0], listed[-1] + 1), owner


def _within(stored: StoredSeries, window: SeriesWindow) -> StoredSeries:
    """Return the series within a window."""
    points = {
        key: [one for one in found if window.start <= one[0] < window.end] for key, found in stored.points.items()
    }
    absences = {
        key: {at: why for at, why in found.items() if window.start <= at < window.end}
        for key, found in stored.absences.items()
    }
    return StoredSeries(
        points={key: found for key, found in points.items() if found or absences.get(key)},
        resolution=stored.resolution,
        absences={key: found for key, found in absences.items() if found},
    )
