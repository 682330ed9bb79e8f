"""Reading of recordings: whole, cut, damaged and hostile files, and the search by time."""

import contextlib
import io
import struct
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.codecs.batch.compression import compress
from gpufleet.codecs.snapshot_json import MAX_BYTES, encode_snapshot
from gpufleet.model.errors import RecordingError
from gpufleet.recording import index
from gpufleet.recording import reader as reader_module
from gpufleet.recording.dictionary import keyed_compressor
from gpufleet.recording.format import (
    HEADER_BYTES,
    MAX_ENTRIES,
    FrameHeader,
    RecordingHeader,
    make_frame_header,
    pack_frame_header,
    pack_header,
)
from gpufleet.recording.index import FrameIndex
from gpufleet.recording.reader import DamagedBytes, RecordedFrame, RecordingReader
from gpufleet.recording.writer import KEY_INTERVAL
from tests.support.observed import node_snapshot
from tests.support.profiles import examples
from tests.support.recordings import AT, SECOND, open_writer, write_recording
from tests.support.snapshots import held_snapshot

COUNT = 130
DOCUMENTS = [b"document %d " % number * (number % 7 + 1) for number in range(COUNT)]


def read(content: bytes) -> tuple[RecordingReader, list[RecordedFrame], list[DamagedBytes]]:
    reader = RecordingReader(io.BytesIO(content))
    found = list(reader.frames())
    frames = [one for one in found if isinstance(one, RecordedFrame)]
    return reader, frames, [one for one in found if isinstance(one, DamagedBytes)]


def documents(reader: RecordingReader, frames: list[RecordedFrame]) -> dict[int, bytes]:
    """Return the document of each frame whose key frame is intact, by number."""
    found = {}
    for frame in frames:
        with contextlib.suppress(RecordingError):
            found[frame.number] = reader.document(frame)
    return found


def key_of(number: int) -> int:
    """Return the number of the key frame of a frame."""
    return (number - 1) // KEY_INTERVAL * KEY_INTERVAL + 1


def frame_of(header: RecordingHeader, number: int, at: int, body: bytes, key: int = 0) -> bytes:
    """Return the bytes of a frame."""
    return pack_frame_header(header.seed, make_frame_header(header.seed, number, at, body, key)) + body


def times_recording(times: list[int]) -> bytes:
    """Return a recording without an index whose frames have these times."""
    header = RecordingHeader(b"i" * 16, AT)
    content = pack_header(header)
    for number, at in enumerate(times, start=1):
        content += frame_of(header, number, at, b"x")
    return content


WHOLE = dict(enumerate(DOCUMENTS, start=1))


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_recording(tmp_path_factory.mktemp("recording") / "r", DOCUMENTS)


@pytest.fixture(scope="module")
def unindexed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the content that `kill -9` leaves."""
    return write_recording(tmp_path_factory.mktemp("recording") / "r", DOCUMENTS, index=False)


def test_frames_are_read_with_and_without_an_index(indexed: bytes, unindexed: bytes) -> None:
    for content in (indexed, unindexed):
        reader, frames, damage = read(content)
        assert documents(reader, frames) == WHOLE
        assert [one.at for one in frames] == [AT + number * SECOND for number in range(COUNT)]
        assert (damage, reader.torn_bytes, reader.index.frames, reader.last_number()) == ([], 0, COUNT, COUNT)
        assert (reader.index.first_at, reader.index.latest_at) == (AT, AT + (COUNT - 1) * SECOND)


class CountingFile(io.BytesIO):
    """File that counts the bytes that are read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.count += len(found)
        return found


def test_damage_between_all_frames_is_read_in_small_parts() -> None:
    header = RecordingHeader(id=bytes(16), created_at=AT)
    frames = [frame_of(header, number, AT + number * SECOND, compress(b"x")) for number in range(1, 20_001)]
    file = CountingFile(pack_header(header) + b"?".join(frames))
    reader = RecordingReader(file)
    assert reader.index.frames == len(frames)
    assert file.count < 100 * len(file.getvalue())


def test_document_of_a_frame_is_the_snapshot(tmp_path: Path) -> None:
    snapshot = held_snapshot()
    reader, (frame,), _ = read(write_recording(tmp_path / "r", [encode_snapshot(snapshot)]))
    assert reader.snapshot(frame) == snapshot


