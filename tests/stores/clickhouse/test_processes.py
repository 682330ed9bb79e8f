"""What holds over processes: nothing is lost by kill -9, one owner at a time, older folders are brought forward."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.schema.tables import LATEST, SCHEMA_VERSION
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


def test_an_older_folder_is_brought_forward_and_a_newer_one_refused(tmp_path: Path) -> None:
    latest, changed, history, refusal = run("upgrade", tmp_path / "db")
    assert latest == [{"host_load_1m": 0.5}, {"gpu_power_watts": 1.0, "gpu_name": "name 0"}]
    assert changed == []
    # one table gained a column, nine were made, five told how to merge, and people's views were made
    assert history == [1, 1 + 9 + 5 + len(VIEWS)]
    assert f"schema version 1000, this build knows {SCHEMA_VERSION}" in refusal


def test_a_folder_of_version_1_is_brought_forward_with_what_is_in_it(tmp_path: Path) -> None:
    loads, told, changed, version = run("upgrade_version_1", tmp_path / "db")
    assert loads == [0.75, 0.5]
    assert told == ["dim_samples", "latest", "processes", "reader_status", "samples"]
    assert changed == []
    assert version == SCHEMA_VERSION


def test_a_folder_of_version_2_has_hours_made_of_what_is_in_it(tmp_path: Path) -> None:
    hours, found, version, kept, *for_ever, is_there = run("upgrade_version_2", tmp_path / "db")
    assert hours == [0, 1]
    assert found == ["1h", 0.5, 2.5]
    assert version == SCHEMA_VERSION
    limited = ("dim_samples", "dim_windows_1m", "processes", "samples", "state_windows_1m", "windows_1m")
    assert kept == [[name, "toIntervalDay(10000)"] for name in limited]
    assert for_ever == [[], []]  # a hundred years are past the last instant that a TTL can have
    assert is_there == [1, 1]


def test_a_folder_of_version_3_keeps_its_minutes_and_hours(tmp_path: Path) -> None:
    version, *told = run("upgrade_rollups_of_version_3", tmp_path / "db")
    assert version == SCHEMA_VERSION
    windows = [
        *(4, 300.5, 400.0, 350.0, 4, None, 0, 2, 1, 30.5, 20.5, 0),
        *([7.0, 9.0, 8.0], [3], [6], [3], [1]),
    ]
    states, series = [["gpu_state", [], "ok", 60.0]], ["1h", 8.0, 30.5, "enabled", 350.0]
    once = [[windows], [windows], states, states, series, 0]
    assert told == [*once, version, *once]


@pytest.mark.parametrize("child", ["upgrade_version_3", "upgrade_version_3_again"])
def test_a_folder_of_version_3_keeps_its_newest_samples(tmp_path: Path, child: str) -> None:
    of_m, of_n, same_standings, tellers, version, left = run(child, tmp_path / "db")
    assert of_m == [True, [None, 1.0, None, None]]  # the machine, one GPU in two lanes, one that tells nothing
    assert of_n == [True, [0.5]]
    assert same_standings
    assert tellers == ["m", "n"]
    assert version == SCHEMA_VERSION
    assert left == ["latest"]


def test_a_folder_of_version_5_is_compressed_quickly_and_numbered_from_now_on(tmp_path: Path) -> None:
    changed, again, codecs, latest = run("upgrade_version_5", tmp_path / "db")
    quick = [f"ALTER TABLE latest MODIFY COLUMN `{column.name}` CODEC(LZ4)" for column in LATEST.columns]
    assert [one for one in changed if "dim_samples" not in one] == quick
    assert [one.split(" CODEC")[0] for one in changed if "dim_samples" in one] == [
        "ALTER TABLE dim_samples ADD COLUMN IF NOT EXISTS `epoch` LowCardinality(String)",
        "ALTER TABLE dim_samples ADD COLUMN IF NOT EXISTS `seq` UInt64",
    ]
    assert again == []
    assert codecs == ["CODEC(LZ4)"]
    assert latest == [{"gpu_power_watts": 1.0, "gpu_name": "name 0"}]


def test_a_forked_child_is_refused_at_once(tmp_path: Path) -> None:
    (words,) = run("fork", tmp_path / "db")
    assert "does not work after a fork" in words


def test_without_its_libraries_it_says_what_to_install(tmp_path: Path) -> None:
    (words,) = run("without_libraries", tmp_path / "db")
    assert "gpufleet[hub]" in words
    assert "clickhouse_connect" in words
