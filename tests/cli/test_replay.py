"""`gpufleet replay` and `gpufleet decode` of recordings, as processes."""

import json
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.machine import Machine
from tests.support.command import gpufleet
from tests.support.recordings import frames_of, write_recording
from tests.support.snapshots import held_snapshot

HOSTILE = "evil\x1b[2J\x07\x9b31m\u202ename"


def document(number: int, name: str = "node") -> bytes:
    """Return a snapshot document whose version is a number."""
    return encode_snapshot(
        msgspec.structs.replace(held_snapshot(), version=str(number), node=Machine(name=name, machine_id="a" * 32))
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Return a recording of ten frames."""
    path = tmp_path / "r"
    write_recording(path, [document(number) for number in range(10)])
    return path


def versions(path: Path, *options: str) -> list[str]:
    done = gpufleet("replay", str(path), "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line)["version"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "0123456789"),
        (["--frames", "2"], "01"),
        (["--at", "2026-01-01T00:00:07.5Z"], "789"),
        (["--at", "2s", "--frames", "1"], "7"),
        (["--at", "2020-01-01T00:00:00Z", "--frames", "1"], "0"),
        (["--at", "2030-01-01T00:00:00Z"], "9"),
        (["--speed", "1000", "--frames", "3"], "012"),
    ],
)
def test_frames_from_a_time_on_as_json(recording: Path, options: list[str], expected: str) -> None:
    assert versions(recording, *options) == list(expected)


def test_table_is_that_of_the_snapshot(recording: Path) -> None:
    done = gpufleet("replay", str(recording), "--frames", "1")
    assert done.returncode == 0
    assert "NVIDIA H200" in done.stdout
    assert "\x1b" not in done.stdout


def test_damaged_frame_is_skipped_with_its_position(recording: Path) -> None:
    place = frames_of(recording)[4].offset
    content = bytearray(recording.read_bytes())
    content[place + 45] ^= 1
    recording.write_bytes(content)
    done = gpufleet("replay", str(recording), "--json")
    assert done.returncode == 1
    assert [json.loads(line)["version"] for line in done.stdout.splitlines()] == list("012356789")
    assert f"bytes {place} to " in done.stderr


def test_frame_that_is_no_snapshot_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_recording(path, [document(0), b'{"schema":"gpufleet.snapshot/9"}', document(2)])
    done = gpufleet("replay", str(path), "--json")
    assert done.returncode == 1
    assert [json.loads(line)["version"] for line in done.stdout.splitlines()] == ["0", "2"]


def test_incomplete_frame_at_the_end_is_not_an_error(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "torn"
    path.write_bytes(write_recording(tmp_path / "s", [document(0), document(1)], index=False)[:-1])
    done = gpufleet("replay", str(path), "--json")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", b"GFREC\x00\r\n"])
def test_file_that_is_no_recording_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    done = gpufleet("replay", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "byte " in done.stderr


@pytest.mark.parametrize("options", [["--speed", "0"], ["--speed", "-1"], ["--at", "soon"], ["--frames", "0"]])
def test_wrong_option_is_a_usage_error(recording: Path, options: list[str]) -> None:
    assert gpufleet("replay", str(recording), *options).returncode == 2


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    assert gpufleet("replay", str(tmp_path / "missing")).returncode == 1


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_hostile_name_does_not_control_the_terminal(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "r"
    write_recording(path, [document(0, HOSTILE)])
    done = gpufleet("replay", str(path), *options)
    assert done.returncode == 0
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(done.stdout)


def test_decode_shows_the_last_frame(recording: Path) -> None:
    done = gpufleet("decode", str(recording), "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["version"] == "9"
