"""MIG devices and vGPU instances in every output of the snapshot."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.agent.collect.assemble import assemble
from gpufleet.exporters.csv import CsvExporter
from gpufleet.exporters.prometheus import PrometheusExporter
from gpufleet.exporters.table import TableExporter
from gpufleet.model.absence import Reason
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Snapshot
from tests.support.cut_gpus import VM, cut_world, mig, vgpu
from tests.support.passes import gpu


def snapshot() -> Snapshot:
    world = cut_world()
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})


def labels_of(metric: str) -> dict[str, dict[str, str]]:
    """Return the labels of a family's samples, by UUID."""
    page = PrometheusExporter().render(snapshot()).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    return {sample.labels["uuid"]: sample.labels for sample in families[metric].samples}


def test_series_identify_gpu_and_instance() -> None:
    labels = labels_of("gpufleet_gpu_memory_used_bytes")
    assert len(labels) == 6
    of_mig, of_vgpu, of_gpu = labels[f"MIG-{9:08x}"], labels[f"{3:08x}-vgpu"], labels[gpu(0).uuid or ""]
    assert of_mig["gpu"] == gpu(0).uuid
    assert (of_mig["profile"], of_mig["gpu_instance"], of_mig["compute_instance"]) == ("1g.18gb", "9", "0")
    assert (of_vgpu["gpu"], of_vgpu["profile"], of_vgpu["vm_id"]) == (gpu(1).uuid, "NVIDIA L40S-12Q", VM)
    assert not {"gpu", "profile", "vm_id"} & set(of_gpu)


def test_parent_of_mig_devices_has_no_utilization() -> None:
    assert set(labels_of("gpufleet_gpu_utilization_ratio")) == {f"{3:08x}-vgpu", f"{20:08x}-vgpu"}


def test_table_indents_instances_below_their_gpu() -> None:
    lines = TableExporter(width=200).render(snapshot()).decode().splitlines()
    rows = [line for line in lines if line.startswith(("0 ", "1 ", "– "))]
    assert ["└" in row for row in rows] == [False, True, True, False, True, True]
    assert "└ MIG 1g.18gb" in rows[1]
    assert rows[1].rstrip().endswith("ok")
    assert "└ NVIDIA L40S-12Q" in rows[5]
    assert rows[5].rstrip().endswith("unlicensed_restricted")


@pytest.mark.parametrize(
    ("metric", "reason", "states"),
    [
        ("gpu_memory_used_bytes", Reason.GPU_LOST, ["ok", "–"]),  # its GPU is ok since
        ("gpu_memory_used_bytes", Reason.TIMEOUT, ["ok", "unreadable"]),
        ("gpu_memory_used_bytes", Reason.STALE, ["ok", "stale"]),
        ("gpu_memory_used_bytes", Reason.NO_DATA, ["no_data", "ok"]),
        ("gpu_memory_used_bytes", Reason.NOT_SUPPORTED, ["ok", "–"]),
        ("gpu_name", Reason.GPU_LOST, ["ok", "ok"]),
    ],
)
def test_instance_that_is_not_read_is_not_ok_in_the_table(metric: str, reason: Reason, states: list[str]) -> None:
    """Its texts are no evidence, and a slow pass can have read a loss from which the GPU has recovered since."""
    whole = snapshot()
    devices = [
        msgspec.structs.replace(
            device,
            readings={
                **device.readings,
                metric: Reading(absent=reason, reader="dcgm", side="host"),
            },
        )
        if device.view == mig(9)
        else device
        for device in whole.devices
    ]
    page = TableExporter(width=200).render(msgspec.structs.replace(whole, devices=tuple(devices))).decode()
    rows = [line for line in page.splitlines() if "└ MIG 1g.18gb" in line]
    assert sorted(row.split()[-1] for row in rows) == states


def with_states(whole: Snapshot, gpu_state: str, **readings: Reading) -> list[str]:
    """Return the states of the MIG devices in the table, with the state of their GPU and readings of one of them."""
    changes = {gpu(0): {"gpu_state": Reading(value=gpu_state, reader="nvml", side="host")}, mig(9): readings}
    devices = [
        msgspec.structs.replace(one, readings={**one.readings, **changes.get(one.view, {})}) for one in whole.devices
    ]
    page = TableExporter(width=200).render(msgspec.structs.replace(whole, devices=tuple(devices))).decode()
    return sorted(line.split()[-1] for line in page.splitlines() if "└ MIG 1g.18gb" in line)


@pytest.mark.parametrize("state", ["lost", "reset_required", "hung"])
def test_no_part_of_a_failed_gpu_is_ok(state: str) -> None:
    """The values of another reader can be of a pass before the failure."""
    assert with_states(snapshot(), state) == [state, state]


@pytest.mark.parametrize("reason", [Reason.GPU_LOST, Reason.RESET_REQUIRED, Reason.DRIVER_ERROR])
def test_failure_of_a_part_is_over_if_its_gpu_is_ok(reason: Reason) -> None:
    """A reader that stopped before the recovery has readings that no other one has."""
    old = Reading(absent=reason, reader="dcgm", side="host")
    assert with_states(snapshot(), "ok", gpu_sm_activity_ratio=old, gpu_power_watts=old) == ["ok", "ok"]
    assert with_states(snapshot(), "error", gpu_power_watts=old) != ["ok", "ok"]


def test_csv_rows_have_the_key_of_the_instance() -> None:
    page = CsvExporter().render(snapshot()).decode()
    assert f",{mig(9).key},host," in page
    assert f",{vgpu(3).key},vgpu_host," in page
