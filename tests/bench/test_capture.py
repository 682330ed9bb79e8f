"""A whole capture: over a planted machine, with real fio, and over a hostile channel."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import pytest

from gpufleet.bench.capture import CaptureRequest, CaptureTarget, capture
from gpufleet.bench.document import BenchmarkDocument, decode_benchmark, encode_benchmark
from gpufleet.bench.fio import JOBS
from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult
from gpufleet.runtime import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.commands import FakeCommands, printed
from tests.probe.test_machine import TREE
from tests.support import peers
from tests.support.trees import plant

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "benchmark.schema.json").read_text())


async def captured(root: Path, channel: FakeCommands, **fields: object) -> BenchmarkDocument:
    plant(TREE, root)
    target = CaptureTarget(files=LocalFiles(root), commands=channel)
    request = CaptureRequest(repeats=2, **fields)  # type: ignore[arg-type]
    document = await capture(target, request, FakeClock(), lambda _: None)
    jsonschema.validate(json.loads(encode_benchmark(document)), SCHEMA, format_checker=jsonschema.FormatChecker())
    assert decode_benchmark(encode_benchmark(document)) == document
    return document


async def test_machine_without_any_tool_still_has_a_capture(tmp_path: Path) -> None:
    document = await captured(tmp_path, FakeCommands(), fio_path="/data/file", ib_peer="node-2")
    assert (document.name, document.machine.name, document.machine.source) == ("gpu-1", "gpu-1", "host_local_probe")
    needing = [one for one in document.measurements if one.tool != "channel"]
    assert {one.absent for one in needing} == {Reason.NOT_ENABLED}
    assert all(one.detail for one in needing)


@pytest.mark.parametrize(
    "answer",
    [
        ChannelError("the output is too large"),
        ChannelTimeoutError("no answer"),
        lambda _: printed("{" * 1_000_000),
        lambda _: printed(b"\xff\x00\x1b[2J" * 200_000),
        lambda _: printed("9" * 1_000_000, code=-9),
        lambda _: printed('{"nvbandwidth":{"testcases":[]},"jobs":[],"fio version":"1.1"}'),
    ],
)
async def test_hostile_outputs_cost_only_their_measurements(
    answer: ChannelError | Callable[[Sequence[str]], ExecResult], tmp_path: Path
) -> None:
    programs = ("systemctl", "nvidia-smi", "docker", "fio", "stat", "ib_write_bw", "ib_write_lat", "nvbandwidth")
    channel = FakeCommands(**dict.fromkeys(programs, answer))
    document = await captured(tmp_path, channel, fio_path="/data/file", ib_peer="node-2")
    workloads = [one for one in document.measurements if one.tool not in ("nvidia-smi", "channel")]
    assert all(one.absent is not None and not one.values for one in workloads)
    assert next(fact.value for fact in document.facts if fact.name == "host_rdma_devices") == 2
    assert len(encode_benchmark(document)) < 16 << 20


async def test_request_is_in_the_document(tmp_path: Path) -> None:
    document = await captured(tmp_path, FakeCommands(), name="vm", labels={"hugepages": "on"})
    assert (document.name, document.labels, document.repeats) == ("vm", {"hugepages": "on"}, 2)
    assert [one.argv[0] for one in document.commands][:3] == ["systemctl", "systemctl", "nvidia-smi"]


def fio_folder(program: Path, folder: Path) -> Path:
    """Return a folder with a `fio` that finds its libraries."""
    folder.mkdir()
    install(folder, program, peers.environment("fio"))
    return folder


def install(folder: Path, program: Path, environment: dict[str, str]) -> None:
    """Install a program of a package, which finds its libraries."""
    libraries = environment.get("LD_LIBRARY_PATH", "")
    (folder / program.name).write_text(f'#!/bin/sh\nexec env LD_LIBRARY_PATH="{libraries}" {program} "$@"\n')
    (folder / program.name).chmod(0o755)


@pytest.mark.system
@pytest.mark.slow
async def test_real_fio_measures_every_job(
    peer: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpufleet.bench.fio.IO_MEBIBYTES", 4)
    data = tmp_path / "data"
    data.write_bytes(os.urandom(4 << 20))
    before = data.stat()
    tools = fio_folder(peer("fio"), tmp_path / "bin")
    commands = LocalExec(environment={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
    target = CaptureTarget(files=LocalFiles(), commands=commands)
    request = CaptureRequest(repeats=2, fio_path=str(data))
    document = await capture(target, request, SystemClock(), lambda _: None)
    found = {one.name: one for one in document.measurements if one.tool == "fio"}
    assert {(name, len(one.values), one.failed) for name, one in found.items()} == {
        (kind.name, 2, 0) for job in JOBS for kind in job.kinds(direct=True).values()
    }
    assert all(re.fullmatch(r"[0-9]+\.[0-9.]+", one.tool_version) for one in found.values())
    assert (data.stat().st_mtime_ns, data.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert {path.name for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))} == {"bin", "data"}


@pytest.mark.system
async def test_real_perftest_without_rdma_has_its_own_message(peer: Callable[[str], Path], tmp_path: Path) -> None:
    program = peer("ib_write_bw")
    for one in (program, program.with_name("ib_write_lat")):
        install(tmp_path, one, peers.environment("ib_write_bw"))
    commands = LocalExec(environment={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    target = CaptureTarget(files=LocalFiles(), commands=commands)
    document = await capture(target, CaptureRequest(repeats=2, ib_peer="127.0.0.1"), SystemClock(), lambda _: None)
    devices = next(fact.value for fact in document.facts if fact.name == "host_rdma_devices")
    if devices:
        pytest.skip(f"this machine has {devices} RDMA devices")
    found = {one.name: one for one in document.measurements if one.name.startswith("rdma_")}
    assert {(one.absent, one.failed, one.target) for one in found.values()} == {(Reason.READER_FAILED, 2, "127.0.0.1")}
    assert all("Unable to find the Infiniband/RoCE device" in one.detail for one in found.values())
    versions = {one.name: one.tool_version for one in document.commands if one.name.startswith("ib_write_")}
    assert re.fullmatch(r"[0-9]+\.[0-9.]+", versions["ib_write_bw"])


TRACED = """
import asyncio, sys
from gpufleet.bench import fio
from gpufleet.bench.capture import CaptureRequest, CaptureTarget, capture
from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.runtime import SystemClock
fio.IO_MEBIBYTES = 4
request = CaptureRequest(repeats=1, fio_path=sys.argv[1])
target = CaptureTarget(files=LocalFiles(), commands=LocalExec())
asyncio.run(capture(target, request, SystemClock(), lambda _: None))
"""
WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND|unlink|rename|truncate|fallocate|mknod|mkdir")
PATH_OF_CALL = re.compile(r'"(/[^"]*)"')


@pytest.mark.system
@pytest.mark.slow
def test_capture_writes_to_no_file_and_no_device(peer: Callable[[str], Path], tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    data, trace = tmp_path / "data", tmp_path / "trace"
    data.write_bytes(os.urandom(4 << 20))
    tools = fio_folder(peer("fio"), tmp_path / "bin")
    calls = "trace=open,openat,creat,unlink,unlinkat,rename,renameat,renameat2,truncate,ftruncate,fallocate,mknod,mkdir"
    command = [strace, "-f", "-s", "300", "-e", calls, "-o", str(trace), sys.executable, "-c", TRACED, str(data)]
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text().splitlines()
    opened = [line for line in lines if str(data) in line and "open" in line]
    assert opened
    assert all("O_RDONLY" in line for line in opened)
    done_calls = [line for line in lines if WRITING.search(line) and " = -1 " not in line]
    assert {found[1] for line in done_calls if (found := PATH_OF_CALL.search(line))} <= {"/dev/null"}
