"""Writing of recordings: continuation, locks, rotation, and disks that reject writes."""

import random
import resource
from collections import Counter
from pathlib import Path

import pytest

from gpufleet.model.errors import RecordingError
from gpufleet.recording.writer import KEY_INTERVAL, MIN_ROTATE_BYTES, RecordingFileError, Rotation
from tests.support.recordings import AT, damage_of, documents_of, frames_of, open_writer, write_recording


def incompressible(number: int) -> bytes:
    return random.Random(number).randbytes(4000)


@pytest.mark.parametrize(("index", "torn"), [(True, 0), (False, 0), (False, 1), (False, 20)])
def test_existing_recording_is_continued(tmp_path: Path, index: bool, torn: int) -> None:
    path = tmp_path / "r"
    content = write_recording(path, [b"a", b"b", b"c"], index=index)
    path.write_bytes(content[: len(content) - torn])
    kept = [b"a", b"b"] if torn else [b"a", b"b", b"c"]
    writer = open_writer(path)
    assert (writer.torn_bytes > 0) is (torn > 0)
    writer.append(b"new", AT)
    writer.close()
    assert documents_of(path) == [*kept, b"new"]
    assert [one.number for one in frames_of(path)] == list(range(1, len(kept) + 2))
    assert damage_of(path) == []


def test_damage_in_the_middle_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r"
    content = bytearray(write_recording(path, [b"a", b"b", b"c"]))
    content[frames_of(path)[1].offset + 2] ^= 1
    path.write_bytes(content)
    writer = open_writer(path)
    writer.append(b"d", AT)
    writer.close()
    assert documents_of(path) == [b"a", b"c", b"d"]
    assert len(damage_of(path)) == 1


@pytest.mark.parametrize("content", [b"", b"GF", b"GFREC\x00\r\n\x01\x00"])
def test_file_without_a_whole_header_begins_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    writer = open_writer(path)
    writer.append(b"a", AT)
    writer.close()
    assert documents_of(path) == [b"a"]


def test_other_file_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"important")
    with pytest.raises(RecordingError):
        open_writer(path)
    assert path.read_bytes() == b"important"


def test_second_writer_is_refused(tmp_path: Path) -> None:
    first = open_writer(tmp_path / "r")
    with pytest.raises(RecordingFileError):
        open_writer(tmp_path / "r")
    first.close()
    open_writer(tmp_path / "r").close()


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingFileError):
        open_writer(tmp_path / "missing" / "r")


def test_rotation_bounds_size_and_number_of_files(tmp_path: Path) -> None:
    path = tmp_path / "r"
    writer = open_writer(path, rotation=Rotation(MIN_ROTATE_BYTES, 2))
    sent = [incompressible(number) for number in range(300)]
    for number, document in enumerate(sent):
        writer.append(document, AT + number)
    writer.close()
    files = [path.with_name("r.2"), path.with_name("r.1"), path]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= MIN_ROTATE_BYTES + 1024 for file in files)  # the index comes on top
    kept = [document for file in files for document in documents_of(file)]
    assert kept == sent[-len(kept) :]
    assert writer.frames == 300


def test_rejected_write_leaves_the_frames_before_it(tmp_path: Path) -> None:
    path = tmp_path / "r"
    writer = open_writer(path)
    writer.append(incompressible(1), AT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(RecordingFileError):
            writer.append(incompressible(2), AT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert documents_of(path) == [incompressible(1)]
    writer.append(incompressible(3), AT)
    writer.close()
    assert documents_of(path) == [incompressible(1), incompressible(3)]
    assert damage_of(path) == []


def test_similar_documents_share_a_key_frame(tmp_path: Path) -> None:
    path, base = tmp_path / "r", random.Random(1).randbytes(50_000)
    sent = [base + number.to_bytes(4, "big") for number in range(2 * KEY_INTERVAL + 5)]
    write_recording(path, sent)
    frames = frames_of(path)
    keys = [one for one in frames if not one.key]
    assert [one.number for one in keys] == [1, KEY_INTERVAL + 1, 2 * KEY_INTERVAL + 1]
    assert {one.key for one in frames} == {0, *(one.offset for one in keys)}
    assert documents_of(path) == sent
    assert path.stat().st_size < 4 * len(base)


def test_continued_recording_begins_with_a_key_frame(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_recording(path, [b"a", b"b"])
    write_recording(path, [b"c", b"d"])
    assert [bool(one.key) for one in frames_of(path)] == [False, True, False, True]
    assert documents_of(path) == [b"a", b"b", b"c", b"d"]


def test_frames_of_a_poll_share_time_and_file(tmp_path: Path) -> None:
    path = tmp_path / "r"
    writer = open_writer(path, rotation=Rotation(MIN_ROTATE_BYTES, 9))
    sent = [[(name, incompressible(7 * number + ord(name))) for name in "abcdefg"] for number in range(6)]
    for number, group in enumerate(sent):
        writer.append_group(group, AT + number)
    writer.close()
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [file.name for file in files] == ["r.2", "r.1", "r"]
    for file in files:
        assert set(Counter(one.at for one in frames_of(file)).values()) == {7}
    assert [one for file in files for one in documents_of(file)] == [one for group in sent for _, one in group]


def test_each_machine_has_key_frames_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit has room for two machines. The third has a key frame once the first was left out."""
    monkeypatch.setattr("gpufleet.recording.writer.MAX_KEY_BYTES", 2 * 4010)
    writer, groups, left_out = open_writer(tmp_path / "r"), KEY_INTERVAL + 6, 5
    for number in range(groups):
        names = "bc" if number == left_out else "abc"
        writer.append_group([(name, incompressible(ord(name)) + b"%d" % number) for name in names], AT + number)
    writer.close()
    whole: dict[str, list[int]] = {name: [] for name in "abc"}  # groups in which a machine has no dictionary
    keys: dict[int, str] = {}
    for frame, document in zip(frames_of(tmp_path / "r"), documents_of(tmp_path / "r"), strict=True):
        name = next(one for one in "abc" if document.startswith(incompressible(ord(one))))
        if frame.key:
            assert keys[frame.key] == name
        else:
            keys[frame.offset] = name
            whole[name].append(frame.at - AT)
    assert whole == {
        "a": [0, *range(left_out + 1, groups)],
        "b": [0, KEY_INTERVAL],
        "c": [*range(left_out + 1), left_out + KEY_INTERVAL],
    }
