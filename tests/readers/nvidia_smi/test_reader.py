"""nvidia-smi reader over a real process that prints captured outputs."""

from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import ViewKind
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi, help_of, scenario_of_capture, xml
from tests.readers.nvidia_smi.conftest import make_reader

LANES = (Lane.STATIC, Lane.SLOW, Lane.FAST)
A100 = "GPU-513536b6-7d19-9063-b049-1e69664bb298"


def gpus(done: Round) -> list[Sample]:
    return [sample for sample in done.samples if sample.view and sample.view.kind is ViewKind.GPU]


def migs(done: Round) -> list[Sample]:
    return [sample for sample in done.samples if sample.view and sample.view.kind is ViewKind.MIG]


def machine(done: Round) -> Sample:
    (own,) = [sample for sample in done.samples if sample.view is None]
    return own


async def test_eight_gpus_on_every_lane(reader: NvidiaSmiReader) -> None:
    for lane in LANES:
        done = await reader.read(lane)
        assert done.errors == ()
        assert len(gpus(done)) == 8
        for sample in done.samples:
            assert sample.reader == "nvidia_smi"
            assert {CATALOGUE[name].lane for name in sample.values} == {lane}
    fast = gpus(done)
    assert [sample.values["gpu_temperature_celsius"] for sample in fast] == [float(40 + n) for n in range(8)]
    first = fast[0]
    assert first.view is not None
    assert first.view.key == "gpu/GPU-00000000-0000-0000-0000-000000000000"
    assert (first.view.pci_address, first.view.index) == ("0000:53:00.0", 0)
    assert first.values["gpu_memory_used_bytes"] == 32362 << 20
    assert first.values["gpu_power_watts"] == 627.40
    assert first.values["gpu_utilization_ratio"] == 1.0
    encoder = "gpu_encoder_utilization_ratio"
    assert first.values[encoder] == Absent(Reason.NOT_SUPPORTED, encoder)  # 0 %, of an H200
    assert first.values["gpu_state"] == "ok"


async def test_processes_are_counted_by_the_uuid_of_their_gpu(reader: NvidiaSmiReader) -> None:
    fast = gpus(await reader.read(Lane.FAST))
    assert [sample.values["gpu_compute_processes"] for sample in fast] == [3, 0, 0, 0, 0, 0, 0, 0]


async def test_machine_readings(reader: NvidiaSmiReader) -> None:
    static = machine(await reader.read(Lane.STATIC))
    assert static.values == {"nvidia_driver_version": "580.105.08", "nvidia_cuda_version": "13.0"}
    fast = machine(await reader.read(Lane.FAST))
    assert fast.values == {"nvidia_devices": 8, "nvidia_driver_state": "ok"}


