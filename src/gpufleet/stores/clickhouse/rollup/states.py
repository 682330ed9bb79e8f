"""For how many seconds of a window each state was known to last. Pure: it renders the statement.

A sample's state lasts until the next sample of its lane, whatever that says, and for `SPEAKS_SECONDS` at most. So the
seconds of a window add up to less than the window where nothing was known.
"""

from gpufleet.model.catalogue import CATALOGUE, MetricKind, Storage
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.parts import NEXT, RANGE, SPEAKS_NS, TELLER, state_pairs
from gpufleet.stores.clickhouse.rollup.tables import MINUTE_NS, STATES_1H, STATES_1M

_STATES = [
    metric
    for metric in CATALOGUE.values()
    if metric.kind is MetricKind.STATE and metric.storage in (Storage.CORE, Storage.TAIL)
]


def render_states(window_ns: int) -> str:
    """Return the statement that makes the rows of a cluster's machines for every window of an hour.

    Its parameters: those of `render_values`, with `since` early enough for what still speaks, and first, last: the hour
    in nanoseconds.
    """
    table = STATES_1M if window_ns == MINUTE_NS else STATES_1H
    numbers = [metric.id for metric in _STATES]
    names = ", ".join(f"'{metric.name}'" for metric in _STATES)
    coded = [(metric.id * 256 + number, state) for metric in _STATES for number, state in enumerate(metric.states)]
    states = ", ".join(f"'{state}'" for _, state in coded)
    known = f"{[code for code, _ in coded]}, [{states}]"
    return f"""
INSERT INTO {table.name} ({", ".join(column.name for column in table.columns)})
SELECT {TELLER}, transform(toUInt32(pair.1), {numbers}, [{names}], '') AS metric_name,
    transform(toUInt32(pair.1) * 256 + pair.2, {known}, toString(pair.2)) AS state_name,
    toDateTime(number * {window_ns // NANOS}, 'UTC') AS window, {{version:UInt64}},
    sum(least(until_ns, (number + 1) * {window_ns}) - greatest(from_ns, number * {window_ns})) / {NANOS}
FROM (
    SELECT {TELLER}, arrayJoin(pairs) AS pair, from_ns, until_ns,
        arrayJoin(range(toUInt64(intDiv(from_ns, {window_ns})), toUInt64(intDiv(until_ns - 1, {window_ns}) + 1))) AS n,
        toInt64(n) AS number
    FROM (
        SELECT {TELLER}, pairs, greatest(at_ns, {{first:Int64}}) AS from_ns,
            least(next_ns, at_ns + {SPEAKS_NS}, {{last:Int64}}) AS until_ns
        FROM (
            SELECT {TELLER}, {state_pairs()} AS pairs, toUnixTimestamp64Nano(measured_at) AS at_ns, {NEXT} AS next_ns
            FROM samples FINAL WHERE {RANGE}
        )
        WHERE from_ns < until_ns AND notEmpty(pairs)
    )
)
GROUP BY {TELLER}, metric_name, state_name, number
SETTINGS max_threads = 1, max_insert_threads = 1, do_not_merge_across_partitions_select_final = 1"""  # noqa: S608 - the names are the catalogue's own; what is asked for is bound
