"""MIG devices and vGPU instances in the snapshot, the metrics page, the store and allocations."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.fakes.nvml.parts import add_vgpu, cut_into_mig, share_as_vgpus, stop_vgpu, use_of, vm_of
from tests.fakes.nvml.scenario import Device
from tests.support.processes import get_json
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-instances")]

MIG_GPUS, VGPU_GPUS = (1, 6), (3, 7)
EXTRA_VGPU = 3316
"""vGPU instance that one test starts and ends."""
FAST_NUMBERS = (
    "gpu_memory_total_bytes",
    "gpu_memory_used_bytes",
    "gpu_utilization_ratio",
    "gpu_memory_activity_ratio",
    "gpu_encoder_utilization_ratio",
    "gpu_decoder_utilization_ratio",
    "gpu_jpeg_utilization_ratio",
    "gpu_ofa_utilization_ratio",
)

Expected = dict[str, dict[str, float | str]]
"""Value by UUID and metric."""


@pytest.fixture(scope="module")
def site(shared: Site) -> Site:
    """Return a running hub, and an agent whose driver has MIG devices and vGPUs."""
    scenario = shared.driver.scenario
    for gpu in MIG_GPUS:
        cut_into_mig(scenario, gpu)
    for gpu in VGPU_GPUS:
        share_as_vgpus(scenario, gpu)
    shared.driver.apply()
    shared.start_agent()
    return shared


@pytest.fixture
def expected(site: Site) -> Expected:
    """Return the driver's values of 2 x 7 MIG devices and 2 x 16 vGPUs."""
    devices = site.driver.scenario.devices
    values: Expected = {}
    for gpu in MIG_GPUS:
        for slot in range(7):
            part = devices[gpu].parts[f"{gpu}.{slot}"]
            values[part.uuid] = of_mig(part, slot)
    for gpu in VGPU_GPUS:
        for number in range(3000 + 100 * gpu, 3016 + 100 * gpu):
            part = devices[gpu].parts[f"vgpu{number}"]
            values[part.texts["nvmlVgpuInstanceGetUUID"] or ""] = of_vgpu(part, gpu, number)
    assert len(values) == 2 * 7 + 2 * 16
    return values


def of_mig(part: Device, slot: int) -> dict[str, float | str]:
    return {
        "gpu_memory_total_bytes": part.numbers["nvmlDeviceGetMemoryInfo_total"] or 0,
        "gpu_memory_used_bytes": part.numbers["nvmlDeviceGetMemoryInfo_used"] or 0,
        "gpu_compute_processes": slot,
        "mig_multiprocessors": part.rows["nvmlDeviceGetAttributes"][0][0],
        "mig_gpu_slices": part.rows["nvmlDeviceGetAttributes"][0][6],
        "mig_placement_start": slot,
        "mig_profile": "1g.18gb+me" if slot == 3 else "1g.18gb",
        "mig_gpu_instance": str(7 + slot),
        "gpu_name": part.texts["nvmlDeviceGetName"] or "",
    }


def of_vgpu(part: Device, gpu: int, number: int) -> dict[str, float | str]:
    _, _, *percents = use_of(number)
    return {
        **dict(zip(FAST_NUMBERS[2:], [percent / 100 for percent in percents], strict=True)),
        "gpu_memory_total_bytes": (8 << 30) + gpu,
        "gpu_memory_used_bytes": part.numbers["nvmlVgpuInstanceGetFbUsage"] or 0,
        "vgpu_frame_rate_limit_hertz": 60 + number % 100,
        "vgpu_type": f"NVIDIA H200X-8C/{gpu}",
        "vgpu_vm_id": vm_of(number),
        "vgpu_guest_driver_version": f"580.{number % 100}",
    }


def shown(devices: list[dict[str, Any]], expected: Expected) -> Expected:
    """Return a document's values of the metrics that are expected of each instance."""
    found: Expected = {}
    for device in devices:
        if device["uuid"] in expected:
            readings = device["readings"]
            found[device["uuid"]] = {
                metric: readings[metric].get("value") for metric in expected[device["uuid"]] if metric in readings
            }
    return found


def is_equal(query: Callable[[], list[dict[str, Any]]], expected: Expected) -> Callable[[], bool]:
    return lambda: shown(query(), expected) == expected


def test_every_output_has_the_instances_with_the_drivers_values(site: Site, expected: Expected) -> None:
    def in_snapshot() -> list[dict[str, Any]]:
        devices: list[dict[str, Any]] = get_json(f"{site.agent_url}/v1/snapshot")["devices"]
        return devices

    def in_hub() -> list[dict[str, Any]]:
        return [record["device"] for record in site.hub("/v1/gpus")["items"]]

    wait_until(is_equal(in_snapshot, expected), seconds=60, what="every instance in the snapshot")
    parents = {device["uuid"]: device.get("parent") for device in in_snapshot()}
    gpus = [device.uuid for device in site.driver.scenario.devices]
    assert {parents[uuid] for uuid in expected} == {f"gpu/{gpus[gpu]}" for gpu in (*MIG_GPUS, *VGPU_GPUS)}
    for gpu in MIG_GPUS:
        (parent,) = [device for device in in_snapshot() if device["uuid"] == gpus[gpu]]
        assert parent["readings"]["gpu_utilization_ratio"]["absent"] == "not_in_mig_mode"
        assert parent["readings"]["gpu_mig_devices"]["value"] == 7

    assert series_of(site.metrics(), expected) == {
        uuid: {metric: values[metric] for metric in FAST_NUMBERS if metric in values}
        for uuid, values in expected.items()
    }

    wait_until(is_equal(in_hub, expected), seconds=60, what="every instance in the hub's answer")
    assert {device["parent"] for device in in_hub() if device["uuid"] in expected} == {
        f"gpu/{gpus[gpu]}" for gpu in (*MIG_GPUS, *VGPU_GPUS)
    }

    used = processes_of(site)
    wait_until(lambda: set(used) <= set(processes_in(site)), seconds=60, what="the tables of processes in the hub")
    assert {device: table for device, table in processes_in(site).items() if device in used} == used
    query = "SELECT DISTINCT view FROM fleet_samples WHERE view LIKE 'mig/%' OR view LIKE 'vgpu/%'"
    wait_until(lambda: {view.partition("/")[2] for (view,) in site.sql(query)} >= set(expected), what="stored samples")


