"""Whole machines against golden files.

`GPUFLEET_UPDATE_GOLDEN=1` writes the files again; review the difference.
"""

import os
from pathlib import Path

import pytest

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.catalogue.metric import Lane, ValueType
from gpufleet.model.reading import Round, Value
from gpufleet.readers.host import HostReader
from tests.readers.host.machines import MACHINES, FixedClock, build

GOLDEN = Path(__file__).parent / "golden"
VOLATILE = ("host_filesystem_size", "host_filesystem_free", "host_filesystem_available", "host_filesystem_files")
"""Metrics that depend on the filesystem of the test machine."""


def _shown(value: Value | Absent) -> str:
    return f"absent {value.reason}: {value.detail}" if isinstance(value, Absent) else repr(value)


def _render(lane: Lane, got: Round) -> list[str]:
    lines = [f"## {lane}"]
    (sample,) = got.samples
    lines += [f"{metric} {_shown(value)}" for metric, value in sample.values.items()]
    for item in sample.dims:
        labels = ", ".join(
            f"{name}={text!r}" for name, text in zip(CATALOGUE[item.metric].dims, item.labels, strict=True)
        )
        measured = "<figure>" if item.metric.startswith(VOLATILE) else _shown(item.value)
        lines.append(f"{item.metric}{{{labels}}} {measured}")
    lines += [f"inventory {function}" for function in got.inventory or ()]
    lines += [f"machine {got.machine}"] if got.machine else []
    lines += [f"error {error}" for error in got.errors]
    return lines


@pytest.mark.parametrize("name", MACHINES)
async def test_machine_matches_its_golden_file(name: str, tmp_path: Path) -> None:
    reader = HostReader(LocalFiles(build(name, tmp_path)), FixedClock())
    lines = [line for lane in reader.lanes for line in _render(lane, await reader.read(lane))]
    golden = GOLDEN / f"{name}.txt"
    text = "\n".join(lines) + "\n"
    if os.environ.get("GPUFLEET_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MACHINES)
async def test_every_value_fits_its_row_of_the_catalogue(name: str, tmp_path: Path) -> None:
    reader = HostReader(LocalFiles(build(name, tmp_path)), FixedClock())
    types = {ValueType.INT: int, ValueType.FLOAT: float, ValueType.ENUM: str, ValueType.TEXT: str}
    for lane in reader.lanes:
        (sample,) = (await reader.read(lane)).samples
        readings = [(metric, value) for metric, value in sample.values.items()]
        readings += [(item.metric, item.value) for item in sample.dims]
        for metric, value in readings:
            row = CATALOGUE[metric]
            assert row.lane is lane, metric
            if isinstance(value, Absent):
                continue
            assert type(value) is types[row.type], (metric, value)
            assert not row.states or value in row.states, (metric, value)
            assert row.low is None or float(value) >= row.low, (metric, value)
            assert row.high is None or float(value) <= row.high, (metric, value)
        identities = [(item.metric, item.labels) for item in sample.dims]
        assert len(identities) == len(set(identities)), "labels must be unique"


@pytest.mark.parametrize("name", MACHINES)
async def test_each_lane_is_complete(name: str, tmp_path: Path) -> None:
    reader = HostReader(LocalFiles(build(name, tmp_path)), FixedClock())
    for lane in reader.lanes:
        (sample,) = (await reader.read(lane)).samples
        expected = {row.name for row in CATALOGUE.values() if 200 <= row.id < 300 and row.lane is lane and not row.dims}
        assert set(sample.values) == expected
