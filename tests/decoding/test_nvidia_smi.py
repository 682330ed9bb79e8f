"""Decoding of nvidia-smi outputs: time, versions, states and events."""

import re

import pytest

from gpufleet.decoding import decode
from gpufleet.decoding.format import CapturedInput, DecodeResult
from gpufleet.decoding.local_time import parse_zone
from gpufleet.model.absence import Reason
from gpufleet.model.status import ReaderState
from gpufleet.model.view import ViewKind
from gpufleet.readers.nvidia_smi.mapping.rows import FAN_QUERY, QUERIES
from gpufleet.readers.nvidia_smi.mapping.tables import BY_QUERY
from tests.fakes.nvidia_smi.standin import DATA

WDDM = (DATA / "capture-rtx2080s-wddm-trimmed__610.62.txt").read_bytes()
H100 = (DATA / "xml-h100.xml").read_bytes()
VGPU_HOST = (DATA / "text-vgpu-host-vgpu-q-edited.txt").read_bytes()
A100_MIG = (DATA / "xml-a100-mig-v12.xml").read_bytes()


def decoded(content: bytes, zone: str | None = None) -> DecodeResult:
    source = CapturedInput(content=content, name="x", at=0, timezone=None if zone is None else parse_zone(zone))
    return decode(source)[1]


def test_capture_shows_its_time_zone() -> None:
    found = decoded(WDDM)
    assert found.snapshots[0].measured_at.isoformat() == "2026-06-24T08:17:41.589000+00:00"
    assert found.snapshots[0].capabilities["time_zone"] == "available"
    assert found.assumptions == ()


def test_requested_time_zone_takes_precedence() -> None:
    found = decoded(WDDM, "-01:00")
    assert found.snapshots[0].measured_at.isoformat() == "2026-06-24T11:17:41.589000+00:00"
    assert found.assumptions == ()


@pytest.mark.parametrize(
    "head", [b"", b"collected_at:   2025-01-01T00:00:00Z", b"collected_at:   2026-06-31T08:17:40Z"]
)
def test_time_zone_without_evidence_is_assumed(head: bytes) -> None:
    found = decoded(WDDM.replace(b"collected_at:   2026-06-24T08:17:40Z", head))
    assert found.snapshots[0].measured_at.isoformat() == "2026-06-24T10:17:41.589000+00:00"
    assert found.snapshots[0].capabilities["time_zone"] != "available"
    assert len(found.assumptions) == 1


def test_versions_have_no_notes() -> None:
    found = decoded(WDDM)
    readings = found.snapshots[0].host.readings
    assert readings["nvidia_driver_version"].value == "610.62"
    assert readings["nvidia_cuda_version"].value == "13.3"
    assert [note.split(":")[0] for note in found.notes if "Deprecated" in note] == ["driver_version", "cuda_version"]


def test_versions_of_a_driver_without_the_old_names() -> None:
    lines = WDDM.split(b"\n")
    kept = b"\n".join(line for line in lines if not line.startswith((b"Driver Version", b"CUDA Version")))
    readings = decoded(kept).snapshots[0].host.readings
    assert readings["nvidia_driver_version"].value == "610.62"
    assert readings["nvidia_cuda_version"].value == "13.3"


@pytest.mark.parametrize("message", ["No devices were found", "No supported GPUs were found"])
def test_message_without_a_gpu_is_a_failure_of_the_reader(message: str) -> None:
    (snapshot,) = decoded(f"{message}\n".encode()).snapshots
    assert {status.error_class for status in snapshot.readers} == {Reason.NO_SUPPORTED_GPU}
    assert {status.last_error for status in snapshot.readers} == {message}


def test_lost_gpu_is_lost_and_an_event_beside_surviving_cells() -> None:
    cell = b"<gpu_temp>30 C</gpu_temp>"
    assert cell in H100
    found = decoded(H100.replace(cell, b"<gpu_temp>GPU is lost</gpu_temp>", 1))
    snapshot = found.snapshots[0]
    states = [device.readings["gpu_state"].value for device in snapshot.devices]
    assert sorted(states, key=str) == ["lost", *["ok"] * 7]
    assert [event.kind for event in snapshot.events] == ["gpu_lost"]


