"""Stores across processes: no loss after kill -9, one owner at a time, migration of folders."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.rollup.tables import ROLLUP_TABLES
from gpufleet.stores.clickhouse.sql.views import VIEWS

CHILD = Path(__file__).with_name("child.py")


def run(scenario: str, folder: Path) -> list[Any]:
    done = subprocess.run(
        [sys.executable, CHILD, scenario, folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_and_kill(folder: Path, writes: int) -> int:
    """Kill a writer in the middle of its work. Return the last number that it reported as written."""
    with subprocess.Popen([sys.executable, CHILD, "write_until_killed", folder], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(writes)]
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
    return max(int(line) for line in lines if line.endswith(b"\n"))


def test_writes_survive_kill_9_once(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    write_and_kill(folder, 5)
    last = write_and_kill(folder, 5)
    points, rows, after_replay, text, closed = run("read", folder)
    assert points[: last + 1] == [float(number) for number in range(last + 1)]
    assert len(points) in (last + 1, last + 2)  # the write that was killed may have been complete
    assert rows["info"] < rows["samples"]  # texts are written when they change
    assert after_replay == rows["samples"]
    assert text == f"name {(len(points) - 1) // 3}"
    assert "closed" in closed


def test_second_process_is_refused_with_the_owners_pid(embedded: ClickHouseStore, folder: Path) -> None:
    (message,) = run("try_to_open", folder)
    assert f"process {os.getpid()} has this store open" in message


def test_older_folder_is_migrated_and_newer_one_is_refused(tmp_path: Path) -> None:
    latest, changed, history, refusal = run("upgrade", tmp_path / "db")
    assert latest == [{"host_load_1m": 0.5}, {"gpu_power_watts": 1.0, "gpu_name": "name 0"}]
    assert changed == []
    # one table gained a column, and the tables of rollups and the SQL views were created
    assert history == [1, 1 + len(ROLLUP_TABLES) + len(VIEWS)]
    assert "schema version 1000" in refusal


def test_retention_is_a_ttl_where_a_ttl_can_express_it(tmp_path: Path) -> None:
    limited, *unlimited, kept = run("limit_retention", tmp_path / "db")
    tables = (
        *("collectors", "dim_samples", "dim_windows_1m", "holder_states", "processes", "samples", "state_windows_1m"),
        "windows_1m",
    )
    assert limited == [[name, "toIntervalDay(10000)"] for name in tables]
    assert unlimited == [[], []]  # a hundred years are past the last instant of a TTL
    assert kept == [1, 1, 1, 1]


def test_holding_expires_after_its_last_report(tmp_path: Path) -> None:
    assert run("expire_holdings", tmp_path / "db") == [["0", "1"], ["0", "1"], ["0"]]


def test_forked_child_is_refused(tmp_path: Path) -> None:
    (message,) = run("fork", tmp_path / "db")
    assert "fork" in message


def test_missing_libraries_are_named_with_the_extra(tmp_path: Path) -> None:
    (message,) = run("without_libraries", tmp_path / "db")
    assert "gpufleet[hub]" in message
    assert "clickhouse_connect" in message