async def test_help_is_queried_once_per_driver_version(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    for _ in range(3):
        for lane in LANES:
            await reader.read(lane)
    assert smi.calls.count("--help-query-gpu") == 1
    smi.write(rows=[{**row, "driver_version": "590.1"} for row in smi.scenario["rows"]])
    await reader.read(Lane.FAST)
    await reader.read(Lane.FAST)
    assert smi.calls.count("--help-query-gpu") == 2


async def test_only_supported_fields_are_queried(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    old = ("uuid", "pci.bus_id", "power.draw", "clocks_throttle_reasons.active")
    rows = [{**row, "clocks_throttle_reasons.active": "0x0000000000000004"} for row in smi.scenario["rows"]]
    smi.write(help=help_of(old), rows=[{name: row[name] for name in old} for row in rows])
    done = await reader.read(Lane.FAST)
    assert done.errors == ()
    values = gpus(done)[0].values
    assert values["gpu_power_watts"] == 627.40
    assert values["gpu_clock_event_reasons_mask"] == 4
    assert values["gpu_temperature_celsius"] == Absent(Reason.NOT_IN_DRIVER, "temperature.gpu")


async def test_fast_and_slow_lanes_query_one_table_each(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    await reader.read(Lane.STATIC)
    before = len(smi.calls)
    await reader.read(Lane.SLOW)
    await reader.read(Lane.FAST)
    kinds = [call.partition("=")[0] for call in smi.calls[before:]]
    assert kinds == ["--query-gpu", "--query-gpu", "--query-compute-apps"]


@pytest.fixture
def mig(tmp_path: Path) -> FakeNvidiaSmi:
    """Return a fake with one A100 in MIG mode, from a real machine's XML and a matching device list."""
    listed = "".join(f"  MIG 1g.20gb     Device  {n}: (UUID: MIG-{n:08d}-aaaa)\n" for n in range(4))
    row = {
        **scenario_of_capture("capture-h200-mig__590.48.01.txt", "idle")["rows"][0],
        "uuid": A100,
        "pci.bus_id": "00000000:01:00.0",
        "name": "NVIDIA A100-SXM4-80GB",
    }
    return FakeNvidiaSmi(
        tmp_path,
        help=help_of(row),
        rows=[row],
        log=xml("xml-a100-mig-v12.xml").replace("<attached_gpus>4", "<attached_gpus>1"),
        list=f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {A100})\n{listed}",
    )


async def test_mig_devices_are_read_and_named_by_their_uuids(mig: FakeNvidiaSmi) -> None:
    reader = make_reader(mig)
    static = await reader.read(Lane.STATIC)
    assert static.errors == ()
    assert [sample.values["gpu_name"] for sample in migs(static)] == ["NVIDIA A100-SXM4-80GB MIG 1g.20gb"] * 4
    fast = await reader.read(Lane.FAST)
    assert fast.errors == ()
    assert [sample.view.key for sample in migs(fast) if sample.view] == [f"mig/MIG-{n:08d}-aaaa" for n in range(4)]
    first = migs(fast)[0]
    assert first.view is not None
    assert first.view.parent == f"gpu/{A100}"
    assert first.values["gpu_memory_used_bytes"] == 12 << 20
    assert (first.values["mig_gpu_instance"], first.values["mig_profile"]) == ("3", "1g.20gb")
    (parent,) = gpus(fast)
    assert parent.values["gpu_utilization_ratio"] == Absent(Reason.NOT_IN_MIG_MODE)
    assert parent.values["gpu_mig_devices"] == 4
    assert machine(fast).values["nvidia_devices"] == 1


async def test_mig_devices_of_a_lost_gpu_are_absent(mig: FakeNvidiaSmi) -> None:
    reader = make_reader(mig)
    await reader.read(Lane.STATIC)
    before = migs(await reader.read(Lane.FAST))
    address = mig.scenario["rows"][0]["pci.bus_id"]
    mig.fault("*", code=15, stdout=f"Unable to determine the device handle for GPU{address}: GPU is lost.\n")
    with pytest.raises(ReaderError) as raised:
        await reader.read(Lane.FAST)
    assert raised.value.round is not None
    found = migs(raised.value.round)
    assert [sample.view for sample in found] == [sample.view for sample in before]
    assert {value for sample in found for value in sample.values.values()} == {Absent(Reason.GPU_LOST)}


async def test_mig_devices_that_change_during_a_pass_are_skipped(mig: FakeNvidiaSmi) -> None:
    reader = make_reader(mig)
    await reader.read(Lane.STATIC)
    mig.write(list=mig.scenario["list"].replace("Device  3", "Device  5"))
    done = await reader.read(Lane.FAST)
    assert migs(done) == []
    assert len(gpus(done)) == 1
    assert "-L and -q list different MIG devices" in done.errors[0]


async def test_mig_devices_recreated_during_a_pass_are_skipped(mig: FakeNvidiaSmi) -> None:
    before = mig.scenario["list"]
    mig.write(lists=[before, before.replace("MIG-00000003-aaaa", "MIG-00000003-bbbb")])
    reader = make_reader(mig)
    done = await reader.read(Lane.STATIC)
    assert migs(done) == []
    assert len(done.errors) == 1
    assert len(migs(await reader.read(Lane.STATIC))) == 4


async def test_gpu_lost_after_a_change_of_mig_devices_keeps_its_identity(mig: FakeNvidiaSmi) -> None:
    """The MIG devices of the second GPU changed during the pass before."""
    log, one, row = mig.scenario["log"], mig.scenario["list"], mig.scenario["rows"][0]
    at, end = log.index("<gpu id="), log.index("</nvidia_smi_log>")
    head, gpu = log[:at].replace("<attached_gpus>1", "<attached_gpus>2"), log[at:end]

    def second(text: str) -> str:
        moved = text.replace(A100, A100.replace("5", "6", 1)).replace("00000000:01:00.0", "00000000:02:00.0")
        return moved.replace("GPU 0", "GPU 1").replace("-aaaa", "-bbbb")

    rows = [{**row, "index": str(index), "count": "2"} for index in range(2)]
    rows[1] |= {"uuid": second(A100), "pci.bus_id": second(row["pci.bus_id"])}
    both = one + second(one)
    changed = one + second(one).replace("MIG-00000003", "MIG-00000009")
    mig.write(rows=rows, log=f"{head}{gpu}{second(gpu)}</nvidia_smi_log>\n", list=both)
    reader = make_reader(mig)
    await reader.read(Lane.STATIC)
    known = await reader.read(Lane.FAST)
    assert len(migs(known)) == 8
    mig.write(lists=[both] * (mig.calls.count("-L") + 1) + [changed] * 2)
    assert migs(await reader.read(Lane.FAST)) == []
    mig.scenario.pop("lists")
    message = "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.\n"
    mig.write(
        rows=rows[1:],
        log=f"{message}{head}{second(gpu)}</nvidia_smi_log>\n",
        list=message + second(one),
        before=message,
    )
    lost = await reader.read(Lane.FAST)
    assert {sample.view for sample in gpus(lost)} == {sample.view for sample in gpus(known)}
    assert [(event.kind, event.view) for event in lost.events] == [("gpu_lost", gpus(known)[0].view)]
    absent = [sample for sample in migs(lost) if sample.view and sample.view.parent == f"gpu/{A100}"]
    assert len(absent) == 4
    assert all(isinstance(value, Absent) for sample in absent for value in sample.values.values())


async def test_mig_devices_without_a_list_are_not_read(mig: FakeNvidiaSmi) -> None:
    mig.fault("list", code=255, stdout="Unknown Error\n")
    done = await make_reader(mig).read(Lane.STATIC)
    assert migs(done) == []
    assert gpus(done)[0].values["gpu_name"] == "NVIDIA A100-SXM4-80GB"
    assert any("MIG devices" in error for error in done.errors)


async def test_table_alone_does_not_prove_that_there_is_no_mig(mig: FakeNvidiaSmi) -> None:
    reader = make_reader(mig)
    await reader.read(Lane.STATIC)
    mig.fault("log", code=255, stdout="Unknown Error\n")
    done = await reader.read(Lane.FAST)
    (parent,) = gpus(done)
    assert parent.values["gpu_mig_devices"] == Absent(Reason.NOT_REPORTED, "mig_devices")
    assert parent.values["gpu_compute_processes"] == Absent(Reason.NOT_REPORTED, "processes")
    assert parent.values["gpu_temperature_celsius"] == 28.0
    assert done.errors