@settings(max_examples=examples(40, 1000))
@given(data=st.data())
def test_cut_file_has_each_frame_before_the_cut(unindexed: bytes, data: st.DataObject) -> None:
    _, frames, _ = read(unindexed)
    cut = data.draw(st.integers(HEADER_BYTES, len(unindexed)))
    ends = [one.offset for one in frames[1:]] + [len(unindexed)]
    whole = [end for end in ends if end <= cut]
    reader, kept, damage = read(unindexed[:cut])
    assert [one.number for one in kept] == list(range(1, len(whole) + 1))
    assert reader.torn_bytes == cut - max(whole, default=HEADER_BYTES)
    assert damage == []


@settings(max_examples=examples(80, 2000))
@given(data=st.data())
def test_damage_costs_only_the_frames_that_it_hits(indexed: bytes, data: st.DataObject) -> None:
    content = bytearray(indexed)
    hit = data.draw(st.lists(st.integers(HEADER_BYTES, len(content) - 1), min_size=1, max_size=5, unique=True))
    for at in hit:
        content[at] ^= data.draw(st.integers(1, 255))
    _, before, _ = read(indexed)
    ends = [one.offset for one in before[1:]] + [RecordingReader(io.BytesIO(indexed)).end]
    intact = {
        one.number for one, end in zip(before, ends, strict=True) if not any(one.offset <= at < end for at in hit)
    }
    reader, frames, damage = read(bytes(content))
    assert {one.number for one in frames} == intact
    assert documents(reader, frames) == {
        number: document for number, document in WHOLE.items() if {number, key_of(number)} <= intact
    }
    covered = [(one.offset, one.end) for one in damage]
    assert covered == sorted(covered)
    assert all(one.offset < one.end for one in damage)


@settings(max_examples=examples(80, 3000))
@given(data=st.data())
def test_hostile_bytes_raise_at_most_a_recording_error(indexed: bytes, data: st.DataObject) -> None:
    content = bytearray(indexed)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 200))] = data.draw(st.binary(max_size=64))
    try:
        reader, frames, _ = read(bytes(content))
    except RecordingError:
        return
    assert set(documents(reader, frames).items()) <= set(WHOLE.items())
    assert reader.seek(AT + 20 * SECOND) <= len(content)
    for frame in frames:
        with pytest.raises(RecordingError):
            reader.snapshot(frame)


@settings(max_examples=examples(60, 1000))
@given(steps=st.lists(st.integers(-3, 5), min_size=1, max_size=60), at=st.integers(-10, 200))
def test_seek_finds_the_frame_that_shows_a_time(steps: list[int], at: int) -> None:
    times = [sum(steps[:n]) for n in range(1, len(steps) + 1)]
    with patch.object(index, "MAX_ENTRIES", 4):  # most entries are in the middle of frames with one time
        reader, frames, _ = read(times_recording(times))
    first = max(0, next((place for place, time in enumerate(times) if time > at), len(times)) - 1)
    while first and times[first - 1] == times[first]:
        first -= 1
    assert reader.seek(at) == frames[first].offset
    shown = [one for one in reader.group(frames[first].offset) if isinstance(one, RecordedFrame)]
    same = len(list(takewhile(lambda time: time == times[first], times[first:])))
    assert shown == frames[first : first + same]


def poll_recording(path: Path, names: Iterable[str]) -> tuple[bytes, list[RecordedFrame]]:
    """Return a recording of one poll of machines with these names, and its frames."""
    writer = open_writer(path)
    writer.append_group([(name, encode_snapshot(node_snapshot(name, ()))) for name in names], AT)
    writer.close()
    content = path.read_bytes()
    return content, read(content)[1]


def test_damaged_machine_of_a_poll_is_a_problem(tmp_path: Path) -> None:
    whole, frames = poll_recording(tmp_path / "r", "abcd")
    for place, hit in ((1, 2), (1, 60), (3, 60)):  # a header, and bodies
        content = bytearray(whole)
        content[frames[place].offset + hit] ^= 1
        poll = RecordingReader(io.BytesIO(bytes(content))).poll(HEADER_BYTES)
        assert "".join(one.node.name for one in poll.snapshots) == "abcd".replace("abcd"[place], "")
        assert [one.offset for one in poll.problems] == [frames[place].offset]


