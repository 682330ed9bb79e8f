"""nvidia-smi failures: exit codes, partial outputs, and the driver's messages."""

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import normalise_pci_address
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi
from tests.readers.nvidia_smi.conftest import make_reader

LANES = (Lane.STATIC, Lane.SLOW, Lane.FAST)


def gpus(done: Round) -> dict[str, Sample]:
    return {s.view.pci_address: s for s in done.samples if s.view and s.view.pci_address}


def kinds(done: Round) -> list[str]:
    return [event.kind for event in done.events]


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n"
FAULTS: dict[str, tuple[dict[str, Any], Reason, str | Absent]] = {
    "no driver": (
        {"code": 9, "stdout": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"},
        Reason.NO_DRIVER,
        "no_driver",
    ),
    "mismatch": ({"code": 18, "stdout": MISMATCH}, Reason.DRIVER_MISMATCH, "mismatch"),
    "no devices": ({"code": 6, "stdout": "No devices were found\n"}, Reason.NO_SUPPORTED_GPU, "no_supported_gpu"),
    "none bound": (
        {
            "code": 255,
            "stdout": "Failed to initialize NVML: No supported GPUs were found\n"
            "Unable to determine the number of GPUs\n",
        },
        Reason.NO_SUPPORTED_GPU,
        "no_supported_gpu",
    ),
    "no access": (
        {"code": 255, "stdout": "Failed to initialize NVML: Unknown Error\n"},
        Reason.NOT_PERMITTED,
        "no_access",
    ),
    "other": ({"code": 255, "stderr": "something else\n"}, Reason.DRIVER_ERROR, "error"),
    "timeout(1)": ({"code": 124}, Reason.TIMEOUT, "hung"),
    "killed": ({"code": 137, "stdout": "0, 55"}, Reason.TIMEOUT, "hung"),
    "empty": ({"code": 0}, Reason.NO_DATA, "error"),
    "not there": (
        {"code": 127, "stderr": "nvidia-smi: not found\n"},
        Reason.READER_FAILED,
        Absent(Reason.READER_FAILED),
    ),
}


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.parametrize("lane", LANES)
async def test_failed_command_has_its_reason(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, case: str, lane: Lane
) -> None:
    fault, reason, state = FAULTS[case]
    await reader.read(lane)
    smi.fault(**fault)
    with pytest.raises(ReaderError) as raised:
        await reader.read(lane)
    assert raised.value.absence is reason
    message = (fault.get("stdout") or fault.get("stderr") or "nvidia-smi").split("\n")[0]
    assert message in str(raised.value)
    samples = raised.value.round.samples if raised.value.round is not None else ()
    assert all(sample.view is None for sample in samples)
    if lane is Lane.FAST:
        (machine,) = samples
        assert machine.values == {"nvidia_devices": Absent(reason), "nvidia_driver_state": state}
    smi.heal()
    assert len(gpus(await reader.read(lane))) == 8


@pytest.mark.parametrize("case", FAULTS)
async def test_failure_of_the_first_pass_has_its_reason(smi: FakeNvidiaSmi, reader: NvidiaSmiReader, case: str) -> None:
    fault, reason, _ = FAULTS[case]
    smi.fault(**fault)
    with pytest.raises(ReaderError) as raised:
        await reader.read(Lane.FAST)
    assert raised.value.absence is reason


async def test_missing_program_is_reader_failed(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    smi.remove()
    with pytest.raises(ReaderError, match="nvidia-smi") as raised:
        await reader.read(Lane.FAST)
    assert raised.value.absence is Reason.READER_FAILED


async def test_hanging_program_is_a_timeout(smi: FakeNvidiaSmi) -> None:
    smi.fault("table", hang=True)
    with pytest.raises(ReaderError) as raised:
        await make_reader(smi, timeout_seconds=1).read(Lane.FAST)
    assert raised.value.absence is Reason.TIMEOUT


LOST = (
    "Unable to determine the device handle for GPU0000:64:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)


async def test_error_line_affects_only_the_device_it_names(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    await reader.read(Lane.FAST)
    rows = [row for row in smi.scenario["rows"] if row["index"] != "1"]
    smi.write(before=LOST, rows=rows, code=15)
    done = await reader.read(Lane.FAST)
    found = gpus(done)
    assert len(found) == 8
    lost = found.pop("0000:64:00.0")
    assert lost.values["gpu_state"] == "lost"
    assert lost.values["gpu_temperature_celsius"] == Absent(Reason.GPU_LOST)
    assert {sample.values["gpu_state"] for sample in found.values()} == {"ok"}
    assert LOST.strip() in done.errors
    assert any("8 GPUs" in error and "7" in error for error in done.errors)


async def test_unknown_device_in_an_error_is_known_by_address(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    whole = smi.scenario["rows"]
    smi.write(before=LOST, rows=[row for row in whole if row["index"] != "1"])
    done = await reader.read(Lane.FAST)
    lost = gpus(done)["0000:64:00.0"]
    assert lost.view is not None
    assert lost.view.uuid is None
    assert lost.values["gpu_state"] == "lost"
    assert kinds(done) == ["gpu_lost"]
    assert LOST.strip() in done.errors
    smi.write(before="", rows=whole)
    assert kinds(await reader.read(Lane.FAST)) == ["gpu_recovered"]


async def test_error_about_a_listed_device_keeps_its_values(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    await reader.read(Lane.FAST)
    smi.write(before=LOST)
    done = await reader.read(Lane.FAST)
    assert len([sample for sample in done.samples if sample.view]) == 8
    named = gpus(done)["0000:64:00.0"].values
    assert named["gpu_temperature_celsius"] == 41
    assert named["gpu_state"] == "lost"
    assert kinds(done) == ["gpu_lost"]


@pytest.mark.parametrize("between", ["pass without the GPU", "close"])
async def test_lost_gpu_is_one_failure_if_its_uuid_is_dropped(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, between: str
) -> None:
    rows = smi.scenario["rows"]
    without = [row for row in rows if row["index"] != "1"]
    await reader.read(Lane.FAST)
    smi.write(before=LOST, rows=without, code=15)
    found = kinds(await reader.read(Lane.FAST))
    if between == "close":
        await reader.close()
    else:
        smi.write(before="", rows=[{**row, "count": "7"} for row in without], code=0)
        found += kinds(await reader.read(Lane.FAST))
    smi.write(before=LOST, rows=without, code=15)
    found += kinds(await reader.read(Lane.FAST))
    smi.write(before="", rows=rows, code=0)
    found += kinds(await reader.read(Lane.FAST))
    assert found == ["gpu_lost", "gpu_recovered"]


UNKNOWN = "Unable to determine the device handle for GPU0000:64:00.0: Unknown Error\n"
"""Printed for a GPU that fell off the bus, as often as `GPU is lost`."""


async def test_unknown_error_about_a_device_is_a_failure(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    await reader.read(Lane.FAST)
    rows = smi.scenario["rows"]
    smi.write(before=UNKNOWN)
    listed = await reader.read(Lane.FAST)
    assert gpus(listed)["0000:64:00.0"].values["gpu_state"] == "error"
    assert kinds(listed) == ["gpu_failed"]
    smi.write(before=UNKNOWN, rows=[row for row in rows if row["index"] != "1"])
    assert gpus(await reader.read(Lane.FAST))["0000:64:00.0"].values["gpu_state"] == "unreadable"


WHOLE = {
    "lost": (LOST, Reason.DRIVER_ERROR, "lost", ["gpu_lost"]),
    "unknown": (
        "Unable to determine the device handle for GPU1: 0000:64:00.0: Unknown Error\nNo devices were found\n",
        Reason.NO_SUPPORTED_GPU,
        "unreadable",
        ["gpu_failed"],
    ),
}
"""Outputs without any row: of a machine whose only GPU is lost. The reason of the pass is none of that GPU's."""


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("first", [True, False])
async def test_only_gpu_of_a_machine_is_lost(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, case: str, *, first: bool
) -> None:
    text, reason, state, events = WHOLE[case]
    if not first:
        known = gpus(await reader.read(Lane.FAST))["0000:64:00.0"].view
    smi.fault("table", code=15, stdout=text)
    with pytest.raises(ReaderError) as raised:
        await reader.read(Lane.FAST)
    assert raised.value.absence is reason
    done = raised.value.round
    assert done is not None
    lost = gpus(done)["0000:64:00.0"]
    assert lost.values["gpu_state"] == state
    assert first or lost.view == known
    assert kinds(done) == events
    assert [sample.values["nvidia_driver_state"] for sample in done.samples if sample.view is None]


async def test_gpu_that_a_log_without_devices_names_is_failed(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    smi.fault("log", code=15, stdout=f"{UNKNOWN}<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>\n")
    smi.fault("table", code=15, stdout=UNKNOWN)
    with pytest.raises(ReaderError) as raised:
        await reader.read(Lane.STATIC)
    assert raised.value.round is not None
    assert gpus(raised.value.round).keys() == {"0000:64:00.0"}


async def test_lost_gpu_is_no_reason_of_the_other_gpus(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    """The query of processes prints the error of one GPU only."""
    smi.write(before=LOST, rows=[row for row in smi.scenario["rows"] if row["index"] != "1"], code=15)
    smi.fault("apps", code=15, stdout=LOST)
    found = gpus(await reader.read(Lane.FAST))
    assert found.pop("0000:64:00.0").values["gpu_compute_processes"] == Absent(Reason.GPU_LOST)
    counts = {sample.values["gpu_compute_processes"] for sample in found.values()}
    assert counts == {Absent(Reason.DRIVER_ERROR, "--query-compute-apps")}


@pytest.mark.parametrize("failing", ["apps", "log", "list"])
async def test_each_message_of_a_failed_command_is_about_its_own_gpu(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, failing: str
) -> None:
    await reader.read(Lane.STATIC)
    first = UNKNOWN.replace("0000:64", "0000:53")
    smi.write(before=first + LOST, rows=[row for row in smi.scenario["rows"] if row["index"] not in "01"], code=15)
    smi.fault(failing, code=15, stdout=first + LOST)
    done = await reader.read(Lane.FAST)
    found = gpus(done)
    assert found["0000:53:00.0"].values["gpu_state"] == "unreadable"
    assert found["0000:64:00.0"].values["gpu_state"] == "lost"
    assert sorted(kinds(done)) == ["gpu_failed", "gpu_lost"]


def without_uuid(row: dict[str, str], **changed: str) -> dict[str, str]:
    return {**row, "uuid": "[N/A]", **changed}


async def test_address_names_a_gpu_only_with_proof_of_its_loss(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    known = gpus(await reader.read(Lane.FAST))["0000:64:00.0"].view
    rows = smi.scenario["rows"]
    smi.write(rows=[rows[0], without_uuid(rows[1]), *rows[2:]])
    other = gpus(await reader.read(Lane.FAST))["0000:64:00.0"].view
    assert known is not None
    assert other is not None
    assert (known.uuid, other.uuid) == (rows[1]["uuid"], None)
    smi.write(rows=rows)
    await reader.read(Lane.FAST)
    smi.write(rows=[rows[0], without_uuid(rows[1], **{"temperature.gpu": "[GPU is lost]"}), *rows[2:]])
    lost = gpus(await reader.read(Lane.FAST))["0000:64:00.0"]
    assert lost.view is not None
    assert lost.view.uuid == rows[1]["uuid"]


async def test_lost_gpu_without_an_address_is_one_gpu(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    """The CSV row lacks the address, which the XML of the same pass has."""
    rows = smi.scenario["rows"]
    listed = [device.attrib["id"] for device in ET.fromstring(smi.scenario["log"]).iter("gpu")]
    uuids = [device.findtext("uuid", "") for device in ET.fromstring(smi.scenario["log"]).iter("gpu")]
    lost = "[GPU is lost]"
    smi.write(rows=[{**rows[0], "uuid": uuids[0], "pci.bus_id": lost, "vbios_version": lost}])
    found = gpus(await reader.read(Lane.STATIC))
    view = found[normalise_pci_address(listed[0])].view
    assert view is not None
    assert view.uuid == uuids[0]
    assert len(found) == len(listed)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("[GPU requires restart]", "reset_required"),
        ("[Timeout]", "error"),
        ("Interrupt Request Issue", "error"),
        ("[Corrupted infoROM]", "error"),
        ("[Driver Not Loaded]", "error"),
        ("[In use by another client]", "error"),
        ("[No GPUs were found]", "error"),
        ("[GPU is lost.]", "lost"),
    ],
)
async def test_every_text_of_a_return_code_is_evidence(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, text: str, state: str
) -> None:
    rows = smi.scenario["rows"]
    core = ("temperature.gpu", "power.draw", "utilization.gpu")
    smi.write(rows=[rows[0], {**rows[1], **dict.fromkeys(core, text)}, *rows[2:]])
    assert gpus(await reader.read(Lane.FAST))["0000:64:00.0"].values["gpu_state"] == state


async def test_row_of_a_lost_gpu(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    keep = ("uuid", "pci.bus_id", "index", "count", "driver_version")
    rows = smi.scenario["rows"]
    rows[2] = {name: text if name in keep else "[GPU is lost]" for name, text in rows[2].items()}
    smi.write(rows=rows)
    found = gpus(await reader.read(Lane.FAST))
    assert [sample.values["gpu_state"] for sample in found.values()].count("lost") == 1
    lost = found["0000:75:00.0"].values
    assert lost["gpu_power_watts"] == Absent(Reason.GPU_LOST, "power.draw")
    assert lost["gpu_compute_processes"] == Absent(Reason.GPU_LOST)


def without_identity(row: dict[str, str], text: str = "[GPU is lost]") -> dict[str, str]:
    return {name: cell if name in ("index", "count") else text for name, cell in row.items()}


@pytest.mark.parametrize("numbers", [(1,), (1, 4)])
async def test_lost_rows_without_identity_are_the_missing_gpus(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, numbers: tuple[int, ...]
) -> None:
    known = {address: sample.view for address, sample in gpus(await reader.read(Lane.FAST)).items()}
    rows = smi.scenario["rows"]
    smi.write(rows=[without_identity(row) if at in numbers else row for at, row in enumerate(rows)])
    for began in (True, False):
        done = await reader.read(Lane.FAST)
        found = gpus(done)
        assert {address: sample.view for address, sample in found.items()} == known
        assert [sample.values["gpu_state"] for sample in found.values()].count("lost") == len(numbers)
        assert kinds(done) == ["gpu_lost"] * (len(numbers) if began else 0)
    smi.write(rows=rows)
    assert kinds(await reader.read(Lane.FAST)) == ["gpu_recovered"] * len(numbers)


@pytest.mark.parametrize("text", ["[GPU is lost]", "[Unknown Error]"])
async def test_row_without_identity_names_no_gpu_if_another_one_is_missing(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, text: str
) -> None:
    await reader.read(Lane.FAST)
    first, second, _, *rows = smi.scenario["rows"]
    smi.write(rows=[first, without_identity(second, text), *rows])
    done = await reader.read(Lane.FAST)
    assert {sample.values["gpu_state"] for sample in gpus(done).values()} == {"ok"}
    assert len(gpus(done)) == 6
    assert any("without UUID and PCI address" in error for error in done.errors)


async def test_missing_gpu_that_a_message_names_is_not_that_of_a_row(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader
) -> None:
    await reader.read(Lane.FAST)
    first, _, third, *rows = smi.scenario["rows"]
    smi.write(before=UNKNOWN, rows=[first, without_identity(third), *rows], code=15)
    found = gpus(await reader.read(Lane.FAST))
    assert found["0000:64:00.0"].values["gpu_state"] == "unreadable"
    assert found["0000:75:00.0"].values["gpu_state"] == "lost"


async def test_output_truncated_within_a_row(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    await reader.read(Lane.FAST)
    columns = next(call for call in smi.calls if call.startswith("--query-gpu="))
    fields = columns.split()[0].partition("=")[2].split(",")
    whole = ", ".join(smi.scenario["rows"][0][field] for field in fields)
    smi.fault("table", stdout=f"{whole}\n{whole[:60]}", code=0)
    done = await reader.read(Lane.FAST)
    assert list(gpus(done)) == ["0000:53:00.0"]
    assert any("values" in error for error in done.errors)


async def test_gpus_that_share_a_uuid_are_named_by_address(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    rows = smi.scenario["rows"]
    rows[1]["uuid"] = rows[0]["uuid"]
    smi.write(rows=rows)
    done = await reader.read(Lane.FAST)
    found = gpus(done)
    keys = [found[address].view for address in ("0000:53:00.0", "0000:64:00.0")]
    assert [view.key for view in keys if view] == ["gpu/pci/0000:53:00.0", "gpu/pci/0000:64:00.0"]
    assert any(rows[0]["uuid"] in error for error in done.errors)


async def test_failed_process_query_affects_only_its_metric(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    smi.fault("apps", code=4, stdout="Insufficient Permissions\n")
    done = await reader.read(Lane.FAST)
    first = gpus(done)["0000:53:00.0"]
    assert first.values["gpu_compute_processes"] == Absent(Reason.NOT_PERMITTED, "--query-compute-apps")
    assert first.values["gpu_state"] == "ok"
    assert done.errors == ("Insufficient Permissions",)


async def test_control_characters_are_removed_from_errors(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    smi.fault(code=255, stdout="\x1b[2J\x07boom\r\n" * 3)
    with pytest.raises(ReaderError) as raised:
        await reader.read(Lane.FAST)
    assert str(raised.value).isprintable()


async def test_endless_output_is_bounded(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    smi.fault("table", endless=True)
    with pytest.raises(ReaderError) as raised:
        await reader.read(Lane.FAST)
    assert raised.value.absence is Reason.READER_FAILED