@pytest.mark.parametrize("cell", ["[N/A]", "N/A", "[Not Supported]"])
def test_unsupported_column_is_no_failure_of_the_gpu(cell: str) -> None:
    """Each column alone: a table need not have a reading that every GPU answers."""
    columns = sorted({FAN_QUERY, *BY_QUERY, *(name for names in QUERIES.values() for name in names)} - {"uuid", "name"})
    assert len(columns) > 100
    for column in columns:
        found = decoded(f"uuid, name, {column}\nGPU-1, NVIDIA L4, {cell}\n".encode())
        (device,) = found.snapshots[0].devices
        state = device.readings.get("gpu_state")
        assert (column, state and state.value, found.snapshots[0].events) == (column, None, ())


LOST_MESSAGE = b"Unable to determine the device handle for GPU 00000000:%s: GPU is lost.\n"


def test_gpu_that_a_message_reports_as_lost_is_lost() -> None:
    """The first message is about a GPU with values in the output, the second about a GPU without."""
    ids = sorted(set(re.findall(rb'<gpu id="00000000:([^"]*)"', H100)))
    found = decoded(LOST_MESSAGE % ids[0] + LOST_MESSAGE % b"FE:00.0" + H100)
    (snapshot,) = found.snapshots
    states = {device.pci_address: device.readings["gpu_state"].value for device in snapshot.devices}
    lost = {f"0000:{ids[0].decode().lower()}", "0000:fe:00.0"}
    assert len(states) == len(ids) + 1
    assert {address for address, state in states.items() if state == "lost"} == lost
    assert [event.kind for event in snapshot.events] == ["gpu_lost", "gpu_lost"]


@pytest.mark.parametrize("later", ["message", "message and head", "message and another GPU", "row without identity"])
def test_lost_gpu_of_an_earlier_output_keeps_its_identity(later: str) -> None:
    rows = [b"0, GPU-%012d, 00000000:1B:00.0, 30" % 1, b"1, GPU-%012d, 00000000:1C:00.0, 31" % 2]
    head = b"index, uuid, pci.bus_id, temperature.gpu"
    command = b"# $ nvidia-smi --query-gpu=index,uuid,pci.bus_id,temperature.gpu --format=csv"
    bar = b"#" * 80
    message = LOST_MESSAGE.strip() % b"1C:00.0"
    lost = {
        "message": [message],
        "message and head": [message, head],
        "message and another GPU": [message, head, rows[0]],
        "row without identity": [head, rows[0], b"1, [GPU is lost], [GPU is lost], [GPU is lost]"],
    }
    sections = {b"# idle :: a": [head, *rows], b"# load :: a": lost[later]}
    lines = [line for title, body in sections.items() for line in (bar, title, command, bar, *body, b"")]
    (snapshot,) = decoded(b"\n".join(lines)).snapshots
    states = {device.uuid: device.readings["gpu_state"].value for device in snapshot.devices}
    assert list(states.values()) == ["ok", "lost"]
    assert None not in states
    assert [event.kind for event in snapshot.events] == ["gpu_lost"]


@pytest.mark.parametrize("between", [[], ["index, uuid, pci.bus_id, timestamp, temperature.gpu"]])
@pytest.mark.parametrize("is_message", [False, True])
def test_gpu_lost_in_a_later_round_has_no_earlier_values(is_message: bool, between: list[str]) -> None:
    """Rounds of `--loop`, and outputs that were appended to one file. A message precedes the rows of its round."""
    first, second = "0, GPU-0, 00000000:1B:00.0, ", "1, GPU-1, 00000000:1C:00.0, "
    lost, time = "[GPU is lost]", "2026/01/01 00:00:%02d.000"
    message, row = [LOST_MESSAGE.decode().strip() % "1C:00.0"], [f"1, {lost}, {lost}, {time % 5}, {lost}"]
    lines = [
        "index, uuid, pci.bus_id, timestamp, temperature.gpu",
        *(f"{one}{time % 0}, 30" for one in (first, second)),
    ]
    for at in (5, 10):
        healthy = [f"{first}{time % at}, 31"]
        lines += [*message, *between, *healthy] if is_message else [*between, *healthy, *row]
    (snapshot,) = decoded("\n".join([*lines, ""]).encode()).snapshots
    ok, gone = snapshot.devices
    assert (ok.readings["gpu_state"].value, ok.readings["gpu_temperature_celsius"].value) == ("ok", 31)
    assert (gone.uuid, gone.readings["gpu_state"].value) == ("GPU-1", "lost")
    assert gone.readings["gpu_temperature_celsius"].absent is Reason.GPU_LOST
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_lost", 5)]


