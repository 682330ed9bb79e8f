"""Soak test: its load, its memory check and its audit."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.processes import children, folder_bytes
from benchmarks.soak_criteria import FLAT_RATIO, Stored, audit, growth
from benchmarks.soak_load import GPUS_PER_NODE, VALUES, Node
from gpufleet.codecs.batch import decode
from gpufleet.hub.flush.normalise import normalise

NOW = 1_790_000_000_000_000_000
SECONDS = [5.0 * number for number in range(720)]


@pytest.mark.timeout(300)
def test_short_run_of_a_small_fleet_loses_nothing() -> None:
    arguments = ["-m", "benchmarks.soak", "--minutes", "0.05", "--gpus", "160", "--relays", "1"]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert "rows of 20 senders" in done.stdout, done.stdout + done.stderr
    _, _, problems = done.stdout.partition("FAILED:\n  ")
    found = [line for line in problems.splitlines() if " s late" not in line]  # a busy machine is no defect
    assert found[:-1] == [], done.stdout
    assert done.returncode == (1 if problems else 0)
    if problems:
        shutil.rmtree(found[-1].rpartition("kept in ")[2].strip())


def test_body_has_forty_valid_readings_per_gpu() -> None:
    node = Node(200)
    started: set[int] = set()
    for seq in range(1, 500):
        batch = decode(node.next_body(NOW))
        assert (batch.seq, batch.epoch) == (seq, node.epoch)
        assert batch.heartbeat is not None
        started.add(batch.heartbeat.started_at)
        (block,) = batch.samples
        assert (len(block.metrics), VALUES, len(block.machine)) == (40, 39, GPUS_PER_NODE)  # one is absent
        found = normalise(batch, NOW)
        assert (found.invalid_values, found.unknown_metrics, found.future_rows) == ({}, {}, 0)
    assert len(started) == 1, "one process start for all batches"


def test_nodes_report_different_values() -> None:
    first, second = (decode(Node(number).next_body(NOW)) for number in (1, 2))
    assert first.epoch != second.epoch
    assert first.sender != second.sender
    assert {view.uuid for view in first.views}.isdisjoint(view.uuid for view in second.views)
    assert first.samples[0].columns != second.samples[0].columns


def test_memory_that_levels_off_is_flat() -> None:
    found = growth([(at, min(800.0, 300 + at)) for at in SECONDS])
    assert found.is_flat
    assert found.per_hour == pytest.approx(0, abs=1)


def test_memory_that_grows_is_not_flat() -> None:
    found = growth([(at, 800 + at / 3600 * 150 + (at % 7)) for at in SECONDS])
    assert not found.is_flat
    assert found.per_hour == pytest.approx(150, rel=0.05)


def test_growth_limit_is_a_share_of_the_mean() -> None:
    under = growth([(at, 1000 * (1 + 0.9 * FLAT_RATIO * at / 2700)) for at in SECONDS])
    over = growth([(at, 1000 * (1 + 1.3 * FLAT_RATIO * at / 2700)) for at in SECONDS])
    assert under.is_flat
    assert not over.is_flat


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"a": Stored(16, 16, 2)}, ""),
        ({"a": Stored(15, 15, 2)}, "epoch a: 15 rows up to number 2 of 16 up to 2"),
        ({"a": Stored(8, 8, 1)}, "epoch a: 8 rows up to number 1"),
        ({"a": Stored(16, 16, 3)}, "up to number 3 of 16 up to 2"),
        ({"a": Stored(17, 16, 2)}, "1 rows are in the store more than once"),
        ({}, "epoch a: 0 rows"),
        ({"a": Stored(16, 16, 2), "b": Stored(8, 8, 1)}, "epoch b is in the store but was never posted"),
    ],
)
def test_audit_reports_missing_double_and_unknown_rows(stored: dict[str, Stored], expected: str) -> None:
    problems = list(audit({"a": 2}, stored))
    assert bool(problems) == bool(expected)
    assert expected in "".join(problems)


def test_folder_size_during_concurrent_changes(tmp_path: Path) -> None:
    (tmp_path / "permanent").write_bytes(bytes(100))
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            (tmp_path / "part" / "deep").mkdir(parents=True)
            (tmp_path / "part" / "deep" / "data.bin").write_bytes(bytes(10))
            shutil.rmtree(tmp_path / "part")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert {folder_bytes(tmp_path) for _ in range(500)} <= {100, 110}
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(300)
def test_run_ends_when_a_daemon_dies() -> None:
    arguments = ["-m", "benchmarks.soak", "--minutes", "5", "--gpus", "80", "--relays", "1"]
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline()  # the head of the table: all daemons are running
        _, relay = children(run.pid)
        os.kill(relay, signal.SIGKILL)
        out = run.stdout.read()
        assert run.wait(60) == 1
    assert "relay-1 ended with -9 in the middle" in out
    shutil.rmtree(out.rpartition("kept in ")[2].strip())
