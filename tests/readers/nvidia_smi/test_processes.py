"""Process lists in every nvidia-smi format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.process import PROCESS_READINGS, Process
from gpufleet.readers.nvidia_smi.mapping.devices import GpuModes
from gpufleet.readers.nvidia_smi.mapping.processes import list_processes
from gpufleet.readers.nvidia_smi.samples import gpu_sample, instance_samples
from gpufleet.readers.nvidia_smi.views import identify
from tests.readers.nvidia_smi.test_captures import OUTPUTS


def process(pid: int, memory: int | Absent, *kinds: str) -> Process:
    shares = {name: Absent(Reason.NOT_REPORTED) for name in PROCESS_READINGS if name != "memory_bytes"}
    return Process(pid=pid, kinds=kinds, start_time=None, values={"memory_bytes": memory, **shares})


def test_process_rows_of_xml_csv_and_text() -> None:
    xml = {"gpu_instance_id": "N/A", "pid": "12", "type": "C", "process_name": "/bin/x", "used_memory": "2566 MiB"}
    text = {"process_id": "7", "type": "G", "name": "/usr/lib/xorg/Xorg", "used_gpu_memory": "23 MiB"}
    csv = {"gpu_uuid": "GPU-1", "pid": "13", "used_memory": "[N/A]", "type": "C"}
    assert list_processes([xml, text, csv]) == (
        process(7, 23 << 20, "graphics"),
        process(12, 2566 << 20, "compute"),
        process(13, Absent(Reason.NOT_SUPPORTED, "used_memory"), "compute"),
    )


@pytest.mark.parametrize("text", ["2566", "2566 KiB", "-1 MiB", "1e9 MiB", "9" * 30 + " MiB", "much"])
def test_invalid_process_memory_affects_only_itself(text: str) -> None:
    (found,) = list_processes([{"pid": "1", "type": "C+G", "used_memory": text}])
    assert found == process(1, Absent(Reason.INVALID_VALUE, "used_memory"), "compute", "graphics")


@pytest.mark.parametrize("row", [{}, {"pid": ""}, {"pid": "-1"}, {"pid": "4294967296"}, {"pid": "1.5"}, {"pid": "x"}])
def test_row_without_a_process_id_is_ignored(row: dict[str, str]) -> None:
    assert list_processes([row]) == ()


def test_process_on_two_mig_devices_has_the_memory_of_both() -> None:
    rows = [{"pid": "5", "type": "C", "used_memory": f"{size} MiB"} for size in (3, 4)]
    assert list_processes(rows) == (process(5, 7 << 20, "compute"),)
    assert list_processes([*rows, {"pid": "5", "type": "C", "used_memory": "N/A"}]) == (
        process(5, Absent(Reason.NOT_SUPPORTED, "used_memory"), "compute"),
    )


names = st.sampled_from(["pid", "process_id", "type", "used_memory", "used_gpu_memory", "x"])


@given(st.lists(st.dictionaries(names, st.text(max_size=12) | st.from_regex(r"[0-9]{1,12}( MiB)?", fullmatch=True))))
def test_any_rows_give_processes(rows: list[dict[str, str]]) -> None:
    found = list_processes(rows)
    assert len({one.pid for one in found}) == len(found) <= len(rows)


def test_processes_of_captured_machines() -> None:
    """An empty process list means no processes. A missing list means that nothing is known."""
    found: dict[str, list[tuple[int, int | float | Absent]]] = {}
    for output in OUTPUTS:
        gpus, _ = identify(output.devices)
        samples = [gpu_sample(gpu, Lane.FAST, output.requested, GpuModes(), 1) for gpu in gpus]
        samples += instance_samples(gpus, output.listing, Lane.FAST, 1)[0]
        for sample in samples:
            assert sample.view is not None
            place = f"{sample.view.kind} {sample.view.instance or ''}".strip()
            if sample.processes:
                found[f"{output.name} {place}"] = [(one.pid, one.values["memory_bytes"]) for one in sample.processes]
            if output.name.endswith("-csv"):
                assert sample.processes is None
    h200, mig, guest = (
        "capture-h200__590.48.01-load-q",
        "capture-h200-mig__590.48.01-load-q",
        "text-vgpu-guest-a6000-24q-unlicensed-unrestricted",
    )
    wddm = Absent(Reason.NOT_SUPPORTED, "used_memory")
    busy = [(12249, 2194 << 20), (12250, 1170 << 20), (12267, 13526 << 20)]
    (cut,) = [place for place in found if place.startswith(f"{mig} mig ")]
    assert cut.removeprefix(f"{mig} mig ").startswith("2/")
    assert found == {
        f"{h200} gpu": [(10291, 2566 << 20), (10293, 1542 << 20), (10309, 28234 << 20)],
        f"{mig} gpu": busy,
        cut: busy,
        f"{guest} gpu": [(1144, 23 << 20), (1636, 23 << 20)],
        "capture-rtx2080s-wddm-trimmed__610.62-idle-q gpu": [(2140, wddm), (2164, wddm)],
    }
