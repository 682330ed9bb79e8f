"""Real Netdata with a stand-in nvidia-smi behind its collector, read by the Netdata reader."""

import contextlib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round
from gpufleet.readers.netdata.reader import NetdataReader
from gpufleet.runtime import SystemClock
from tests.support.netdata import netdata
from tests.support.waiting import wait_until_async

DOCUMENT = Path(__file__).parents[2] / "data" / "nvidia_smi" / "xml-h100.xml"

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


def number(gpu: ET.Element, path: str) -> float:
    return float((gpu.findtext(path) or "").split()[0])


async def collected(reader: NetdataReader, gpus: int) -> Round:
    """Return the first pass with values of the host and of this many GPUs.

    A chart that was collected once has no value, and a slow machine's Netdata leaves out a chart that is late.
    """
    rounds: list[Round] = []

    async def complete() -> bool:
        with contextlib.suppress(ReaderError):
            rounds.append(await reader.read(Lane.FAST))
        if not rounds or len(rounds[-1].samples) != gpus + 1:
            return False
        return not isinstance(rounds[-1].samples[0].values["host_memory_available_bytes"], Absent)

    await wait_until_async(complete, what="the charts of every GPU to be collected twice")
    return rounds[-1]


async def test_every_gpu_of_the_document_is_read_to_the_unit(peer: Callable[[str], Path], tmp_path: Path) -> None:
    gpus = ET.parse(DOCUMENT).getroot().findall("gpu")
    with netdata(tmp_path, peer("netdata"), DOCUMENT) as url:
        reader = NetdataReader(url, SystemClock())
        static = await reader.read(Lane.STATIC)
        fast = await collected(reader, len(gpus))
    host = fast.samples[0].values
    assert isinstance(host["host_memory_available_bytes"], int)
    assert host["host_memory_available_bytes"] > 1 << 20
    read = {sample.view.index: sample.values for sample in fast.samples if sample.view}
    assert sorted(index for index in read if index is not None) == list(range(len(gpus)))
    for index, gpu in enumerate(gpus):
        values = read[index]
        assert values["gpu_memory_used_bytes"] == number(gpu, "fb_memory_usage/used") * 2**20
        assert values["gpu_memory_free_bytes"] == number(gpu, "fb_memory_usage/free") * 2**20
        assert values["gpu_bar1_used_bytes"] == number(gpu, "bar1_memory_usage/used") * 2**20
        assert values["gpu_temperature_celsius"] == number(gpu, "temperature/gpu_temp")
        assert values["gpu_sm_clock_hertz"] == number(gpu, "clocks/sm_clock") * 1_000_000
        assert values["gpu_memory_clock_hertz"] == number(gpu, "clocks/mem_clock") * 1_000_000
        assert values["gpu_utilization_ratio"] == number(gpu, "utilization/gpu_util") / 100
        for missing in ("gpu_power_watts", "gpu_performance_state"):  # this collector does not support newer documents
            assert isinstance(values[missing], Absent)
    assert {sample.values["gpu_name"] for sample in static.samples} == {gpus[0].findtext("product_name")}
