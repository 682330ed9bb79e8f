"""Other exporters, scraped by agent and hub processes."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.support.exporters import serving
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until

L40S = Path(__file__).parents[1] / "data" / "exposition" / "dcgm-exporter-l40s-vm.txt"
UUID = "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43"

pytestmark = pytest.mark.timeout(240)

ONLY_EXPORTERS = """
node = "gpu-18"

[lanes]
fast = 1.0
slow = 2.0
static = 5.0

[readers.host]
enabled = false
[readers.nvml]
enabled = false
[readers.nvidia_smi]
use = "never"
[readers.kmsg]
enabled = false
"""


class Second:
    """Agent that reads only exporters."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.folder = folder
        self._process: Gpufleet | None = None

    def start(self, targets: str, *flags: str) -> None:
        config = self.folder / "second.toml"
        config.write_text(ONLY_EXPORTERS + targets)
        listen = self.url.removeprefix("http://")
        arguments = ["agent", "--config", str(config), "--listen", listen, "--state", str(self.folder / "second")]
        self._process = Gpufleet([*arguments, *flags], self.folder / "second.log")
        self._process.wait_for(f"{self.url}/readyz")

    def snapshot(self) -> Any:
        return get_json(f"{self.url}/v1/snapshot")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Second]:
    made = Second(tmp_path)
    yield made
    made.stop()


def target(url: str, name: str = "other", **more: str) -> str:
    lines = [f'{key} = "{value}"' for key, value in {"name": name, "url": url, **more}.items()]
    return "\n".join(["[[readers.exporter]]", *lines, ""])


def values(snapshot: Any) -> dict[tuple[str, str, str], object]:
    """Return value or absence reason by device, metric and dimensions."""
    found: dict[tuple[str, str, str], object] = {}
    for device in snapshot["devices"]:
        for metric, reading in device["readings"].items():
            found[device["key"], metric, ""] = reading.get("value", reading.get("absent"))
        for dim in device.get("dimensions", ()):
            found[device["key"], dim["metric"], str(sorted(dim["labels"].items()))] = dim.get(
                "value", dim.get("absent")
            )
    return found


def test_agent_shows_the_exact_values_of_another_agent(site: Site, second: Second) -> None:
    site.start_agent()
    second.start(target(f"{site.agent_url}/metrics"))
    first_url = f"{site.agent_url}/v1/snapshot"

    def complete() -> bool:
        return len(second.snapshot()["devices"]) == 8 and len(values(second.snapshot())) > 500

    wait_until(complete, seconds=60, what="the other agent's eight GPUs")
    compared: set[str] = set()

    def all_equal() -> bool:
        """Compare the values that did not change between two snapshots."""
        before, theirs, after = values(get_json(first_url)), values(second.snapshot()), values(get_json(first_url))
        steady = {key: value for key, value in before.items() if after.get(key) == value}
        wrong = {key: (value, theirs.get(key)) for key, value in steady.items() if theirs.get(key) != value}
        compared.update(metric for _, metric, _ in steady)
        return not wrong and len(steady) > 500

    wait_until(all_equal, seconds=60, what="equal values of both agents")
    assert {"gpu_power_watts", "gpu_memory_used_bytes", "gpu_sm_clock_hertz", "gpu_energy_joules_total"} <= compared
    assert len(compared) > 60
    document = second.snapshot()
    own = {device["key"]: device for device in get_json(first_url)["devices"]}
    for device in document["devices"]:
        readings = device["readings"]
        assert readings["gpu_power_watts"]["reader"] == "exporter/other"
        assert device["pci_address"] == own[device["key"]]["pci_address"]
    statuses = {
        report["lane"]: report["state"] for report in document["readers"] if report["reader"] == "exporter/other"
    }
    assert statuses == dict.fromkeys(("static", "slow", "fast", "event"), "ok")
    assert not [event for event in document.get("events", ()) if event["kind"] == "gpu_reset"]


