"""Rows of devices and processes: matching of parts by key, and attribution of processes."""

import msgspec
import pytest

from gpufleet.model.absence import Reason
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.view import ViewKind
from gpufleet.top.lines import NOTHING
from gpufleet.top.observation import Observation, ProcessKey, ProcessOwner, observe_snapshot
from gpufleet.top.rows import DeviceRow, ProcessRow, list_rows
from tests.support.observed import devices, gpu, node_snapshot, part, readings


def rows_of(observation: Observation) -> list[DeviceRow]:
    return list_rows(observation).devices


def processes_of(observation: Observation) -> dict[int, ProcessRow]:
    return {row.pid: row for row in list_rows(observation).processes}


def test_parts_are_matched_by_uuid_of_their_gpu() -> None:
    rows = rows_of(observe_snapshot(node_snapshot()))
    assert [row.number for row in rows] == ["0", "1", "2", "3"]
    assert {row.number: [one.number for one in row.parts] for row in rows if row.parts} == {
        "1": ["1:1/0", "1:2/0"],
        "2": ["2:3", "2:20"],
    }


def test_part_of_an_unknown_gpu_is_a_row_of_its_own() -> None:
    lost = part(ViewKind.VGPU, 7, 9, readings(vgpu_type="NVIDIA L40S-24C"))
    own = msgspec.structs.replace(lost, parent=lost.key, key=lost.key, uuid="x")
    rows = rows_of(observe_snapshot(node_snapshot(found=(*devices(), lost))))
    assert (rows[-1].number, rows[-1].parts, rows[-1].title) == ("7", (), "L40S-24C")
    assert len(rows_of(observe_snapshot(node_snapshot(found=(own,))))) == 1


@pytest.mark.parametrize(
    ("others", "status"),
    [
        ((Reason.NOT_SUPPORTED, Reason.TIMEOUT, Reason.GPU_LOST), "lost, gpu_lost"),
        ((Reason.NOT_SUPPORTED, Reason.NOT_REPORTED), "lost"),
        ((Reason.NOT_SUPPORTED, Reason.NOT_REPORTED, Reason.NOT_SUPPORTED, Reason.DRIVER_ERROR), "lost"),
    ],
)
def test_failed_gpu_has_the_worst_reason_in_the_lane_of_its_state(others: tuple[Reason, ...], status: str) -> None:
    names = ("gpu_fan_speed_ratio", "gpu_power_watts", "gpu_temperature_celsius", "gpu_serial")
    found = gpu(0, readings(**dict(zip(names, others, strict=False)), gpu_state="lost"))
    (row,) = rows_of(observe_snapshot(node_snapshot(found=(found,))))
    assert (row.status, row.good) == (status, False)


def test_vgpu_instance_has_machine_and_activity() -> None:
    vgpus = {one.number: one for one in rows_of(observe_snapshot(node_snapshot()))[2].parts}
    assert (vgpus["2:3"].utilization, vgpus["2:3"].active, vgpus["2:3"].vm[:8]) == (0.38, True, "5a1c3f0e")
    assert (vgpus["2:20"].utilization, vgpus["2:20"].active) == (None, False)


@pytest.mark.parametrize(
    ("counted", "shown"),
    [
        (0, "0 instances"),
        (1, "1 instance"),
        (Reason.NOT_REPORTED, f"{NOTHING} instances"),
        (None, f"{NOTHING} instances"),
    ],
)
def test_unknown_number_of_vgpus_is_not_zero(counted: int | Reason | None, shown: str) -> None:
    host = gpu(0, readings(gpu_state="ok", gpu_vgpu_host_mode="sriov", gpu_vgpu_instances=counted))
    (row,) = rows_of(observe_snapshot(node_snapshot(found=(host,))))
    assert row.host.split(", ")[-1] == shown


def test_mig_utilization_is_activity() -> None:
    mig = {one.number: one for one in rows_of(observe_snapshot(node_snapshot()))[1].parts}
    assert (mig["1:2/0"].utilization, mig["1:1/0"].utilization) == (0.5, None)


def test_process_of_a_shared_device_is_attributed_to_no_holder() -> None:
    found = processes_of(observe_snapshot(node_snapshot()))
    assert (found[4100].user, found[4100].holder, found[4100].is_shared) == ("alice", "job 4711 train", False)
    assert (found[5200].user, found[5200].holder) == ("", "ml/serve-0")
    assert (found[5300].holder, found[5300].is_shared, found[5300].memory) == ("one of 2", True, None)


def test_user_and_command_of_the_kernel_come_first() -> None:
    owners: dict[ProcessKey, ProcessOwner] = {
        (4100, 41000): ProcessOwner("bob", "python train.py"),
        (4101, 1): ProcessOwner("eve", "x"),
    }
    found = processes_of(observe_snapshot(node_snapshot(), owners))
    assert (found[4100].user, found[4100].command) == ("bob", "python train.py")
    assert (found[4101].user, found[4101].command) == ("alice", "python")  # another process had the id


def test_readings_of_processes_exist() -> None:
    assert {"memory_bytes", "sm_utilization_ratio"} <= set(PROCESS_READINGS)