def test_end_of_a_loop_with_messages_only_has_no_earlier_values() -> None:
    rows = ["uuid, pci.bus_id, timestamp, temperature.gpu", "GPU-0, 00000000:1B:00.0, 2026/01/01 00:00:05.000, 30"]
    message = LOST_MESSAGE.decode().strip() % "1B:00.0"
    (snapshot,) = decoded("\n".join([*rows, message, message, ""]).encode()).snapshots
    assert snapshot.devices[0].readings["gpu_state"].value == "lost"
    assert snapshot.devices[0].readings["gpu_temperature_celsius"].absent is Reason.GPU_LOST
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_lost", 5)]


def test_only_gpu_without_identity_in_later_rounds_is_lost() -> None:
    rows = [f"GPU-0, 00000000:1B:00.0, 2026/01/01 00:00:{at:02}.000, 30" for at in (0, 5)]
    lost = [f"[GPU is lost], [GPU is lost], 2026/01/01 00:00:{at:02}.000, [GPU is lost]" for at in (10, 15)]
    lines = ["uuid, pci.bus_id, timestamp, temperature.gpu", *rows, *lost, ""]
    (snapshot,) = decoded("\n".join(lines).encode()).snapshots
    assert snapshot.devices[0].readings["gpu_state"].value == "lost"
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_lost", 10)]


def test_gpu_without_identity_after_a_repeated_header_is_lost() -> None:
    head, row = "uuid, pci.bus_id, timestamp, temperature.gpu", "GPU-0, 00000000:1B:00.0, 2026/01/01 00:00:00.000, 30"
    lines = [head, row, head, "[GPU is lost], [GPU is lost], 2026/01/01 01:00:00.000, [GPU is lost]", ""]
    (snapshot,) = decoded("\n".join(lines).encode()).snapshots
    assert snapshot.devices[0].readings["gpu_state"].value == "lost"
    assert [(event.kind, event.at.hour) for event in snapshot.events] == [("gpu_lost", 1)]


_LOGS = {
    "text": "==============NVSMI LOG==============\n\nTimestamp : Fri Jul  3 22:10:%s 2026\n\n"
    "GPU 00000000:1B:00.0\n    GPU UUID : GPU-0\n    Temperature\n        GPU Current Temp : %s\n\n",
    "xml": '<?xml version="1.0" ?>\n<nvidia_smi_log>\n\t<timestamp>Fri Jul  3 22:10:%s 2026</timestamp>\n'
    '\t<gpu id="00000000:1B:00.0">\n\t\t<uuid>GPU-0</uuid>\n'
    "\t\t<temperature><gpu_temp>%s</gpu_temp></temperature>\n\t</gpu>\n</nvidia_smi_log>\n",
}


@pytest.mark.parametrize("log", _LOGS.values(), ids=_LOGS.keys())
@pytest.mark.parametrize(("later", "second"), [("message", 45), ("message and head", 45), ("cells", 50)])
def test_gpu_lost_in_a_later_log_has_no_earlier_values(log: str, later: str, second: int) -> None:
    """Rounds of `-q --loop` and `-q -x --loop`."""
    lost = log % (50, "GPU is lost")
    message = (LOST_MESSAGE % b"1B:00.0").decode()
    head = lost[: lost.index("\n", lost.index("2026")) + 1]
    text = log % (45, "30 C") + {"message": message, "message and head": message + head, "cells": lost}[later]
    (snapshot,) = decoded(text.encode()).snapshots
    (device,) = snapshot.devices
    assert (device.uuid, device.readings["gpu_state"].value) == ("GPU-0", "lost")
    assert device.readings["gpu_temperature_celsius"].absent is Reason.GPU_LOST
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_lost", second)]


