"""Users and commands of processes from /proc."""

import getpass
import os
import subprocess
import sys
from pathlib import Path

from gpufleet.holders.processes.parse.process import parse_stat
from gpufleet.model.snapshot import ProcessReport, Snapshot
from gpufleet.top.observation import ProcessOwner
from gpufleet.top.process_owners import ProcessOwners
from tests.support.observed import gpu, node_snapshot


def running(pid: int, start_time: int | None) -> Snapshot:
    process = ProcessReport(pid=pid, kinds=("compute",), start_time=start_time, readings={})
    return node_snapshot(found=(gpu(0, {}, processes=(process,)),))


def start_time_of(pid: int) -> int:
    stat = parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    assert stat is not None
    return stat.start_time


def test_user_and_command_line_of_a_process() -> None:
    command = [sys.executable, "-c", "input()", "an argument"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        key = process.pid, start_time_of(process.pid)
        owners = ProcessOwners()
        expected = {key: ProcessOwner(getpass.getuser(), " ".join(command))}
        assert owners.of(running(*key)) == expected
        process.communicate(b"\n")
    assert owners.of(running(*key)) == expected  # read once
    assert owners.of(node_snapshot(found=())) == {}
    assert owners.of(running(*key)) == {}


def test_another_process_with_the_same_id_is_not_named() -> None:
    pid = os.getpid()
    assert ProcessOwners().of(running(pid, start_time_of(pid) + 1)) == {}
    assert ProcessOwners().of(running(pid, None)) == {}
