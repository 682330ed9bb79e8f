"""Reader over a real socket to a simulated engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.model.view import Side
from gpufleet.ports.clock import Clock
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock
from gpufleet.simulate.dcgm.engine import SimulatedEngine
from gpufleet.simulate.dcgm.state import EngineState
from gpufleet.simulate.dcgm.values import FieldValue

_BLANKS: dict[type, FieldValue] = {int: 0x7FFF_FFFF_FFFF_FFF0, float: 140_737_488_355_328.0, str: "<<<NULL>>>"}


def blanks(values: Mapping[int, FieldValue]) -> dict[int, FieldValue]:
    """Return blanks in place of values, as an engine sends them for a GPU that it has lost."""
    return {field: _BLANKS[type(value)] for field, value in values.items()}


@contextlib.asynccontextmanager
async def reading(
    folder: Path,
    state: EngineState,
    *,
    reply_seconds: float = 5.0,
    side: Side = Side.HOST,
    profiling: bool = True,
    clock: Clock | None = None,
) -> AsyncIterator[tuple[DcgmReader, SimulatedEngine]]:
    """Serve the state on a Unix socket and yield a reader connected to it."""
    engine = SimulatedEngine(state)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        await engine.serve(reader, writer)

    server = await asyncio.start_unix_server(serve, folder / "engine")
    reader = DcgmReader(
        UnixDialer(folder / "engine"),
        clock or SystemClock(),
        side=side,
        profiling=profiling,
        reply_seconds=reply_seconds,
    )
    try:
        yield reader, engine
    finally:
        await reader.close()
        server.close()
        await asyncio.gather(*serving)  # they end when their connections close
