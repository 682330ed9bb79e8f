"""OTLP into the hub from real clients: the OpenTelemetry SDK, and agents that push OTLP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.e2e.conftest import AGENT_CONFIG, Site
from tests.support.processes import Gpufleet
from tests.support.waiting import wait_until

UUID = "GPU-00000000-0000-0000-0000-00000000000a"
DEVICE = {"hw.id": UUID, "hw.type": "gpu"}

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("e2e-otlp-in")]


def gpus(site: Site, node: str) -> dict[str, dict[str, Any]]:
    """Return the values of a node's GPUs by UUID."""
    found = [one for one in site.hub("/v1/gpus")["items"] if one["node"] == node]
    assert {one["device"]["source"] for one in found} <= {"imported"}
    return {
        one["device"]["uuid"]: {
            name: reading["value"] for name, reading in one["device"]["readings"].items() if "value" in reading
        }
        for one in found
    }


def test_sdk_of_opentelemetry_is_received(shared: Site) -> None:
    def watts(_: CallbackOptions) -> Iterator[Observation]:
        yield Observation(312.5, DEVICE)

    exporter = OTLPMetricExporter(f"{shared.hub_url}/v1/metrics", compression=Compression.Gzip)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
    provider = MeterProvider([reader], Resource({"host.name": "sdk-host"}))
    meter = provider.get_meter("test")
    meter.create_observable_gauge("hw.power", [watts], unit="W")
    meter.create_gauge("hw.gpu.utilization", unit="1").set(0.5, DEVICE)
    meter.create_counter("hw.energy", unit="J").add(1000, DEVICE)
    try:
        assert provider.force_flush(20_000)
        expected = {"gpu_power_watts": 312.5, "gpu_utilization_ratio": 0.5, "gpu_energy_joules_total": 1000}
        wait_until(
            lambda: expected.items() <= gpus(shared, "sdk-host").get(UUID, {}).items(),
            seconds=60,
            what="the values that the SDK exported",
        )
    finally:
        provider.shutdown()
    (machine,) = [one for one in shared.hub("/v1/machines")["items"] if one["machine"]["name"] == "sdk-host"]
    assert (machine["sender"], machine["gpus"]) == ("otlp/collector", 1)


@pytest.mark.parametrize("dialects", [("otel",), ("l9gpu",), ("otel", "l9gpu")], ids="+".join)
def test_agents_push_has_the_values_of_its_batches(shared: Site, tmp_path: Path, dialects: tuple[str, ...]) -> None:
    site, node = Site(tmp_path), f"node-{'-'.join(dialects)}"
    (tmp_path / "kmsg").write_text("6,0,0,-;Linux version 6\n")
    (tmp_path / "agent.toml").write_text(
        AGENT_CONFIG.replace("node-1", node) + f'[readers.kmsg]\npath = "{tmp_path}/kmsg"\n'
        f'[push.otlp]\nendpoint = "{shared.hub_url}"\ninterval_seconds = 1.0\ndialects = {list(dialects)}\n'
    )
    arguments = ["agent", "--config", str(tmp_path / "agent.toml"), "--listen", f"127.0.0.1:{site.agent_port}"]
    state = ["--state", str(site.state)]
    with Gpufleet([*arguments, *state], tmp_path / "agent.log", site.driver.environment) as agent:
        agent.wait_for(f"{site.agent_url}/readyz", 100)
        device = site.driver.scenario.devices[2]
        power, used = device.numbers["nvmlDeviceGetPowerUsage"], device.numbers["nvmlDeviceGetMemoryInfo_used"]
        assert power is not None
        expected = {"gpu_power_watts": power / 1000, "gpu_memory_used_bytes": used}

        def complete() -> bool:
            found = gpus(shared, node)
            return len(found) == 8 and expected.items() <= found[device.uuid].items()

        wait_until(complete, seconds=60, what="eight GPUs of the agent")
        address = str(device.texts["nvmlDeviceGetPciInfo"])[4:].lower()
        with (tmp_path / "kmsg").open("a") as file:
            file.write(f"4,1,1,-;NVRM: Xid (PCI:{address}): 79, pid=7, name=x, text\n")

        def has_event() -> bool:
            found = shared.hub("/v1/events?kind=xid")["events"]
            return [one["code"] for one in found if one["node"] == node] == [79]

        wait_until(has_event, seconds=60, what="the XID of the kernel log")
    (machine,) = [one for one in shared.hub("/v1/nodes")["items"] if one["machine"]["machine"]["name"] == node]
    assert machine["gpus"] == 8
