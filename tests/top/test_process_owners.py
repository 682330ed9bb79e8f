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
    command = [sys.executable, "-c", "print(flush=True); input()", "an argument"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the kernel has set the command line
        key = process.pid, start_time_of(process.pid)
        owners = ProcessOwners()
        expected = {key: ProcessOwner(getpass.getuser(), " ".join(command))}
        assert owners.of(running(*key)) == expected
        process.communicate(b"\n")
    assert owners.of(running(*key)) == expected  # read once
    assert owners.of(node_snapshot(found=())) == {}
    assert owners.of(running(*key)) == {}


def test_command_of_a_starting_process_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "42"
    folder.mkdir()
    folder.joinpath("stat").write_bytes(Path("/proc/self/stat").read_bytes())
    stat = parse_stat(folder.joinpath("stat").read_bytes())
    assert stat is not None
    owners, observed = ProcessOwners(tmp_path), running(42, stat.start_time)
    commands = []
    for line in (b"", b"train\0--fast\0", b"other\0"):
        folder.joinpath("cmdline").write_bytes(line)
        commands += [one.command for one in owners.of(observed).values()]
    assert commands == ["", "train --fast", "train --fast"]


def test_another_process_with_the_same_id_is_not_named() -> None:
    pid = os.getpid()
    assert ProcessOwners().of(running(pid, start_time_of(pid) + 1)) == {}
    assert ProcessOwners().of(running(pid, None)) == {}
