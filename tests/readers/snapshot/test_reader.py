"""Snapshot reader: readings of a remote snapshot document, timed by the local clock."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError, ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.snapshot import ReaderReport, Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.channel import ExecResult
from gpufleet.readers.snapshot import SnapshotReader
from tests.fakes.clock import FakeClock
from tests.support.snapshots import example_snapshot

LANES = (Lane.STATIC, Lane.SLOW, Lane.FAST)


class Guest:
    """Channel that prints a fixed output for every command."""

    def __init__(self, printed: bytes | Exception, code: int = 0, stderr: bytes = b"") -> None:
        self.printed, self.code, self.stderr = printed, code, stderr
        self.commands: list[tuple[str, ...]] = []

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        self.commands.append(tuple(argv))
        if isinstance(self.printed, Exception):
            raise self.printed
        return ExecResult(exit_code=self.code, stdout=self.printed, stderr=self.stderr)


async def read(snapshot: Snapshot, lane: Lane, clock: FakeClock | None = None) -> tuple[Sample, ...]:
    guest = Guest(encode_snapshot(snapshot))
    done = await SnapshotReader(guest, clock or FakeClock()).read(lane)
    assert guest.commands == [("gpufleet", "snapshot", "--format", "json")]
    return done.samples


async def test_every_reading_of_a_gpu_is_restored() -> None:
    snapshot = example_snapshot()
    values: dict[str, dict[str, object]] = {}
    for lane in LANES:
        for sample in await read(snapshot, lane):
            assert all(CATALOGUE[name].lane is lane for name in sample.values)
            if sample.view is not None:
                values.setdefault(sample.view.key, {}).update(sample.values)
    seen = [one for one in snapshot.devices if one.side is Side.HOST and one.kind is not ViewKind.VGPU]
    assert set(values) == {one.key for one in seen}
    for device in seen:
        for name, reading in device.readings.items():
            value = values[device.key][name]
            if isinstance(value, Absent):
                assert (reading.value, reading.absent, reading.detail) == (None, value.reason, value.detail)
            else:
                assert reading.value == value


async def test_clock_of_the_guest_is_ignored() -> None:
    snapshot, clock = example_snapshot(), FakeClock()
    wrong = msgspec.json.decode(
        encode_snapshot(snapshot).replace(str(snapshot.measured_at.year).encode(), b"1999"), type=Snapshot
    )
    for lane in LANES:
        right = await read(snapshot, lane, clock)
        assert await read(wrong, lane, clock) == right
        for sample in right:
            assert 0 <= clock.now_ns() - sample.measured_at <= 3600 * 10**9


async def test_machine_and_driverless_devices_are_skipped() -> None:
    for lane in LANES:
        for sample in await read(example_snapshot(), lane):
            assert sample.view is None or sample.view.side is Side.HOST
            assert not any(name.startswith("host_") for name in sample.values)


async def test_snapshot_without_gpus_fails_with_its_readers_error() -> None:
    failed = ReaderReport(
        reader="nvml",
        lane="fast",
        state=ReaderState.FAILED,
        interval_seconds=10,
        error_class="driver_mismatch",
        last_error="Driver/library version mismatch",
    )
    bare = msgspec.structs.replace(example_snapshot(), devices=(), readers=(failed,))
    with pytest.raises(ReaderError) as caught:
        await read(bare, Lane.FAST)
    assert caught.value.absence is Reason.DRIVER_MISMATCH
    lost = msgspec.structs.replace(failed, error_class="gpu_lost")
    with pytest.raises(ReaderError) as caught:
        await read(msgspec.structs.replace(bare, readers=(lost,)), Lane.FAST)
    assert caught.value.absence is Reason.DRIVER_ERROR
    odd = msgspec.structs.replace(failed, error_class="RuntimeError")
    with pytest.raises(ReaderError) as caught:
        await read(msgspec.structs.replace(bare, readers=(odd,)), Lane.FAST)
    assert caught.value.absence is Reason.READER_FAILED


@pytest.mark.parametrize(
    ("guest", "reason", "message"),
    [
        (Guest(b"", 127), Reason.NOT_ENABLED, "gpufleet"),
        (Guest(b"", 2, b"gpufleet: agent.toml: \x1b[31mbad\n"), Reason.READER_FAILED, "code 2: gpufleet: agent.toml"),
        (Guest(b"hello"), Reason.READER_FAILED, "JSON"),
        (Guest(b'{"schema": "gpufleet.snapshot/99"}'), Reason.READER_FAILED, "is not gpufleet.snapshot/1"),
        (Guest(ChannelTimeoutError("slow", ChannelProblem.TIMEOUT)), Reason.TIMEOUT, "slow"),
        (Guest(ChannelError("gone", ChannelProblem.ENDED)), Reason.READER_FAILED, "gone"),
    ],
)
async def test_invalid_snapshot_is_a_reader_error(guest: Guest, reason: Reason, message: str) -> None:
    with pytest.raises(ReaderError) as caught:
        await SnapshotReader(guest, FakeClock()).read(Lane.FAST)
    assert caught.value.absence is reason
    assert message in str(caught.value)
    assert "\x1b" not in str(caught.value)


def with_state(snapshot: Snapshot, state: str) -> Snapshot:
    """Return the snapshot with this state of its first GPU."""
    first, *others = snapshot.devices
    lost = msgspec.structs.replace(first.readings["gpu_state"], value=state, absent=None)
    first = msgspec.structs.replace(first, readings={**first.readings, "gpu_state": lost})
    return msgspec.structs.replace(snapshot, devices=(first, *others))


async def test_state_of_a_gpu_has_events() -> None:
    snapshot = example_snapshot()
    guest = Guest(b"")
    reader = SnapshotReader(guest, FakeClock())
    found = []
    for state in ("lost", "lost", "ok"):
        guest.printed = encode_snapshot(with_state(snapshot, state))
        events = (await reader.read(Lane.FAST)).events
        found.append([event.kind for event in events if event.view == snapshot.devices[0].view])
    assert found == [["gpu_lost"], [], ["gpu_recovered"]]


async def test_document_is_judged_by_its_own_readings() -> None:
    """A lost reading beside the state `ok`, and a serial number of zeros."""
    snapshot = with_state(example_snapshot(), "ok")
    first, *others = snapshot.devices
    power, serial = first.readings["gpu_power_watts"], first.readings["gpu_name"]
    changed = {
        "gpu_power_watts": msgspec.structs.replace(power, value=None, absent=Reason.GPU_LOST),
        "gpu_serial": msgspec.structs.replace(serial, value="0", absent=None),
    }
    first = msgspec.structs.replace(first, readings={**first.readings, **changed})
    guest = Guest(encode_snapshot(msgspec.structs.replace(snapshot, devices=(first, *others))))
    reader = SnapshotReader(guest, FakeClock())
    fast, static = await reader.read(Lane.FAST), await reader.read(Lane.STATIC)
    values = {**values_of(fast, first.view), **values_of(static, first.view)}
    assert values["gpu_state"] == "lost"
    assert values["gpu_serial"] == Absent(Reason.NOT_SUPPORTED, "gpu_serial")
    assert [event.kind for event in fast.events if event.view == first.view] == ["gpu_lost"]


def values_of(done: Round, view: View) -> dict[str, object]:
    return {name: value for sample in done.samples if sample.view == view for name, value in sample.values.items()}
