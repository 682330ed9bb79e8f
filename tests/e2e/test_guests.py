"""Values of a virtual machine: from a real sshd as the guest over agent and hub to an allocation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.support.guest_smi import GuestSmi, uuid_of
from tests.support.processes import Gpufleet
from tests.support.sshd import USER, Guest
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

UID = "6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f"
GUEST_UUID = uuid_of(0xABC, 0)[:12]
HUB = "stale_after_seconds = 6.0\n"


@pytest.fixture
def guest() -> Iterator[tuple[Guest, GuestSmi]]:
    with Guest() as one:
        yield one, GuestSmi(one, number=0xABC, gpus=2)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    one = Site(tmp_path)
    config = (tmp_path / "agent.toml").read_text()
    (tmp_path / "guests.d").mkdir()
    (tmp_path / "agent.toml").write_text(f'guest_folder = "{tmp_path / "guests.d"}"\n{config}')
    (tmp_path / "hub.toml").write_text(HUB)
    yield one
    one.stop()


def start(site: Site) -> Gpufleet:
    site.start_hub("--config", str(site.folder / "hub.toml"))
    return site.start_agent()


def describe(site: Site, guest: Guest) -> Path:
    file = site.folder / "guests.d" / "vm.toml"
    fresh = file.with_name(".vm.toml")
    fresh.write_text(
        f'name = "train-0"\nnamespace = "ml"\nvm_uuid = "{UID}"\nallocation = "slice-1"\n[[channels]]\n'
        f'type = "ssh"\naddress = "127.0.0.1:{guest.port}"\nuser = "{USER}"\nkey_file = "{guest.key_file}"\n'
    )
    fresh.replace(file)
    return file


def allocation(site: Site) -> Any:
    return site.hub("/v1/allocations/slice-1/metrics")


def wait_for(site: Site, source: str, reason: str | None) -> Any:
    def there() -> bool:
        found = allocation(site)
        return (found["source"], found["reason"]) == (source, reason)

    wait_until(there, seconds=60, what=f"{source}, {reason}")
    return allocation(site)


def of_host(site: Site) -> set[object]:
    """Return the UUIDs of the GPUs that the hub has from this host's NVML."""
    found = site.hub("/v1/gpus")["items"]
    return {one["device"]["uuid"] for one in found if one["device"]["side"] == "host"}


def check_counts(site: Site) -> None:
    """Assert that the guest's GPUs are counted and labelled as GPUs of a guest."""
    wait_until(lambda: len(site.hub("/v1/gpus")["items"]) == 10, seconds=60, what="host's and guest's GPUs")
    kinds = [item["machine"]["machine"].get("kind", "node") for item in site.hub("/v1/nodes")["items"]]
    assert kinds == ["node"]
    page = site.metrics()
    inside = [line for line in page.splitlines() if f'vm_uid="{UID}"' in line]
    assert any(line.startswith("gpufleet_gpu_utilization_ratio{") and 'namespace="ml"' in line for line in inside)
    assert any(line.startswith("gpufleet_guest_state{") and line.endswith('state="ok"} 1') for line in inside)
    assert all('vm_name="train-0"' in line for line in inside)


def test_slice_has_the_values_of_its_guest(site: Site, guest: tuple[Guest, GuestSmi]) -> None:
    one, smi = guest
    start(site)
    site.put(
        "/v1/allocations/slice-1",
        {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": UID}, "tenant": "t", "expected": {"h100": 2}},
    )
    wait_for(site, "unavailable", "guest_not_collected")
    wait_until(lambda: len(of_host(site)) == 8, what="the host's own GPUs in the hub")
    file = describe(site, one)
    found = wait_for(site, "slice_guest", None)
    assert [device["uuid"] for device in found["devices"]] == [uuid_of(0xABC, 0), uuid_of(0xABC, 1)]
    assert {device["side"] for device in found["devices"]} == {"guest"}
    assert {device["source"] for device in found["devices"]} == {"slice_guest"}
    assert found["host"]["host_memory_total_bytes"]["value"] > 0
    assert found["host"]["guest_driver_ready_timestamp_seconds"]["value"] > 0
    assert not of_host(site) & {device["uuid"] for device in found["devices"]}

    check_counts(site)

    past = site.hub(
        "/v1/allocations/slice-1/series?metric=gpu_memory_used_bytes&metric=host_memory_total_bytes&step=1s"
    )
    assert past["source"] == "slice_guest"
    assert {one["metric"] for one in past["series"]} == {"gpu_memory_used_bytes", "host_memory_total_bytes"}
    assert all(GUEST_UUID in (one["device"] or GUEST_UUID) for one in past["series"])

    smi.fail_with("Unable to determine the device handle for GPU0: 0000:01:00.0: GPU is lost.", 15)
    found = wait_for(site, "unavailable", "driver_error")  # it names one of two GPUs
    assert found["detail"]
    readings = found["devices"][0]["readings"]["gpu_memory_used_bytes"]
    assert "value" not in readings
    assert readings["absent"] == "stale"  # with its last value, until a report of the lost GPU replaces that
    assert readings["age_seconds"] > 0
    smi.heal()
    wait_for(site, "slice_guest", None)

    smi.show(1)
    found = wait_for(site, "unavailable", "gpu_count_differs")
    assert re.findall(r"\d+", found["detail"]) == ["2", "1"]
    smi.show(2)
    wait_for(site, "slice_guest", None)

    one.stop()
    found = wait_for(site, "unavailable", "guest_unreachable")
    assert all("value" not in reading for device in found["devices"] for reading in device["readings"].values())
    one.new_host_key()
    one.start()
    wait_for(site, "unavailable", "identity_mismatch")
    file.unlink()
    wait_for(site, "unavailable", "guest_not_collected")