@pytest.mark.parametrize("log", _LOGS.values(), ids=_LOGS.keys())
def test_recovery_in_a_later_log_is_an_event(log: str) -> None:
    (snapshot,) = decoded((log % (45, "GPU is lost") + log % (50, "31 C")).encode()).snapshots
    assert snapshot.devices[0].readings["gpu_temperature_celsius"].value == 31
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_recovered", 50), ("gpu_lost", 45)]


_TABLE = "uuid, pci.bus_id, timestamp, temperature.gpu\n" + "".join(
    f"GPU-{bus}, 00000000:{bus}:00.0, 2026/07/03 22:10:%s.000, 3{bus[1]}\n" for bus in ("1A", "1B")
).replace("3A", "30").replace("3B", "31")


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("log", [*_LOGS, "csv"])
def test_gpu_recovers_after_an_output_of_its_message_only(log: str, repeats: int) -> None:
    """A file to which each call of nvidia-smi is appended. It prints nothing else while a GPU is lost."""
    first, last = [_TABLE % (second, second) if log == "csv" else _LOGS[log] % (second, "31 C") for second in (45, 50)]
    message = (LOST_MESSAGE % b"1B:00.0").decode()
    (snapshot,) = decoded((first + message * repeats + last).encode()).snapshots
    states = [device.readings["gpu_state"].value for device in snapshot.devices]
    assert states == ["ok"] * (2 if log == "csv" else 1)
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_recovered", 50), ("gpu_lost", 45)]


def _loop(*lines: str) -> bytes:
    return "\n".join((_TABLE.splitlines()[0], *lines, "")).encode()


def _row(bus: str, second: int) -> str:
    return f"GPU-{bus}, 00000000:{bus}:00.0, 2026/07/03 22:10:{second}.000, 31"


@pytest.mark.parametrize("repeats", [1, 2])
def test_loss_in_a_loop_with_messages_only_has_the_time_before_them(repeats: int) -> None:
    """The header is printed once. A working GPU is printed again together with the GPU that has recovered."""
    messages = [(LOST_MESSAGE.strip() % b"1B:00.0").decode()] * repeats
    (snapshot,) = decoded(_loop(_row("1A", 45), _row("1B", 45), *messages, _row("1A", 50), _row("1B", 50))).snapshots
    assert [device.readings["gpu_state"].value for device in snapshot.devices] == ["ok", "ok"]
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_recovered", 50), ("gpu_lost", 45)]


def test_loss_in_a_loop_has_the_time_of_the_rows_after_its_message() -> None:
    """The row of the lost GPU would precede that of the other one: it is of the next output."""
    message = (LOST_MESSAGE.strip() % b"1A:00.0").decode()
    lines = [_row("1A", 45), _row("1B", 45), message, _row("1B", 50), _row("1A", 55), _row("1B", 55)]
    (snapshot,) = decoded(_loop(*lines)).snapshots
    assert [device.readings["gpu_state"].value for device in snapshot.devices] == ["ok", "ok"]
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_recovered", 55), ("gpu_lost", 50)]


def test_lost_gpu_that_is_left_out_of_an_appended_output_has_its_time() -> None:
    first, last = _TABLE % (45, 45), _TABLE % (50, 50)
    head, row, _ = last.splitlines(keepends=True)
    (snapshot,) = decoded((first + (LOST_MESSAGE % b"1B:00.0").decode() + head + row).encode()).snapshots
    assert [device.readings["gpu_state"].value for device in snapshot.devices] == ["ok", "lost"]
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_lost", 50)]


@pytest.mark.parametrize("log", _LOGS.values(), ids=_LOGS.keys())
@pytest.mark.parametrize("part", [0.2, 0.8])
def test_log_truncated_in_a_later_round_keeps_the_values(log: str, part: float) -> None:
    second = log % (50, "31 C")
    (snapshot,) = decoded((log % (45, "30 C") + second[: int(len(second) * part)]).encode()).snapshots
    (device,) = snapshot.devices
    assert (device.uuid, device.readings["gpu_temperature_celsius"].value) == ("GPU-0", 30)
    assert not snapshot.events


