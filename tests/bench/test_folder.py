"""Folder of captures: complete files, digests, and changed or foreign files."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from gpufleet.bench import folder as folders
from gpufleet.bench.document import encode_benchmark
from gpufleet.bench.folder import DIGESTS, CaptureFileError, prepare_folder, read_capture, read_folder, write_capture
from tests.support.benchmarks import document, measured, validate_captures


def test_written_capture_is_read_back(tmp_path: Path) -> None:
    one = document(measured(values=(1.0,)), name="Host 1 / ../x")
    path = write_capture(tmp_path, one)
    assert path.name == "Host-1-..-x-20260501T120000Z.json"
    assert path.read_bytes() == encode_benchmark(one)
    assert read_capture(path).document.measurements == one.measurements


def test_second_capture_of_the_same_second_gets_its_own_name(tmp_path: Path) -> None:
    paths = {write_capture(tmp_path, document(name=".")) for _ in range(3)}
    assert {path.name for path in paths} == {
        "capture-20260501T120000Z.json", "capture-20260501T120000Z-2.json", "capture-20260501T120000Z-3.json",
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([DIGESTS, *(path.name for path in paths)])


def test_digests_are_those_of_sha256sum(tmp_path: Path) -> None:
    for _ in range(2):
        write_capture(tmp_path, document())
    done = subprocess.run(["sha256sum", "--check", "--strict", DIGESTS], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0


def test_written_capture_outside_the_schema_is_found(tmp_path: Path) -> None:
    # Every test has this check at its end, see tests/conftest.py.
    for name in ("a", "b"):
        prepare_folder(tmp_path / name)
    assert validate_captures(write_capture(tmp_path / "a", document()).parent) == 1
    path = write_capture(tmp_path / "b", document(labels={"Upper": "x"}))
    with pytest.raises(jsonschema.ValidationError):
        validate_captures(path.parent)
    path.unlink()


def test_changed_capture_is_refused(tmp_path: Path) -> None:
    path = write_capture(tmp_path, document(measured(values=(1.0,))))
    path.write_bytes(path.read_bytes().replace(b"node-1", b"node-2"))
    with pytest.raises(CaptureFileError):
        read_capture(path)
    captures, problems = read_folder(tmp_path)
    assert (captures, len(problems)) == ([], 1)


def test_unusable_files_are_named_and_others_are_read(tmp_path: Path) -> None:
    good = write_capture(tmp_path, document())
    (tmp_path / "forged.json").write_text('{"schema": "gpufleet.benchmark/1", "facts": [' + "[" * 100_000)
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "unlisted.json").write_bytes(encode_benchmark(document()))
    (tmp_path / "notes.txt").write_text("no capture")
    captures, problems = read_folder(tmp_path)
    assert [one.file for one in captures] == [good.name, "unlisted.json"]
    named = [Path(problem.partition(":")[0]).name for problem in problems]
    assert named == ["folder.json", "forged.json", "other.json", "pipe.json", "unlisted.json"]


def test_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CaptureFileError):
        read_capture(path)


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_digest_is_not_written_through_a_link(tmp_path: Path, plant: Callable[[Path, Path], None]) -> None:
    other = tmp_path / "other"
    other.write_text("root:x:0:0\n")
    out = tmp_path / "out"
    out.mkdir()
    plant(out / DIGESTS, other)
    with pytest.raises(CaptureFileError):
        write_capture(out, document())
    assert other.read_text() == "root:x:0:0\n"
    assert [path.name for path in out.iterdir()] == [DIGESTS]


@pytest.mark.parametrize("name", [DIGESTS, "host-20260501T120000Z.json"])
def test_pipe_in_the_folder_does_not_block_a_capture(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    if name == DIGESTS:
        with pytest.raises(CaptureFileError):
            write_capture(tmp_path, document())
    else:
        assert write_capture(tmp_path, document()).name == "host-20260501T120000Z-2.json"


def test_capture_is_not_written_through_a_link(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    (out / "host-20260501T120000Z.json").symlink_to(other)
    assert write_capture(out, document()).name == "host-20260501T120000Z-2.json"
    assert not other.exists()


def test_digests_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    path = write_capture(tmp_path, document())
    with (tmp_path / DIGESTS).open("ab") as file:
        file.truncate(2 << 20)
    with pytest.raises(CaptureFileError):
        read_capture(path)
    with pytest.raises(CaptureFileError):
        read_folder(tmp_path)


def test_folder_with_too_many_captures_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_FILES", 1)
    for _ in range(2):
        write_capture(tmp_path, document())
    with pytest.raises(CaptureFileError):
        read_folder(tmp_path)


def test_failed_write_leaves_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CaptureFileError):
        write_capture(tmp_path, document())
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureFileError):
        prepare_folder(tmp_path / "file" / "captures")
