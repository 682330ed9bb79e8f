"""Pages of `/federate`: each sample has the timestamp given on the page."""

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.hub.imports.federation import as_request
from gpufleet.hub.imports.remote_write import read_request
from gpufleet.model.time import NANOS

T = 1_700_000_000


def page(*lines: str) -> bytes:
    return "\n".join(["# TYPE DCGM_FI_DEV_POWER_USAGE untyped", *lines, ""]).encode()


def test_each_machine_of_a_page_has_its_own_timestamp() -> None:
    content = page(
        f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-1",Hostname="a",instance="10.0.0.1:9400"}} 300.5 {T}250',
        f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-2",node="b",instance="10.0.0.2:9400"}} 200 {T - 240}000',
        f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-3",instance="c:9400"}} 100 {T}000',
        'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-4",Hostname="d",instance="d:9400"} 50',
        f'DCGM_FI_DEV_NEWER{{UUID="GPU-1",Hostname="a",instance="10.0.0.1:9400"}} 1 {T}250',
        "gibberish",
    )
    found = read_request(as_request(TextParser().parse(content)), "federate")
    readings = {
        machine.name: (sample.measured_at, sample.values["gpu_power_watts"], sample.reader)
        for machine, samples in found.machines.items()
        for sample in samples
    }
    assert readings == {
        "a": (T * NANOS + NANOS // 4, 300.5, "federate/dcgm-exporter"),
        "b": ((T - 240) * NANOS, 200, "federate/dcgm-exporter"),
        "c": (T * NANOS, 100, "federate/dcgm-exporter"),
    }
    assert found.drift == {"DCGM_FI_DEV_NEWER": 1}
    assert found.problems == {"no_time": 1, "syntax": 1}
    assert found.samples == 6
