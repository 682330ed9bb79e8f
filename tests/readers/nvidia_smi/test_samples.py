"""State of a GPU by the cells that nvidia-smi printed, and the events that follow."""

import pytest

from gpufleet.codecs.nvidia_smi import DeviceRecord
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.nvidia_smi.mapping.devices import map_vgpu
from gpufleet.readers.nvidia_smi.samples import printed_reason
from gpufleet.readers.nvidia_smi.views import Gpu, mig_instances, vgpu_instances
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi, help_of

ADDRESS = "0000:75:00.0"
IDENTITY = ("uuid", "pci.bus_id", "index", "count", "driver_version")
CORE = ("temperature.gpu", "power.draw", "clocks.current.sm", "clocks.current.memory", "memory.used", "utilization.gpu")


def cells(smi: FakeNvidiaSmi, text: str, *, kept: tuple[str, ...] = ()) -> None:
    """Replace the cells of the third GPU, except its identity and the kept ones."""
    rows = [dict(row) for row in smi.scenario["rows"]]
    rows[2] = {name: cell if name in (*IDENTITY, *kept) else text for name, cell in rows[2].items()}
    smi.write(rows=rows)


def sick(done: Round) -> Sample:
    (found,) = [sample for sample in done.samples if sample.view is not None and sample.view.pci_address == ADDRESS]
    return found


@pytest.mark.parametrize("kept", [(), ("pstate",), ("pstate", "fan.speed", "clocks.current.video")])
@pytest.mark.parametrize(
    ("text", "state", "kinds"),
    [
        ("[GPU is lost]", "lost", ["gpu_lost"]),
        ("[GPU requires reset]", "reset_required", ["gpu_reset_required"]),
        ("[Unknown Error]", "error", ["gpu_failed"]),
    ],
)
async def test_surviving_cells_do_not_make_a_sick_gpu_ok(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, text: str, state: str, kinds: list[str], kept: tuple[str, ...]
) -> None:
    cells(smi, text, kept=kept)
    done = await reader.read(Lane.FAST)
    assert sick(done).values["gpu_state"] == ("unreadable" if state == "error" and not kept else state)
    assert [event.kind for event in done.events] == kinds
    assert all(event.view == sick(done).view for event in done.events)
    assert [sample.values["gpu_state"] for sample in done.samples if sample.view].count("ok") == 7


@pytest.mark.parametrize("text", ["[Unknown Error]", "System is not in ready state"])
@pytest.mark.parametrize("cell", CORE)
async def test_driver_error_of_a_core_reading_is_an_error(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, cell: str, text: str
) -> None:
    rows = smi.scenario["rows"]
    assert cell in rows[2]
    rows[2][cell] = text
    smi.write(rows=rows)
    assert sick(await reader.read(Lane.FAST)).values["gpu_state"] == "error"


@pytest.mark.parametrize("cell", ["Yes", "[GPU requires reset]"])
async def test_printed_reset_status_is_the_state_in_every_pass(
    smi: FakeNvidiaSmi, reader: NvidiaSmiReader, cell: str
) -> None:
    field = "reset_status.reset_required"
    rows = [{**row, field: "No"} for row in smi.scenario["rows"]]
    rows[2][field] = cell
    smi.write(rows=rows, help=help_of(rows[2]))
    done = await reader.read(Lane.FAST)
    assert sick(done).values["gpu_state"] == "reset_required"
    assert [event.kind for event in done.events] == ["gpu_reset_required"]
    smi.write(rows=[{**row, field: "No"} for row in rows])
    assert [event.kind for event in (await reader.read(Lane.FAST)).events] == ["gpu_recovered"]


