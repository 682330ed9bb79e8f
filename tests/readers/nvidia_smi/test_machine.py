"""Versions of driver and CUDA, as drivers from 610 on print them."""

import logging

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round, Value
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.nvidia_smi.machine import cuda_of, driver_of, notes_of
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi

NOTE = "Deprecated; will be removed in CUDA 14.0."
DRIVER, CUDA = "<driver_version>580.105.08</driver_version>", "<cuda_version>13.0</cuda_version>"
NEW = "<kmd_version>580.105.08</kmd_version><cuda_umd_version>13.0</cuda_umd_version>"


def versions(done: Round) -> list[Value | object]:
    (own,) = [sample for sample in done.samples if sample.view is None]
    return [own.values["nvidia_driver_version"], own.values["nvidia_cuda_version"]]


@pytest.mark.parametrize("old_names", [True, False])
async def test_versions_of_a_newer_driver(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, caplog: pytest.LogCaptureFixture, old_names: bool
) -> None:
    log = smi.scenario["log"]
    noted = DRIVER.replace("</", f" [{NOTE}]</"), CUDA.replace("</", f" [{NOTE}]</")
    old = noted if old_names else ("", "")
    smi.write(log=log.replace(DRIVER, old[0] + NEW).replace(CUDA, old[1]))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert versions(await reader.read(Lane.STATIC)) == ["580.105.08", "13.0"]
            await reader.read(Lane.FAST)
    assert smi.calls.count("--help-query-gpu") == 1
    assert len([one for one in caplog.records if NOTE in one.getMessage()]) == old_names


def test_newer_names_take_precedence() -> None:
    texts = {"driver_version": f"1.1 [{NOTE}]", "kmd_version": "2.2", "cuda_version": "3.3", "cuda_umd_version": "N/A"}
    assert (driver_of([texts]), cuda_of([texts])) == ("2.2", "3.3")
    assert notes_of(texts) == [f"driver_version: {NOTE}"]
    assert (driver_of([]), cuda_of([{}])) == (None, None)


def test_placeholder_counts_only_without_a_version() -> None:
    assert cuda_of([{"cuda_version": "N/A"}, {"cuda_umd_version": "[Unknown Error]"}]) == "N/A"
    assert cuda_of([{"cuda_version": "N/A"}, {"cuda_version": "13.0"}]) == "13.0"
