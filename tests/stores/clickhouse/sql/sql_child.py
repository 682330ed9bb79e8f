"""Process with 200,000 events and small limits: reads a JSON list of statements and prints their results."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from gpufleet.model.api.sql import SqlLimits
from gpufleet.model.errors import SqlError
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.process_memory import memory_kib

LIMITS = SqlLimits(seconds=1.0, memory_bytes=100_000_000, rows=1_000, result_bytes=1_000_000)

INSERT = """
INSERT INTO events
SELECT 'c', toString(number), '', toDateTime64(number, 9, 'UTC'), 'xid', number % 100, ['a'], [toString(number)],
    toDateTime64(0, 9, 'UTC')
FROM numbers(200000)
"""


def main(folder: str) -> None:
    store = ClickHouseStore.open(f"chdb://{folder}/db", LIMITS)
    store.migrate()
    store._handles.writer.command(INSERT)
    results = []
    for statement in json.load(sys.stdin):
        try:
            message, rows = "", len(store.select(statement).rows)
        except SqlError as error:
            message, rows = str(error), 0
        results.append({"message": message, "rows": rows, "peak_kib": memory_kib("VmHWM")})
    store.close()
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