def test_page_belongs_to_the_configured_node(second: Second) -> None:
    page = L40S.read_bytes().replace(b'Hostname="gpu1-wl8sg"', b'Hostname="the-neighbour"')
    with serving(page) as (_, url):
        second.start(target(url, "dcgm", dialect="dcgm"), "--dialect", "native,dcgm,all-smi,nvidia-gpu-exporter")
        wait_until(lambda: second.snapshot()["devices"], seconds=30, what="the GPU")
        document = second.snapshot()
        assert document["node"]["name"] == "gpu-18"
        (device,) = document["devices"]
        assert device["uuid"] == UUID
        assert device["readings"]["gpu_power_watts"]["value"] == 35.686
        ours = get_text(f"{second.url}/metrics")
    assert "the-neighbour" not in ours
    assert re.search(r'DCGM_FI_DEV_POWER_USAGE\{.*Hostname="gpu-18".*\} 35.686000', ours)
    assert re.search(r'all_smi_gpu_power_consumption_watts\{.*instance="gpu-18".*\} 35.686', ours)
    assert re.search(r"nvidia_smi_power_draw_watts\{.*\} 35.686", ours)


def frozen_page(seconds_ago: Callable[[], float]) -> bytes:
    labels = f'node="gpu-18",uuid="{UUID}",pci_address="",kind="gpu",side="host",name="A"'
    at = time.time() - seconds_ago()
    return (
        f"gpufleet_gpu_power_watts{{{labels}}} 312.5\n"
        f'gpufleet_measured_timestamp_seconds{{{labels},reader="nvml",lane="fast"}} {at}\n'
    ).encode()


def test_old_readings_of_an_exporter_become_stale(second: Second) -> None:
    age = [0.0]
    with serving(lambda: frozen_page(lambda: age[0])) as (_, url):
        second.start(target(url))

        def reading() -> Any:
            (device,) = second.snapshot()["devices"]
            return device["readings"]["gpu_power_watts"]

        wait_until(lambda: reading().get("value") == 312.5, seconds=30, what="the reading")
        age[0] = 900.0
        wait_until(lambda: reading().get("absent") == "stale", seconds=30, what="the old reading to become stale")
        assert reading()["detail"]
        age[0] = 1.0
        wait_until(lambda: reading().get("value") == 312.5, seconds=30, what="a fresh reading")


def test_failed_exporter_is_reported_and_affects_no_other(second: Second) -> None:
    with serving(L40S.read_bytes()) as (_, url):
        second.start(target(url, "dcgm") + target("http://127.0.0.1:1/metrics", "gone"))
        wait_until(lambda: second.snapshot()["devices"], seconds=30, what="the GPU")
        document = second.snapshot()
    states = {(report["reader"], report["lane"]): report for report in document["readers"]}
    assert states["exporter/dcgm", "fast"]["state"] == "ok"
    gone = states["exporter/gone", "fast"]
    assert gone["state"] == "failed"
    assert "127.0.0.1:1" in gone["last_error"]


def test_hub_scrapes_a_machine_without_agent(site: Site, tmp_path: Path) -> None:
    with serving(L40S.read_bytes()) as (_, url):
        config = tmp_path / "hub.toml"
        config.write_text(f'[[exporter]]\ncluster = "local"\nnode = "gpu-18"\nname = "dcgm"\nurl = "{url}"\n')
        site.start_hub("--config", str(config))

        def complete() -> bool:
            items = site.hub("/v1/gpus")["items"]
            return bool(items) and "gpu_sm_clock_hertz" in items[0]["device"]["readings"]

        wait_until(complete, seconds=60, what="the hub to scrape the exporter")
        (item,) = site.hub("/v1/gpus")["items"]
        device = item["device"]
        assert device["source"] == "imported"
        assert device["uuid"] == UUID
        assert device["readings"]["gpu_sm_clock_hertz"]["value"] == 210_000_000
        (node,) = site.hub("/v1/nodes")["items"]
        assert node["machine"]["machine"]["name"] == "gpu-18"
