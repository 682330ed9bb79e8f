"""Files of saved state: unreadable content and unwritable folders."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.agent.collect.saved import SavedFile


class Record(msgspec.Struct):
    """A saved record."""

    boot: str
    counts: dict[str, int] = {}


def saved(path: Path) -> SavedFile[Record]:
    return SavedFile(path, Record, loss="counts restart")


def test_saved_record_is_loaded(tmp_path: Path) -> None:
    saved(tmp_path / "agent" / "record.json").save(Record("a", {"x": 1}))

    assert saved(tmp_path / "agent" / "record.json").load() == Record("a", {"x": 1})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot": 7}', b"\xff" * 10, b'{"boot":"b","counts":[]}'])
def test_invalid_file_is_ignored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(content)

    assert saved(tmp_path / "record.json").load() is None


def test_unwritable_file_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "agent").write_text("not a folder")
    file = saved(tmp_path / "agent" / "record.json")
    for _ in range(2):
        file.save(Record("a"))

    assert len(caplog.records) == 1
