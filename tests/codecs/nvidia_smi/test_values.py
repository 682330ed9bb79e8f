"""Versions, local times and placeholders as printed."""

import datetime as dt

import pytest

from gpufleet.codecs.nvidia_smi.capture import collected_at
from gpufleet.codecs.nvidia_smi.values import parse_time, version_of
from tests.fakes.nvidia_smi.standin import DATA


@pytest.mark.parametrize(
    ("text", "version", "note"),
    [
        ("580.105.08", "580.105.08", ""),
        ("13.3 [Deprecated; use CUDA UMD Version]", "13.3", "Deprecated; use CUDA UMD Version"),
        (" 610.62 [a [b] c] ", "610.62", "a [b] c"),
        ("ERR!", "ERR!", ""),
        ("13.3 (beta)", "13.3 (beta)", ""),
        ("", "", ""),
    ],
)
def test_version_without_its_note(text: str, version: str, note: str) -> None:
    assert version_of(text) == (version, note)


@pytest.mark.parametrize("text", ["Wed Jun 24 10:17:41 2026", "2026/06/24 10:17:41.000"])
def test_printed_time_has_no_zone(text: str) -> None:
    assert parse_time(text) == dt.datetime(2026, 6, 24, 10, 17, 41)  # noqa: DTZ001


def test_head_of_a_capture_has_its_time() -> None:
    content = (DATA / "capture-h200__590.48.01.txt").read_bytes()
    assert collected_at(content) == dt.datetime(2026, 7, 3, 22, 10, 45, tzinfo=dt.UTC)
    assert collected_at((DATA / "xml-h100.xml").read_bytes()) is None


def test_time_below_the_head_is_not_the_time_of_the_capture() -> None:
    content = (DATA / "capture-h200__590.48.01.txt").read_bytes()
    line = b"collected_at:   2026-07-03T22:10:45Z"
    assert collected_at(content.replace(line, b"") + b"\n" + line + b"\n") is None