async def test_loss_and_recovery_are_events(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    healthy = list(smi.scenario["rows"])
    assert (await reader.read(Lane.FAST)).events == ()
    cells(smi, "[GPU is lost]", kept=("pstate",))
    assert [event.kind for event in (await reader.read(Lane.FAST)).events] == ["gpu_lost"]
    await reader.read(Lane.SLOW)
    assert (await reader.read(Lane.FAST)).events == ()
    smi.write(rows=healthy)
    assert [event.kind for event in (await reader.read(Lane.FAST)).events] == ["gpu_recovered"]


async def test_lost_gpu_that_prints_no_uuid_keeps_its_own(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    known = sick(await reader.read(Lane.FAST)).view
    rows = [dict(row) for row in smi.scenario["rows"]]
    rows[2] = {name: cell if name == "pci.bus_id" else "[GPU is lost]" for name, cell in rows[2].items()}
    smi.write(rows=rows)
    lost = sick(await reader.read(Lane.FAST))
    assert lost.view is not None
    assert known is not None
    assert (lost.view.key, lost.values["gpu_state"]) == (known.key, "lost")


async def test_counts_of_a_lost_gpu_are_absent(smi: FakeNvidiaSmi, reader: NvidiaSmiReader) -> None:
    cells(smi, "[GPU is lost]", kept=("pstate",))
    assert sick(await reader.read(Lane.FAST)).values["gpu_compute_processes"] == Absent(Reason.GPU_LOST)


def test_lost_cell_of_a_vgpu_instance_is_of_its_gpu() -> None:
    gpu = DeviceRecord(name="x", vgpus=(DeviceRecord(name="1", leaves={"fb_memory_usage/used": "GPU is lost"}),))
    assert printed_reason(gpu) is Reason.GPU_LOST


@pytest.mark.parametrize("cell", ["used_memory", "used_gpu_memory"])
def test_lost_memory_of_a_process_is_of_its_gpu(cell: str) -> None:
    gpu = DeviceRecord(name="x", processes=({"pid": "7", "type": "C", cell: "GPU is lost"},))
    assert printed_reason(gpu) is Reason.GPU_LOST


def test_lost_sentence_in_any_cell_is_evidence() -> None:
    sentence = "GPU is lost.  Reboot the system to recover this GPU"
    assert printed_reason(DeviceRecord(name="x", fields={"vbios_version": sentence})) is Reason.GPU_LOST


def test_texts_of_a_guest_are_no_evidence_about_the_gpu() -> None:
    leaves = {"vm_uuid": "GPU is lost", "guest_driver_version": "GPU is lost", "fb_memory_usage/used": "1 MiB"}
    vgpu = DeviceRecord(name="1", leaves=leaves)
    values = {name: value for lane in Lane for name, value in map_vgpu(vgpu, DeviceRecord(name="0"), lane).items()}
    chosen = {values["vgpu_vm_id"], values["vgpu_guest_driver_version"]}
    assert chosen == {Absent(Reason.INVALID_VALUE, "vm_uuid"), Absent(Reason.INVALID_VALUE, "guest_driver_version")}
    assert printed_reason(DeviceRecord(name="x", vgpus=(vgpu,))) is None


@pytest.mark.parametrize("text", ["[Unknown Error]", "[Invalid State]"])
def test_text_of_an_error_is_no_number_of_an_instance(text: str) -> None:
    mig = DeviceRecord(name="0", leaves={"index": "0", "gpu_instance_id": text, "compute_instance_id": "0"})
    vgpu = DeviceRecord(name=text, leaves={"vgpu_uuid": text})
    gpu = Gpu(View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1"), DeviceRecord(name="x", mig=(mig,), vgpus=(vgpu,)))
    ((_, instance),), _ = mig_instances([gpu], None)
    assert instance.view.instance == "?/0@GPU-1"
    assert vgpu_instances([gpu])[0] == []


def test_names_of_tenants_are_no_evidence_about_the_gpu() -> None:
    named = DeviceRecord(name="1", leaves={"vm_name": "GPU is lost", "vm_uuid": "GPU is lost"})
    process = {"process_name": "GPU is lost", "name": "GPU is lost"}
    assert printed_reason(DeviceRecord(name="x", vgpus=(named,), processes=(process,))) is None