def test_mig_devices_of_a_gpu_lost_in_a_later_round_are_absent() -> None:
    before = decoded(A100_MIG).snapshots[0].devices
    address = before[0].pci_address
    assert address is not None
    (snapshot,) = decoded(A100_MIG + LOST_MESSAGE % address.removeprefix("0000:").encode()).snapshots
    assert [device.instance for device in snapshot.devices] == [device.instance for device in before]
    instances = [device for device in snapshot.devices if device.kind is ViewKind.MIG]
    assert len(instances) == 4
    assert {one.absent for device in instances for one in device.readings.values()} == {Reason.GPU_LOST}


def test_section_without_a_gpu_names_none() -> None:
    bar = "#" * 80
    bodies = [(_LOGS["text"] % (45, "30 C")).replace("1B:00.0", "1C:00.0"), "No devices were found\n"]
    parts = [f"{bar}\n# {at} :: log\n# $ nvidia-smi -q\n{bar}\n{body}" for at, body in enumerate(bodies)]
    result = decoded("\n".join(parts).encode())
    assert [device.pci_address for device in result.snapshots[0].devices] == ["0000:1c:00.0"]
    assert not result.snapshots[0].events
    assert any(note.startswith("nvidia-smi -q: ") for note in result.notes)


def test_recovery_in_a_later_round_is_an_event() -> None:
    head, row = "uuid, pci.bus_id, timestamp, power.draw", "GPU-1, 00000000:1B:00.0, 2026/01/01 00:00:%02d.000, %s"
    lines = [head, row % (0, "99.00 W"), row % (5, "[GPU is lost]"), row % (10, "98.00 W"), ""]
    (snapshot,) = decoded("\n".join(lines).encode()).snapshots
    assert snapshot.devices[0].readings["gpu_power_watts"].value == 98
    assert [(event.kind, event.at.second) for event in snapshot.events] == [("gpu_recovered", 10), ("gpu_lost", 5)]


def test_failure_that_names_a_lost_gpu_shows_it() -> None:
    (snapshot,) = decoded(LOST_MESSAGE % b"3B:00.0").snapshots
    (device,) = snapshot.devices
    assert (device.pci_address, device.readings["gpu_state"].value) == ("0000:3b:00.0", "lost")
    assert device.readings["gpu_power_watts"].absent is Reason.GPU_LOST
    assert [event.kind for event in snapshot.events] == ["gpu_lost"]


def test_first_row_of_a_lost_gpu_hides_no_version_and_no_name() -> None:
    rows = [
        b"GPU-%012d, 00000000:1B:00.0, [GPU is lost], [GPU is lost], [GPU is lost]" % 1,
        b"GPU-%012d, 00000000:1C:00.0, 590.48.01, node-7, 31" % 2,
    ]
    head = b"uuid, pci.bus_id, driver_version, hostname, temperature.gpu"
    (snapshot,) = decoded(b"\n".join((head, *rows, b""))).snapshots
    assert snapshot.node.name == "node-7"
    assert snapshot.host.readings["nvidia_driver_version"].value == "590.48.01"
    assert [device.readings["gpu_state"].value for device in snapshot.devices] == ["lost", "ok"]


def test_truncated_file_reports_the_count_of_the_driver() -> None:
    """The document reports 8 attached GPUs; the file ends within the third."""
    at = [index for index in range(len(H100)) if H100.startswith(b"<gpu id=", index)][2]
    found = decoded(H100[: at + 5000])
    (snapshot,) = found.snapshots
    assert len(snapshot.devices) == 2
    assert snapshot.host.readings["nvidia_devices"].value == 8
    assert snapshot.readers[0].state is ReaderState.PARTIAL
    assert any({"8", "2"} <= set(re.findall(r"\d+", note)) for note in found.notes)
    assert {"8", "2"} <= set(re.findall(r"\d+", snapshot.readers[0].last_error))
    assert (snapshot.aggregate.reporting, snapshot.aggregate.devices) == (2, 8)


@pytest.mark.parametrize("count", ["²", "9" * 30, "many", ""])
def test_count_that_is_no_number_is_ignored(count: str) -> None:
    content = H100.replace(b"<attached_gpus>8</attached_gpus>", f"<attached_gpus>{count}</attached_gpus>".encode())
    assert content != H100
    (snapshot,) = decoded(content).snapshots
    assert snapshot.host.readings["nvidia_devices"].value == len(snapshot.devices) == 8


