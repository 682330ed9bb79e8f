"""Inspection of a spool: it reports what opening would find, and changes nothing."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.spool import Spool
from gpufleet.spool.recovery import inspect_spool


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bodies=st.lists(st.binary(max_size=120), max_size=30),
    gone=st.sets(st.integers(1, 30)),
    torn=st.integers(0, 40),
)
def test_inspection_reports_what_opening_finds(tmp_path: Path, bodies: list[bytes], gone: set[int], torn: int) -> None:
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    spool = Spool.open(folder, max_bytes=1 << 20, segment_bytes=400)
    for body in bodies:
        spool.append(body, len(body))
    spool.sync()
    spool.acknowledge([seq for seq in gone if seq <= len(bodies)])
    while_open = inspect_spool(folder)
    assert (while_open.records, while_open.size) == (spool.depth.records, spool.depth.bytes)
    spool.close()
    newest = max(folder.glob("*.seg"), default=None)
    if newest is not None and torn:
        with newest.open("ab") as file:
            file.write(b"GFrc" + bytes(torn))
    before = contents(folder)
    found = inspect_spool(folder)
    assert contents(folder) == before
    spool = Spool.open(folder, max_bytes=1 << 20, segment_bytes=400)
    queued = spool.read(max_records=1000, max_bytes=1 << 20)
    spool.close()
    assert found.records == len(queued)
    assert found.size == sum(len(one.body) for one in queued)
    assert found.oldest_at == (len(queued[0].body) if queued else None)


def test_missing_folder_is_an_empty_spool(tmp_path: Path) -> None:
    found = inspect_spool(tmp_path / "none")
    assert (found.records, found.size, found.oldest_at) == (0, 0, None)
    assert not (tmp_path / "none").exists()
