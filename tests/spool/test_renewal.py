"""Spool renewal: the backlog moves to a new epoch, also after an interruption at any step."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpufleet.model.errors import SpoolError
from gpufleet.spool import Spool, recovery, renew


def open_spool(folder: Path) -> Spool:
    return Spool.open(folder, max_bytes=1 << 20, segment_bytes=2048)


def filled(folder: Path) -> Spool:
    spool = open_spool(folder)
    for number in range(1, 41):
        spool.append(b"%d " % number + bytes(150))
    spool.sync()
    spool.acknowledge([*range(1, 8), 9, 40])
    return spool


def renumber(body: bytes, epoch: str, seq: int) -> bytes | None:
    return body.split(b" ")[0] + f" {epoch} {seq}".encode()


def queued(spool: Spool) -> list[tuple[int, bytes]]:
    return [(one.seq, one.body) for one in spool.read(max_records=1000, max_bytes=1 << 20)]


KEPT = [8, *range(10, 40)]


def expected(epoch: str) -> list[tuple[int, bytes]]:
    return [(seq, f"{number} {epoch} {seq}".encode()) for seq, number in enumerate(KEPT, 1)]


def test_backlog_keeps_its_order_under_a_new_epoch(tmp_path: Path) -> None:
    spool = filled(tmp_path)
    before = spool.epoch
    renew(spool, renumber)
    spool.close()
    spool = open_spool(tmp_path)
    assert spool.epoch != before
    assert queued(spool) == expected(spool.epoch)
    assert spool.next_seq == len(KEPT) + 1
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".seg"} == {"durable", "epoch", "lock"}
    assert spool.recovery.lost_records == 0
    spool.acknowledge([1, 2])
    spool.close()
    spool = open_spool(tmp_path)
    assert queued(spool) == expected(spool.epoch)[2:]
    spool.close()


def test_backlog_keeps_its_times_under_a_new_epoch(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for at in (30, 10, 20):
        spool.append(b"%d" % at, at)
    spool.sync()
    spool.acknowledge([1])
    renew(spool, renumber)
    spool.close()
    spool = open_spool(tmp_path)
    assert [one.at for one in spool.read(max_records=9, max_bytes=1 << 20)] == [10, 20]
    spool.close()


def test_batch_that_cannot_be_renumbered_is_skipped(tmp_path: Path) -> None:
    spool = filled(tmp_path)
    renew(spool, lambda body, epoch, seq: None if body.startswith(b"2") else renumber(body, epoch, seq))
    spool.close()
    spool = open_spool(tmp_path)
    assert [int(body.split()[0]) for _, body in queued(spool)] == [n for n in KEPT if not str(n).startswith("2")]
    assert [seq for seq, _ in queued(spool)] == list(range(1, len(queued(spool)) + 1))
    spool.close()


def test_empty_spool_gets_a_new_epoch(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    before = spool.epoch
    renew(spool, renumber)
    spool.close()
    spool = open_spool(tmp_path)
    assert spool.epoch != before
    assert (spool.next_seq, queued(spool)) == (1, [])
    spool.close()


class _StopError(Exception):
    pass


@contextmanager
def stopping_after(steps: int) -> Iterator[None]:
    """Stop the process after `steps` changes of the folder by `adopt_successor`."""
    left = steps
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Path, "unlink"), (Path, "replace"), (shutil, "rmtree")):
            original = getattr(owner, name)

            def step(*arguments: object, _original: object = original, **more: object) -> object:
                nonlocal left
                if left == 0:
                    raise _StopError
                left -= 1
                return _original(*arguments, **more)  # type: ignore[operator]

            patch.setattr(owner, name, step)
        yield


def test_interrupted_takeover_is_completed_on_opening(tmp_path: Path) -> None:
    first = filled(tmp_path / "prepared")
    renew(first, renumber)
    first.close()
    interrupted = 0
    for steps in range(100):
        folder = tmp_path / f"after-{steps}"
        shutil.copytree(tmp_path / "prepared", folder)
        try:
            with stopping_after(steps):
                recovery.adopt_successor(folder)
        except _StopError:
            interrupted += 1
        spool = open_spool(folder)
        assert queued(spool) == expected(spool.epoch)
        assert not (folder / "next").exists()
        spool.close()
        if interrupted == steps:
            break
    assert interrupted > 10


def test_interrupted_renewal_changes_nothing(tmp_path: Path) -> None:
    spool = filled(tmp_path)
    before, kept = spool.epoch, queued(spool)

    def die(body: bytes, epoch: str, seq: int) -> bytes:
        if seq == 20:
            raise _StopError
        return body

    with pytest.raises(_StopError):
        renew(spool, die)
    assert (spool.epoch, queued(spool)) == (before, kept)
    spool.close()
    spool = open_spool(tmp_path)
    assert (spool.epoch, queued(spool)) == (before, kept)
    assert not (tmp_path / "next").exists()
    spool.close()


def test_disk_error_during_renewal_changes_nothing(tmp_path: Path) -> None:
    spool = filled(tmp_path)
    kept = queued(spool)
    (tmp_path / "next").write_text("a file in the way")
    with pytest.raises(SpoolError, match="Not a directory"):
        renew(spool, renumber)
    assert queued(spool) == kept
    spool.append(b"still open")
    spool.close()
