"""Dead letters: a bounded folder of bodies."""

import errno
from pathlib import Path

import pytest

from gpufleet.hub.notify.dead_letters import MAX_BODY_BYTES, DeadLetters


async def test_oldest_files_are_deleted(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "dead", max_files=3)
    written = [await letters.keep("webhook/w", f"{number}", b"{}") for number in range(5)]
    assert {str(one) for one in (tmp_path / "dead").iterdir()} == set(written[2:])


async def test_size_of_a_file_and_of_all_files_is_bounded(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "dead", max_bytes=100)
    written = [await letters.keep("webhook/w", f"{number}", b"x" * 40) for number in range(5)]
    assert {str(one) for one in (tmp_path / "dead").iterdir()} == set(written[3:])
    where = await DeadLetters(tmp_path / "dead").keep("webhook/w", "long", b"x" * (MAX_BODY_BYTES + 1))
    assert [one.stat().st_size for one in (tmp_path / "dead").iterdir() if str(one) == where] == [MAX_BODY_BYTES]


async def test_names_are_safe_bounded_and_distinct(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path / "dead")
    names = ["a/b\n", "a-b-", "../../a", "\0", "\udc80", "x" * 5000, "x" * 5001]
    written = [Path(await letters.keep("webhook/../w", name, b"{}")) for name in names]
    assert {one.parent for one in written} == {tmp_path / "dead"}
    assert len(set(written)) == len(names)
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in written)
    assert await letters.keep("webhook/../w", names[0], b"[]") == str(written[0])
    assert written[0].read_bytes() == b"[]"


async def test_full_disk_is_reported_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Path, body: bytes) -> int:
        with file.open("wb") as part:
            part.write(body[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    assert await DeadLetters(tmp_path / "dead").keep("webhook/w", "a", b"{}") == "nothing (No space left on device)"
    assert list((tmp_path / "dead").iterdir()) == []
