"""Archive of posted captures: what is stored, refused, and found after a restart."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.bench.document import decode_benchmark, encode_benchmark
from gpufleet.hub import captures
from gpufleet.hub.captures import ArchiveFullError, CaptureArchive, parse_header
from gpufleet.model.api.benchmarks import MAX_CAPTURE_BYTES
from gpufleet.model.errors import NotFoundError, WireError, WireLimitError, WireVersionError
from tests.fakes.clock import FakeClock
from tests.support.benchmarks import document, measured

CONTENT = encode_benchmark(document(measured(values=(1.0, 2.0)), labels={"hugepages": "on"}))


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(CONTENT), **fields})


def archive(folder: Path) -> CaptureArchive:
    return CaptureArchive(folder / "benchmarks", FakeClock())


def test_posted_document_is_found_after_a_restart(tmp_path: Path) -> None:
    record, is_new = archive(tmp_path).add("local", CONTENT)
    assert (is_new, record.id, record.bytes) == (True, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    assert (record.cluster, record.name, record.labels) == ("local", "host", {"hugepages": "on"})
    restarted = archive(tmp_path)
    assert restarted.records(None) == restarted.records("local") == (record,)
    assert restarted.records("other") == ()
    assert restarted.content(record.id) == CONTENT
    assert decode_benchmark(restarted.content(record.id)).name == "host"
    assert restarted.add("local", CONTENT) == (record, False)


@pytest.mark.parametrize("id", ["x", "../hub", "", "0" * 64])
def test_unknown_capture_is_not_found(tmp_path: Path, id: str) -> None:  # noqa: A002 - the term of the domain
    (tmp_path / "hub.json").write_text("{}")
    with pytest.raises(NotFoundError):
        archive(tmp_path).content(id)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", WireError),
        (b"{", WireError),
        (b"[" * 100_000, WireError),
        (b"\xff", WireError),
        (b"[]", WireError),
        (b"{}", WireError),
        (changed(schema="gpufleet.benchmark/2"), WireVersionError),
        (changed(name=""), WireError),
        (changed(name="x" * 129), WireError),
        (changed(started_at="2026-01-01T00:00:00"), WireError),
        (changed(started_at="0001-01-01T00:00:00+14:00"), WireError),
        (changed(machine={"name": "x", "source": "tenant"}), WireError),
        (changed(labels={"Upper": "x"}), WireError),
        (changed(labels={f"a{n}": "x" for n in range(33)}), WireError),
        (changed(labels={"a": 7}), WireError),
        (CONTENT + b" " * MAX_CAPTURE_BYTES, WireLimitError),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, error: type[WireError]) -> None:
    with pytest.raises(error):
        parse_header(content)
    with pytest.raises(error):
        archive(tmp_path).add("local", content)
    assert not (tmp_path / "benchmarks").exists()


@pytest.mark.parametrize(("name", "limit"), [("MAX_CAPTURES", 2), ("MAX_BYTES", 2 * len(CONTENT) + 20)])
def test_captures_of_a_cluster_are_bounded(
    tmp_path: Path, name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, name, limit)
    filled = archive(tmp_path)
    for number in range(2):
        filled.add("local", CONTENT + b" " * number)
    with pytest.raises(ArchiveFullError):
        filled.add("local", CONTENT + b" " * 5)
    assert filled.add("other", CONTENT + b" " * 6)[1]


def test_file_without_a_record_is_not_listed(tmp_path: Path) -> None:
    record, _ = archive(tmp_path).add("local", CONTENT)
    folder = tmp_path / "benchmarks"
    (folder / f"{record.id}.record").rename(folder / f"{'0' * 64}.record")
    (folder / "x.record").write_text("{}")
    assert archive(tmp_path).records(None) == ()
    (folder / f"{record.id}.json").unlink()
    assert archive(tmp_path).add("local", CONTENT)[1]


def test_removed_document_is_not_found(tmp_path: Path) -> None:
    stored = archive(tmp_path)
    record, _ = stored.add("local", CONTENT)
    (tmp_path / "benchmarks" / f"{record.id}.json").unlink()
    with pytest.raises(NotFoundError):
        stored.content(record.id)
