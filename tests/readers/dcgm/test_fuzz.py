"""Engine replies with bytes changed anywhere: a pass succeeds or fails with `ReaderError`.

Results can always be sent: numbers fit, and texts are clean.
"""

import asyncio
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Round
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock
from gpufleet.simulate.dcgm.answers import ClientState, CommandHandler
from gpufleet.simulate.dcgm.state import COMPUTE_INSTANCE, GPU, EngineState
from tests.readers.dcgm.test_faults import assert_true
from tests.support.profiles import examples

MAGIC, COMMAND, HEADER = 0xADBCBCAD, 0x300, 20
Change = tuple[int, int, bytes]


class CorruptingEngine:
    """Dialer and stream over a simulated engine that overwrites bytes of some replies."""

    def __init__(self, changes: list[Change], state: EngineState | None = None) -> None:
        state = state or EngineState.with_mig(2)
        state.xids = {(GPU, 0): [(2**62, 79)], (COMPUTE_INSTANCE, 1): [(2**40, 31)]}
        self._answers, self._changes = CommandHandler(state), {reply: (at, noise) for reply, at, noise in changes}
        self._connection, self._pending, self._replies = ClientState(), b"", 0
        self.most = 0

    async def dial(self) -> "CorruptingEngine":
        self._pending, self._connection = b"", ClientState()
        return self

    async def send(self, data: bytes) -> None:
        request, number = struct.unpack_from("<I", data, 4)[0], struct.unpack_from("<I", data, HEADER + 8)[0]
        status, body = self._answers.answer(self._connection, number, data[HEADER:], ())
        frame = bytearray(struct.pack("<IIiii", MAGIC, request, len(body), COMMAND, status) + body)
        if (change := self._changes.get(self._replies)) is not None:
            at = change[0] % len(frame)
            frame[at : at + len(change[1])] = change[1][: len(frame) - at]
        self._replies += 1
        self._pending += bytes(frame)

    async def receive(self, most: int) -> bytes:
        part, self._pending = self._pending[:most], self._pending[most:]
        return part

    async def receive_exactly(self, count: int) -> bytes:
        self.most = max(self.most, count)
        found = await self.receive(count)
        if len(found) < count:
            raise ChannelError("the stream has ended", ChannelProblem.ENDED)
        return found

    async def close(self) -> None:
        self._pending = b""


# Offsets of counts, lengths, statuses and the first records, and any other offset.
places = st.integers(0, 120) | st.integers(8480, 9500) | st.integers(0, 80_000)
noise = st.binary(min_size=1, max_size=40) | st.sampled_from(
    [b"\xff" * 8, b"\x7f" * 8, b"\0" * 8, struct.pack("<q", 2**62), struct.pack("<d", 1e308), struct.pack("<I", 448)]
)


@settings(max_examples=examples(60, 2000))
@given(st.lists(st.tuples(st.integers(0, 25), places, noise), max_size=6))
def test_corrupted_replies_never_break_the_reader(changes: list[Change]) -> None:
    engine = CorruptingEngine(changes)
    for found in asyncio.run(_read(engine)):
        assert_true(found.samples)
        assert len(msgspec.msgpack.encode(found)) < 1 << 20
    assert engine.most < 200_000, "a reply is read in chunks of bounded size"


async def _read(engine: CorruptingEngine) -> list[Round]:
    """Return the round of a pass over each lane, or what it had before it failed."""
    rounds: list[Round] = []
    reader = DcgmReader(engine, SystemClock())
    for lane in (Lane.STATIC, Lane.FAST, Lane.EVENT, Lane.SLOW):
        try:
            found = await reader.read(lane)
        except ReaderError as error:
            found = error.round or Round()
        rounds.append(found)
    return rounds


@pytest.mark.parametrize("field", [250, 156, 112, 310, 1009])
def test_number_too_large_for_its_unit_is_absent(field: int) -> None:
    state = EngineState.healthy(1)
    state.gpus[0].values[field] = 2**62
    rounds = asyncio.run(_read(CorruptingEngine([], state)))
    readings = {name: value for found in rounds for sample in found.samples for name, value in sample.values.items()}
    numbers = [value for value in readings.values() if isinstance(value, int | float)]
    assert len(numbers) > 50, "other fields are unaffected"
    assert max(numbers) < 2**63
    assert isinstance(readings["gpu_memory_total_bytes"], Absent) == (field == 250)  # MiB: 2**82 bytes
