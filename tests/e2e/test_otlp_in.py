"""OTLP into the hub from real clients: OpenTelemetry's own SDK, and an agent that pushes to it instead of posting."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.e2e.conftest import Way
from tests.support.processes import Gpufleet
from tests.support.waiting import wait_until

UUID = "GPU-00000000-0000-0000-0000-00000000000a"
DEVICE = {"hw.id": UUID, "hw.type": "gpu"}

pytestmark = [pytest.mark.timeout(240)]


def readings(way: Way, uuid: str) -> dict[str, Any]:
    for one in way.hub("/v1/gpus")["items"]:
        if one["device"]["uuid"] == uuid:
            assert one["device"]["source"] == "imported"
            found: dict[str, Any] = one["device"]["readings"]
            return found
    return {}


def values(way: Way, uuid: str) -> dict[str, Any]:
    return {name: one["value"] for name, one in readings(way, uuid).items() if "value" in one}


def test_opentelemetry_s_sdk(way: Way) -> None:
    way.start_hub()

    def watts(_: CallbackOptions) -> Iterator[Observation]:
        yield Observation(312.5, DEVICE)

    exporter = OTLPMetricExporter(f"{way.hub_url}/v1/metrics", compression=Compression.Gzip)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
    provider = MeterProvider([reader], Resource({"host.name": "sdk-host"}))
    meter = provider.get_meter("test")
    meter.create_observable_gauge("hw.power", [watts], unit="W")
    meter.create_gauge("hw.gpu.utilization", unit="1").set(0.5, DEVICE)
    meter.create_counter("hw.energy", unit="J").add(1000, DEVICE)
    try:
        assert provider.force_flush(20_000)
        wanted = {"gpu_power_watts": 312.5, "gpu_utilization_ratio": 0.5, "gpu_energy_joules_total": 1000}
        wait_until(lambda: wanted.items() <= values(way, UUID).items(), seconds=60, what="what the SDK exported")
    finally:
        provider.shutdown()
    (machine,) = way.hub("/v1/machines")["items"]
    assert (machine["machine"]["name"], machine["sender"], machine["gpus"]) == ("sdk-host", "otlp/collector", 1)
    way.stop()


@pytest.mark.parametrize("dialects", ['["otel"]', '["l9gpu"]', '["otel", "l9gpu"]'])
def test_an_agent_s_own_push_says_what_its_batches_would(way: Way, dialects: str) -> None:
    way.start_hub()
    with (way.folder / "agent.toml").open("a") as file:
        (way.folder / "kmsg").write_text("6,0,0,-;Linux version 6\n")
        file.write(f'[readers.kmsg]\npath = "{way.folder}/kmsg"\n')
        file.write(f'[push.otlp]\nendpoint = "{way.hub_url}"\ninterval_seconds = 1.0\n')
        file.write(f"dialects = {dialects}\n")
    config = str(way.folder / "agent.toml")
    arguments = ["agent", "--config", config, "--listen", f"127.0.0.1:{way.agent_port}", "--state", str(way.state)]
    with Gpufleet(arguments, way.folder / "agent.log", way.driver.environment) as agent:
        agent.wait_for(f"{way.agent_url}/readyz")
        device = way.driver.scenario.devices[2]
        power, used = device.numbers["nvmlDeviceGetPowerUsage"], device.numbers["nvmlDeviceGetMemoryInfo_used"]
        assert power is not None
        wanted = {"gpu_power_watts": power / 1000, "gpu_memory_used_bytes": used}
        wait_until(lambda: wanted.items() <= values(way, device.uuid).items(), seconds=60, what="a device of the agent")
        wait_until(lambda: len(way.hub("/v1/gpus")["items"]) == 8, seconds=60, what="all eight")
        address = str(device.texts["nvmlDeviceGetPciInfo"])[4:].lower()
        with (way.folder / "kmsg").open("a") as file:
            file.write(f"4,1,1,-;NVRM: Xid (PCI:{address}): 79, pid=7, name=x, words\n")

        def fallen() -> bool:
            found = way.hub("/v1/events?kind=xid")["events"]
            return [(one["code"], one["node"]) for one in found] == [(79, "node-1")]

        wait_until(fallen, seconds=60, what="the XID of the kernel's log")
    (node,) = way.hub("/v1/nodes")["items"]
    assert (node["machine"]["machine"]["name"], node["gpus"]) == ("node-1", 8)
    page = way.hub("/v1/fleet")
    assert page["words"].startswith("8 of 8 GPUs report")
    way.stop()
