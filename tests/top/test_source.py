"""Playback of a recording at a playing time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.errors import GpufleetError, RecordingError
from gpufleet.recording.reader import RecordingReader
from gpufleet.top.source import MAX_SPEED, MIN_SPEED, Playback
from tests.fakes.clock import FakeClock
from tests.support.observed import node_snapshot
from tests.support.recordings import AT, SECOND, frames_of, write_recording


class Player:
    """Playback of ten frames, a second apart, whose titles are their numbers."""

    def __init__(self, path: Path, start: int = AT) -> None:
        self.clock = FakeClock()
        self.stream = path.open("rb")
        reader = RecordingReader(self.stream)
        self.playback = Playback(reader, start, self.clock.monotonic, lambda snapshot: snapshot)

    async def shown(self) -> str:
        return (await self.playback.poll()).title


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "r"
    write_recording(path, [encode_snapshot(node_snapshot(str(number), ())) for number in range(10)])
    return path


@pytest.fixture
def player(recording: Path) -> Iterator[Player]:
    player = Player(recording)
    yield player
    player.stream.close()


def damage(path: Path, place: int) -> None:
    """Change a byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


async def test_frames_follow_the_clock(player: Player) -> None:
    assert await player.shown() == "0"
    player.clock.advance(3.5)
    assert await player.shown() == "3"
    player.playback.change_speed(2)
    player.clock.advance(2)
    assert await player.shown() == "7"


async def test_pause_stops_the_playing_time(player: Player) -> None:
    player.clock.advance(2)
    player.playback.toggle_pause()
    player.clock.advance(100)
    assert await player.shown() == "2"
    assert "paused" in player.playback.mode
    player.playback.toggle_pause()
    player.clock.advance(1)
    assert await player.shown() == "3"


async def test_seeking_stays_within_the_recording(player: Player) -> None:
    player.playback.skip(5)
    assert await player.shown() == "5"
    player.playback.skip(-2)
    assert await player.shown() == "3"
    player.playback.skip(1e6)
    assert await player.shown() == "9"
    assert "end" in player.playback.mode
    player.playback.skip(-1e6)
    assert await player.shown() == "0"


async def test_speed_is_limited(player: Player) -> None:
    for _ in range(30):
        player.playback.change_speed(2)
    assert player.playback.speed == MAX_SPEED
    for _ in range(30):
        player.playback.change_speed(0.5)
    assert player.playback.speed == MIN_SPEED


async def test_unchanged_frame_is_the_same_observation(player: Player) -> None:
    first = await player.playback.poll()
    player.clock.advance(0.5)
    assert await player.playback.poll() is first


async def test_damaged_frame_is_an_error_and_the_next_is_shown(recording: Path) -> None:
    place = frames_of(recording)[1].offset
    damage(recording, place + 60)
    player = Player(recording)
    player.clock.advance(1)
    with pytest.raises(RecordingError) as caught:
        await player.shown()
    assert caught.value.offset == place
    player.clock.advance(1)
    assert await player.shown() == "2"
    player.stream.close()


def test_recording_without_a_frame_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_recording(path, [])
    with path.open("rb") as stream, pytest.raises(GpufleetError):
        Playback(RecordingReader(stream), 0, FakeClock().monotonic, lambda snapshot: snapshot)


def test_start_before_the_recording_begins_with_the_first_frame(recording: Path) -> None:
    player = Player(recording, AT - 100 * SECOND)
    assert "2026-01-01 00:00:00" in player.playback.mode
    player.stream.close()