def test_mig_devices_with_equal_ids_are_not_merged() -> None:
    """Neither of the two is read, and the others are."""
    before = decoded(A100_MIG)
    keys = {device.key for device in before.snapshots[0].devices if device.kind is ViewKind.MIG}
    first, second = re.findall(rb"<gpu_instance_id>\d+</gpu_instance_id>", A100_MIG)[:2]
    assert first != second
    found = decoded(A100_MIG.replace(second, first, 1))
    (snapshot,) = found.snapshots
    left = {device.key for device in snapshot.devices if device.kind is ViewKind.MIG}
    assert left < keys
    assert len(left) == len(keys) - 2
    assert snapshot.readers[0].state is ReaderState.PARTIAL


def test_gpus_with_one_address_are_not_merged() -> None:
    uuids = re.findall(rb"<uuid>(GPU-[^<]+)</uuid>", H100)
    addresses = re.findall(rb"<pci_bus_id>([^<]+)</pci_bus_id>", H100)
    (snapshot,) = decoded(H100.replace(addresses[1], addresses[0])).snapshots
    shown = {device.uuid for device in snapshot.devices}
    assert shown == {uuid.decode() for uuid in uuids[2:]}


def test_health_of_fabric_memory_and_module_is_read() -> None:
    texts = {
        b"<bandwidth>N/A</bandwidth>": b"<bandwidth>Degraded</bandwidth>",
        b"<route_recovery_in_progress>N/A": b"<route_recovery_in_progress>False",
        b"<route_unhealthy>N/A": b"<route_unhealthy>True",
        b"<access_timeout_recovery>N/A": b"<access_timeout_recovery>False",
        b"<channel_repair_pending>No": b"<channel_repair_pending>Yes",
        b"<replay_rollover_counter>0": b"<replay_rollover_counter>3",
    }
    content = H100
    for old, new in texts.items():
        assert old in content
        content = content.replace(old, new, 1)
    device = decoded(content).snapshots[0].devices[0]
    dims = {(dim.metric, *dim.labels.values()): dim.value for dim in device.dimensions}
    assert dims["gpu_fabric_health", "degraded_bandwidth"] == 1
    assert dims["gpu_fabric_health", "route_recovery"] == 0
    assert dims["gpu_fabric_health", "route_unhealthy"] == 1
    assert dims["gpu_fabric_health", "access_timeout_recovery"] == 0
    assert dims["gpu_pcie_errors_total", "replay_rollover"] == 3
    values = {name: reading.value for name, reading in device.readings.items()}
    assert (values["gpu_channel_repair_pending"], values["gpu_tpc_repair_pending"]) == (1, 0)
    assert values["gpu_memory_power_average_watts"] == 32.98
    assert device.readings["gpu_memory_power_watts"].absent is Reason.NOT_SUPPORTED
    assert device.readings["gpu_module_power_limit_max_watts"].absent is Reason.NOT_SUPPORTED


def test_sram_errors_of_mig_devices_are_read() -> None:
    content = A100_MIG.replace(b"<sram_uncorrectable>0", b"<sram_uncorrectable>5", 1)
    assert content != A100_MIG
    migs = [device for device in decoded(content).snapshots[0].devices if device.kind is ViewKind.MIG]
    errors = [dim for device in migs for dim in device.dimensions if dim.metric == "gpu_ecc_location_errors_total"]
    assert [tuple(dim.labels.values()) for dim in errors] == [("sram", "uncorrected")] * len(migs)
    assert sorted(dim.value or 0 for dim in errors) == [*[0] * (len(migs) - 1), 5]


def test_truncated_vgpu_output_is_compared_with_the_count_of_the_driver() -> None:
    gpu = VGPU_HOST.index(b"GPU 00000000:21:00.0")
    start = VGPU_HOST.index(b"    vGPU ID", gpu)
    truncated = VGPU_HOST[: VGPU_HOST.index(b"    vGPU ID", start + 1)]  # after the first of three
    for content, state in ((truncated, ReaderState.PARTIAL), (VGPU_HOST[:gpu], ReaderState.OK)):
        (status, *_) = decoded(content).snapshots[0].readers
        assert status.state is state
        assert ("0000:21:00.0: the driver counts 3" in status.last_error) == (state is ReaderState.PARTIAL)
