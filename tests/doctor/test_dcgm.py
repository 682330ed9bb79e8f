"""Doctor checks of a DCGM engine."""

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import cast

import pytest

from gpufleet.channels.stream.dialers import UnixDialer, VsockDialer
from gpufleet.codecs.dcgm_wire.commands import READ_ONLY
from gpufleet.doctor.dcgm import examine_engine
from gpufleet.doctor.facts import CheckResult, CheckVerdict
from gpufleet.ports.channel import Stream
from gpufleet.runtime import SystemClock
from gpufleet.simulate.dcgm.engine import SimulatedEngine
from gpufleet.simulate.dcgm.state import EngineFault, EngineState
from gpufleet.simulate.dcgm.values import PROFILING


class FailingSocket:
    """Socket whose connection fails with a kernel error."""

    family = socket.AF_VSOCK

    def __init__(self, code: int) -> None:
        self.code = code

    def setblocking(self, _: bool) -> None:
        pass

    def connect_ex(self, _: object) -> int:
        return self.code

    def close(self) -> None:
        pass


async def examine(folder: Path, state: EngineState, address: str = "") -> tuple[dict[str, CheckResult], list[int]]:
    engine = SimulatedEngine(state)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        await engine.serve(reader, writer)

    server = await asyncio.start_unix_server(serve, folder / "e")
    checks = await examine_engine(address or f"unix://{folder}/e", UnixDialer(folder / "e"), SystemClock())
    server.close()
    await asyncio.gather(*serving)
    return {check.name: check for check in checks}, engine.commands


async def test_healthy_engine_passes(tmp_path: Path) -> None:
    checks, commands = await examine(tmp_path, EngineState.healthy(3))
    assert {check.verdict for check in checks.values()} == {CheckVerdict.OK}
    assert checks["GPUs"].found == "3: 0, 1, 2"
    assert "ENTITIES_GET_LATEST_V4 FUNCTION_NOT_FOUND" in checks["latest values"].found
    assert set(commands) <= READ_ONLY


async def test_unsupported_engine_version_fails(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.version = "3.3.5"
    checks, _ = await examine(tmp_path, state)
    assert checks["version"].verdict is CheckVerdict.FAILED
    assert not any(name.startswith("readings") for name in checks)


async def test_engine_without_gpus_fails(tmp_path: Path) -> None:
    checks, _ = await examine(tmp_path, EngineState())
    assert checks["GPUs"].verdict is CheckVerdict.FAILED


async def test_engine_with_clock_skew_and_vsock_address_warns(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.clock_ahead = 60_000_000
    checks, _ = await examine(tmp_path, state, "vsock://42:5555")
    assert checks["clock"].verdict is CheckVerdict.WARNING
    assert checks["clock"].found.startswith("+")
    assert checks["exposure"].verdict is CheckVerdict.WARNING


@pytest.mark.parametrize("fault", [EngineFault.WRONG_MAGIC, EngineFault.HANG_UP, EngineFault.WRONG_COUNT])
async def test_peer_that_is_no_engine_fails(fault: EngineFault, tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(fault)
    checks, _ = await examine(tmp_path, state)
    assert checks["engine"].verdict is CheckVerdict.FAILED


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENODEV, "CID"),
        (errno.ETIMEDOUT, "vsock driver"),
        (errno.ECONNRESET, "drop-in"),
        (errno.EACCES, "RestrictAddressFamilies"),
    ],
)
async def test_connection_error_suggests_a_fix(code: int, expected: str) -> None:
    """The error text of the kernel (no such device, connection timed out) suggests no fix."""

    class FailingDialer:
        async def dial(self) -> Stream:
            return await VsockDialer(42, 5555, make_socket=lambda: cast("socket.socket", FailingSocket(code))).dial()

    (check,) = await examine_engine("vsock://42:5555", FailingDialer(), SystemClock())
    assert check.verdict is CheckVerdict.FAILED
    assert os.strerror(code) in check.found
    assert expected in check.fix


async def test_other_service_at_the_address_is_reported(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.WRONG_MAGIC)
    checks, _ = await examine(tmp_path, state)
    assert "another service" in checks["engine"].fix


async def test_lost_gpu_is_counted_and_fails_no_check(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.gpus[1].statuses = dict.fromkeys(set(state.gpus[1].values) - {54, 57}, -18)
    checks, _ = await examine(tmp_path, state)
    assert "gpu_lost" in checks["readings, fast"].found


async def test_supported_features_are_reported(tmp_path: Path) -> None:
    state = EngineState.with_mig(2)
    state.unknown = frozenset({1523, *range(1600, 1613)})
    checks, commands = await examine(tmp_path, state)
    assert checks["profiling"].verdict is CheckVerdict.OK
    assert checks["profiling"].found == "all 16 readings"
    assert checks["XIDs"].verdict is CheckVerdict.OK
    assert checks["MIG devices"].found == "3: 3g.71gb, 1c.4g.71gb, 3c.4g.71gb"
    assert "not 1523, 1600, 1601" in checks["fields"].found
    assert set(commands) <= READ_ONLY


@pytest.mark.parametrize(("code", "expected"), [(-54, "resume"), (-17, "RestrictProfiling"), (-33, "proprietary")])
async def test_profiling_in_use_is_reported(code: int, expected: str, tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.unwatchable = dict.fromkeys(PROFILING, code)
    checks, _ = await examine(tmp_path, state)
    assert checks["profiling"].verdict is CheckVerdict.WARNING
    assert expected in checks["profiling"].fix
    assert checks["readings, fast"].verdict is CheckVerdict.OK


async def test_engine_without_xid_watch_warns(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.unwatchable = {230: -6}
    checks, _ = await examine(tmp_path, state)
    assert checks["XIDs"].verdict is CheckVerdict.WARNING
