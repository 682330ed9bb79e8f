"""What holds over processes: nothing is lost by kill -9, one owner at a time, folders are migrated."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.sql.views import VIEWS

CHILD = Path(__file__).with_name("child.py")


def run(what: str, folder: Path) -> list[Any]:
    done = subprocess.run(
        [sys.executable, CHILD, what, folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_and_kill(folder: Path, writes: int) -> int:
    """Return the last number that a writer said was written before it was killed in the middle of its work."""
    with subprocess.Popen([sys.executable, CHILD, "write_until_killed", folder], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(writes)]
        child.send_signal(signal.SIGKILL)
        said += child.stdout.readlines()
    return max(int(line) for line in said if line.endswith(b"\n"))


def test_what_was_written_survives_kill_9_once(tmp_path: Path) -> None:
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


def test_another_process_is_told_who_has_the_folder(embedded: ClickHouseStore, folder: Path) -> None:
    (words,) = run("try_to_open", folder)
    assert f"process {os.getpid()} has this store open" in words


def test_older_folder_is_migrated_and_newer_one_is_refused(tmp_path: Path) -> None:
    latest, changed, history, refusal = run("upgrade", tmp_path / "db")
    assert latest == [{"host_load_1m": 0.5}, {"gpu_power_watts": 1.0, "gpu_name": "name 0"}]
    assert changed == []
    # one table gained a column, nine were made, five told how to merge, and people's views were made
    assert history == [1, 1 + 9 + 5 + len(VIEWS)]
    assert "schema version 1000" in refusal


def test_retention_is_a_ttl_where_a_ttl_can_express_it(tmp_path: Path) -> None:
    limited, *unlimited, kept = run("limit_retention", tmp_path / "db")
    tables = ("dim_samples", "dim_windows_1m", "processes", "samples", "state_windows_1m", "windows_1m")
    assert limited == [[name, "toIntervalDay(10000)"] for name in tables]
    assert unlimited == [[], []]  # a hundred years are past the last instant of a TTL
    assert kept == [1, 1, 1, 1]


def test_a_forked_child_is_refused_at_once(tmp_path: Path) -> None:
    (words,) = run("fork", tmp_path / "db")
    assert "does not work after a fork" in words


def test_without_its_libraries_it_says_what_to_install(tmp_path: Path) -> None:
    (words,) = run("without_libraries", tmp_path / "db")
    assert "gpufleet[hub]" in words
    assert "clickhouse_connect" in words