def processes_of(site: Site) -> dict[str, dict[int, int]]:
    """Return the memory of the scenario's processes by GPU key and process id."""
    kinds = ("Compute", "Graphics", "MPSCompute")
    found = {}
    for device in site.driver.scenario.devices:
        rows = [row for kind in kinds for row in device.rows.get(f"nvmlDeviceGet{kind}RunningProcesses", ())]
        if rows:
            found[f"gpu/{device.uuid}"] = {pid: held for pid, held, *_ in rows}
    assert len(found) >= 6
    return found


def processes_in(site: Site) -> dict[str, dict[int, int]]:
    answer = site.hub(f"/v1/machines/{site.this_machine()['id']}/processes")
    return {
        table["device"]: {one["pid"]: one["readings"]["memory_bytes"].get("value") for one in table["processes"]}
        for table in answer["devices"]
    }


def series_of(page: str, expected: Expected) -> Expected:
    """Return the page's values of the fast numbers of each instance."""
    found: Expected = {}
    for name, labels, value in re.findall(r"^gpufleet_(\w+)\{(.*)\} (\S+)$", page, re.MULTILINE):
        uuid = re.search(r'uuid="([^"]*)"', labels)
        assert uuid is not None or "uuid=" not in labels
        if uuid is not None and uuid[1] in expected and name in FAST_NUMBERS:
            assert re.search(r',gpu="GPU-[^"]+",profile="[^"]+"', labels), labels
            found.setdefault(uuid[1], {})[name] = float(value)
    return found


def test_allocation_of_a_virtual_machine_has_only_its_vgpu(site: Site, expected: Expected) -> None:
    number = EXTRA_VGPU
    instance = add_vgpu(site.driver.scenario, 3, number)
    site.driver.apply()
    uuid = instance.texts["nvmlVgpuInstanceGetUUID"] or ""
    expected[uuid] = of_vgpu(instance, 3, number)
    target = {"cluster": "local", "vm_uuid": vm_of(number).upper()}
    body = {"kind": "gpu_slice", "target": target, "valid_from": "2020-01-01T00:00:00Z"}
    site.put("/v1/allocations/vm", body)

    def answer() -> Any:
        return site.hub("/v1/allocations/vm/metrics")

    wait_until(
        lambda: shown(answer()["devices"], expected) == {uuid: expected[uuid]},
        seconds=60,
        what="the virtual machine's vGPU in its answer",
    )
    seen = answer()
    assert (seen["source"], seen["reason"]) == ("slice_vgpu_host", None)
    assert [device["uuid"] for device in seen["devices"]] == [uuid]
    assert (seen["host"], seen["host_dimensions"], seen["last_error"]) == ({}, [], None)
    assert seen["aggregate"]["coverage"] == "1 of 1 devices"
    assert not {"gpu_power_watts", "gpu_temperature_celsius"} & set(seen["devices"][0]["readings"])
    host = site.driver.scenario.devices[3]
    assert host.uuid not in str(seen)
    assert str(host.texts["nvmlDeviceGetSerial"]) not in str(seen)

    stop_vgpu(site.driver.scenario, 3, number)
    site.driver.apply()
    wait_until(lambda: answer()["source"] == "unavailable", seconds=60, what="the ended instance to be gone")
    assert (answer()["reason"], answer()["devices"]) == ("guest_not_collected", [])


def test_mig_device_shows_its_gpus_power_with_scope_parent(site: Site, expected: Expected) -> None:
    parent = site.driver.scenario.devices[6]
    mine = parent.parts["6.2"].uuid
    site.put(
        "/v1/allocations/mig",
        {
            "kind": "bare_metal",
            "target": {"cluster": "local", "machine": site.this_machine()["id"]},
            "devices": [mine],
            "valid_from": "2020-01-01T00:00:00Z",
        },
    )

    def answer() -> Any:
        return site.hub("/v1/allocations/mig/metrics")

    wait_until(
        lambda: shown(answer()["devices"], expected) == {mine: expected[mine]}, seconds=60, what="the MIG device"
    )
    (device,) = answer()["devices"]
    power = device["readings"]["gpu_power_watts"]
    assert (power["value"], power["scope"]) == ((parent.numbers["nvmlDeviceGetPowerUsage"] or 0) / 1000, "parent")
    assert device["readings"]["gpu_memory_used_bytes"].get("scope", "own") == "own"
    assert answer()["aggregate"]["metrics"]["gpu_power_watts"]["value"] is None
