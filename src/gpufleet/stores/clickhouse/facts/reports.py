"""GPU UUIDs that several machines report, and counts of events. All results are bounded."""

from collections import Counter
from collections.abc import Collection, Sequence

from gpufleet.model.stored.readings import EventCount, ViewColumns
from gpufleet.model.view import SLOT_PREFIX
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.counts import GPU_KEY_PREFIX, INDEX_KEY_PREFIX
from gpufleet.stores.clickhouse.samples.newest import NewestSamples

MAX_DUPLICATES = 10_000
"""Maximum number of rows of duplicate views."""

MAX_DUPLICATES_PER_MACHINE = 64
"""Maximum number of rows of one machine, so that a machine with invented UUIDs hides no other duplicates."""

MAX_EVENT_TIMES = 64
"""Maximum number of times of an event count."""

MAX_EVENT_COUNTS = 100_000
"""Maximum number of event counts, those with the newest events."""

MAX_EVENT_COUNTS_PER_MACHINE = 1_000
"""Maximum number of event counts of one machine, so that a machine with invented codes hides no other events."""


_REPORTED = f"""startsWith(view, '{GPU_KEY_PREFIX}') AND NOT startsWith(view, '{SLOT_PREFIX}')
    AND NOT startsWith(view, '{INDEX_KEY_PREFIX}') AND known_at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')"""

_DUPLICATES = f"""
SELECT cluster, machine, view, toUnixTimestamp64Nano(argMax(received_at, known_at))
FROM latest
WHERE {_REPORTED} AND sipHash64(view) IN (
    SELECT sipHash64(view) FROM latest WHERE {_REPORTED}
    GROUP BY sipHash64(view) HAVING min(sipHash64(cluster, machine)) != max(sipHash64(cluster, machine)))
GROUP BY cluster, machine, view ORDER BY view, cluster, machine
LIMIT {MAX_DUPLICATES_PER_MACHINE} BY cluster, machine
LIMIT {MAX_DUPLICATES}
SETTINGS max_threads = 1
"""  # noqa: S608 - names are constants; values are bound as parameters
"""The subquery groups by hashes, which takes a third of the time for a million GPUs."""

_EVENTS = f"""
SELECT machine, view, kind, code, groupArraySorted({MAX_EVENT_TIMES})(-toUnixTimestamp64Nano(at)) AS newest, count()
FROM events FINAL
WHERE cluster = {{cluster:String}} AND kind IN {{kinds:Array(String)}}
    AND at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')
GROUP BY machine, view, kind, code
ORDER BY newest[1], machine, view, kind, code
LIMIT {MAX_EVENT_COUNTS_PER_MACHINE} BY machine
LIMIT {MAX_EVENT_COUNTS}
SETTINGS max_threads = 1
"""  # noqa: S608 - as above


def fetch_duplicate_views(handle: Handle, since: int) -> ViewColumns:
    """Return the GPU UUIDs that several machines reported; see `ports.FactStore.duplicate_views`."""
    rows = handle.query(_DUPLICATES, parameters={"since": since}).result_rows
    machines = Counter(row[2] for row in rows)  # a limit, or equal hashes, may leave one machine
    return _view_columns([row for row in rows if machines[row[2]] > 1])


def find_duplicate_views(newest: NewestSamples, since: int) -> ViewColumns | None:
    """Return the same from memory, or None if the store must be queried."""
    shared = newest.shared_gpus(since)
    if shared is None:
        return None
    of_machine: Counter[tuple[str, str]] = Counter()
    rows = []
    for gpu in shared:
        of_machine[gpu.cluster, gpu.machine] += 1
        if of_machine[gpu.cluster, gpu.machine] <= MAX_DUPLICATES_PER_MACHINE:
            rows.append(gpu)
    machines = Counter(gpu.view for gpu in rows[:MAX_DUPLICATES])
    return _view_columns([gpu for gpu in rows[:MAX_DUPLICATES] if machines[gpu.view] > 1])


def _view_columns(rows: Sequence[tuple[str, str, str, int]]) -> ViewColumns:
    cluster, machine, view, received_at = zip(*rows, strict=True) if rows else ((), (), (), ())
    return ViewColumns(cluster=cluster, machine=machine, view=view, received_at=received_at)


def fetch_event_counts(handle: Handle, cluster: str, kinds: Collection[str], since: int) -> tuple[EventCount, ...]:
    """Return counts of events in order of their fields; see `ports.FactStore.event_counts`."""
    parameters = {"cluster": cluster, "kinds": sorted(kinds), "since": since}
    rows = handle.query(_EVENTS, parameters=parameters).result_rows
    return tuple(
        EventCount(machine=machine, view=view, kind=kind, code=code, at=tuple(-at for at in newest[::-1]), count=count)
        for machine, view, kind, code, newest, count in sorted(rows)
    )