def test_poll_beyond_a_limit_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, frames = poll_recording(tmp_path / "r", map(str, range(10)))
    size = len(encode_snapshot(node_snapshot("0", ())))
    for limit, most in (("MAX_GROUP", 6), ("MAX_GROUP_BYTES", 6 * size)):
        with monkeypatch.context() as changed:
            changed.setattr(reader_module, limit, most)
            poll = RecordingReader(io.BytesIO(content)).poll(HEADER_BYTES)
        assert [one.node.name for one in poll.snapshots] == list("012345")
        assert [one.offset for one in poll.problems] == [frames[6].offset]


def test_key_frames_beyond_the_memory_limit_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_KEY_BYTES", 2 * 1000)
    writer, sent = open_writer(tmp_path / "r"), []
    for number in range(5):
        group = [(name, f"{name} {number} ".encode() * 100) for name in "abc"]
        writer.append_group(group, AT + number)
        sent += [document for _, document in group]
    writer.close()
    reader, frames, _ = read((tmp_path / "r").read_bytes())
    assert [reader.document(one) for one in frames] == sent


def test_index_is_bounded_and_still_finds_places() -> None:
    index = FrameIndex()
    for number in range(1, 30_001):
        index.add(FrameHeader(number, number * 10, 0, 1, 0), number * 100)
        if number in (MAX_ENTRIES, MAX_ENTRIES + 1, 20_000):
            index = FrameIndex(index.stored())  # a continued recording
    entries = index.stored().entries
    assert len(entries) <= MAX_ENTRIES
    assert (entries[0].number, index.frames, index.latest_at) == (1, 30_000, 300_000)
    for at in (0, 10, 15, 123_456, 300_000, 10**9):
        entry = index.before(at)
        assert entry is not None
        assert entry.number == 1 or entry.latest <= at
        assert at // 10 - entry.number < 16 or at > 300_000


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"", 0),
        (b"\x7fELF", 0),
        (pack_header(RecordingHeader(b"i" * 16, 0))[:20], 20),
        (b"GFREC\x00\r\n" + struct.pack("<HH", 9, 0) + bytes(28), 8),
        (pack_header(RecordingHeader(b"i" * 16, 0))[:-1] + b"?", 0),
        (b"GFREC\x00\n" + bytes(40), 0),
    ],
)
def test_refused_file_names_the_position(content: bytes, offset: int) -> None:
    with pytest.raises(RecordingError) as caught:
        RecordingReader(io.BytesIO(content))
    assert caught.value.offset == offset


def test_frame_of_another_recording_is_damage(unindexed: bytes, indexed: bytes) -> None:
    _, frames, _ = read(indexed)
    foreign = indexed[frames[5].offset : frames[6].offset]
    place = read(unindexed)[1][10].offset
    _, found, damage = read(unindexed[:place] + foreign + unindexed[place:])
    assert [one.number for one in found] == list(WHOLE)
    assert damage == [DamagedBytes(place, place + len(foreign))]


@pytest.mark.parametrize("body", [compress(bytes(MAX_BYTES + 1)), compress(b"{}"), b"no zstd", b""])
def test_body_that_is_no_snapshot_names_its_position(body: bytes) -> None:
    header = RecordingHeader(b"i" * 16, AT)
    content = pack_header(header) + frame_of(header, 1, AT, body)
    reader, (frame,), _ = read(content)
    with pytest.raises(RecordingError) as caught:
        reader.snapshot(frame)
    assert caught.value.offset == HEADER_BYTES


@pytest.mark.parametrize("key", [1, HEADER_BYTES - 1, HEADER_BYTES + 1, 2**63])
def test_wrong_place_of_a_key_frame_is_refused(key: int) -> None:
    header = RecordingHeader(b"i" * 16, AT)
    first = frame_of(header, 1, AT, compress(b"{}"))
    body = keyed_compressor(b"{}").compress(b"{}")
    for place in (key, HEADER_BYTES + len(first)):  # the second is the frame itself
        content = pack_header(header) + first + frame_of(header, 2, AT, body, place)
        reader, frames, _ = read(content)
        with pytest.raises(RecordingError) as caught:
            reader.document(frames[1])
        assert caught.value.offset == HEADER_BYTES + len(first)
