"""Process table: kinds, memory, utilization shares, and what the driver does not report."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.readers.nvml.calls import CALLS
from gpufleet.readers.nvml.calls.activity import COMPUTE_PROCESSES, PROCESS_UTILIZATION
from gpufleet.readers.nvml.processes import UTILIZATION_METRICS, ProcessLister
from gpufleet.readers.nvml.protocol import CallResult, GpuPassRecord
from tests.fakes.nvml.driver import FakeNvml
from tests.readers.nvml.rig import Start, device

G = "nvmlDeviceGet"
NOT_MIG = 2**32 - 1


async def test_every_process_with_its_memory_and_shares(fake: FakeNvml, start: Start) -> None:
    round_ = await start(fake).read(Lane.FAST)
    for index, fake_gpu in enumerate(fake.scenario.devices):
        sample = device(round_, index)
        assert sample.processes is not None
        found = {process.pid: process for process in sample.processes}
        kinds = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}
        listed = {
            record[0]: (kind, record[1])
            for kind, name in kinds.items()
            for record in fake_gpu.rows[f"{G}{name}RunningProcesses"]
        }
        assert {pid: (*p.kinds, p.values["memory_bytes"]) for pid, p in found.items()} == listed
        for pid, _, *percent in fake_gpu.rows[f"{G}ProcessUtilization"]:
            assert [found[pid].values[name] for name in UTILIZATION_METRICS] == [value / 100 for value in percent]
        assert sample.values["gpu_compute_processes"] == index
        assert sample.values["gpu_graphics_processes"] == index // 2
        assert sample.values["gpu_mps_processes"] == index // 3


def freeze_samples(fake: FakeNvml, index: int) -> None:
    """Make the driver of a GPU keep its present samples and add none."""
    rows, at = fake.scenario.devices[index].rows, time.time_ns() // 1000
    rows[f"{G}ProcessUtilization"] = [(pid, at - ago, *used) for pid, ago, *used in rows[f"{G}ProcessUtilization"]]
    fake.apply()


async def test_old_process_samples_are_not_current_at_the_first_pass(fake: FakeNvml, start: Start) -> None:
    rows = fake.scenario.devices[3].rows
    (first, *_), (second, ago, *used), *_ = rows[f"{G}ProcessUtilization"]
    rows[f"{G}ProcessUtilization"] = [(first, 60_000_000, 90, 91, 92, 93), (second, ago, *used)]
    fake.apply()
    processes = device(await start(fake).read(Lane.FAST), 3).processes
    assert processes
    found = {process.pid: [process.values[name] for name in UTILIZATION_METRICS] for process in processes}
    assert set(found[first]) == {Absent(Reason.NO_DATA, PROCESS_UTILIZATION)}
    assert found[second] == [value / 100 for value in used]


async def test_growing_sample_buffer_is_read_completely(fake: FakeNvml, start: Start) -> None:
    reader, rows = start(fake), fake.scenario.devices[3].rows
    await reader.read(Lane.FAST)
    pids = range(4_197_000, 4_197_100)
    rows[f"{G}ComputeRunningProcesses"] = [(pid, 1 << 30, 2**32 - 1, 2**32 - 1) for pid in pids]
    rows[f"{G}ProcessUtilization"] = [(pid, 1_000, pid % 100, 0, 0, 0) for pid in pids]
    fake.apply()
    for _ in range(2):
        processes = device(await reader.read(Lane.FAST), 3).processes
        assert processes
        used = {process.pid: process.values["sm_utilization_ratio"] for process in processes if process.pid in pids}
        assert used == {pid: pid % 100 / 100 for pid in pids}


async def test_only_new_samples_count_and_none_is_no_error(fake: FakeNvml, start: Start) -> None:
    freeze_samples(fake, 2)
    reader = start(fake)
    await reader.read(Lane.FAST)
    quiet = device(await reader.read(Lane.FAST), 2)
    assert quiet.processes is not None
    why = Absent(Reason.NO_DATA, f"{G}ProcessUtilization")
    assert {
        value for process in quiet.processes for name, value in process.values.items() if name in UTILIZATION_METRICS
    } == {why}
    pid, at = 4_194_020, time.time_ns() // 1000
    fake.scenario.devices[2].rows[f"{G}ProcessUtilization"] += [
        (pid, at, 99, 98, 97, 96),
        (pid, at - 400, 1, 2, 3, 4),  # an older sample later in the list
    ]
    fake.apply()
    busy = device(await reader.read(Lane.FAST), 2)
    assert busy.processes is not None
    (process,) = [each for each in busy.processes if each.pid == pid]
    assert [process.values[name] for name in UTILIZATION_METRICS] == [0.99, 0.98, 0.97, 0.96]


async def test_samples_that_a_driver_repeats_are_not_current(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[2].numbers["nvmlDeviceGetProcessUtilization_repeats"] = 1
    freeze_samples(fake, 2)
    reader = start(fake)
    await reader.read(Lane.FAST)
    processes = device(await reader.read(Lane.FAST), 2).processes
    assert processes
    values = {process.values[name] for process in processes for name in UTILIZATION_METRICS}
    assert values == {Absent(Reason.NO_DATA, PROCESS_UTILIZATION)}


def proc(root: Path, second: str) -> Path:
    """Create a /proc with process 4242, in which process 2 has the name `second`."""
    for pid, name, began in ((2, second, 0), (4242, "a) (b", 777)):
        (root / f"proc/{pid}").mkdir(parents=True)
        fields = " ".join(str(n) for n in range(1000, 1018))
        (root / f"proc/{pid}/stat").write_text(f"{pid} ({name}) S {fields} {began} 5 6\n")
    return root


@pytest.mark.parametrize(("second", "began"), [("kthreadd", 777), ("sleep", None)])
async def test_process_has_its_start_time_if_proc_is_the_hosts(
    fake: FakeNvml, start: Start, tmp_path: Path, second: str, began: int | None
) -> None:
    """In a container, /proc may show another process under the id that the driver reports."""
    fake.scenario.devices[0].rows[f"{G}ComputeRunningProcesses"] = [(4242, 2**64 - 1, NOT_MIG, NOT_MIG)]
    fake.scenario.devices[0].rows[f"{G}GraphicsRunningProcesses"] = [(4242, 7 << 20, NOT_MIG, NOT_MIG)]
    fake.apply()
    round_ = await start(fake, root=proc(tmp_path / "machine", second)).read(Lane.FAST)
    sample = device(round_, 0)
    assert sample.processes is not None
    (process,) = sample.processes
    assert (process.kinds, process.start_time) == (("compute", "graphics"), began)
    assert process.values["memory_bytes"] == 7 << 20
    unknown = device(round_, 1).processes
    assert unknown is not None
    assert unknown[0].start_time is None  # no such process in this /proc


@pytest.mark.parametrize(
    ("names", "second", "shown"), [(False, "kthreadd", ""), (True, "kthreadd", "a) (b"), (True, "sleep", "")]
)
async def test_process_names_need_the_option_and_the_hosts_proc(
    fake: FakeNvml, start: Start, tmp_path: Path, names: bool, second: str, shown: str
) -> None:
    fake.scenario.devices[0].rows[f"{G}ComputeRunningProcesses"] = [(4242, 1, NOT_MIG, NOT_MIG)]
    fake.apply()
    reader = start(fake, root=proc(tmp_path / "machine", second), process_names=names)
    sample = device(await reader.read(Lane.FAST), 0)
    assert sample.processes is not None
    assert [process.name for process in sample.processes] == [shown]


async def test_unreported_process_memory_is_absent(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[0].rows[f"{G}ComputeRunningProcesses"] = [(4_000_000, 2**64 - 1, NOT_MIG, NOT_MIG)]
    fake.apply()
    sample = device(await start(fake).read(Lane.FAST), 0)
    assert sample.processes is not None
    assert sample.processes[0].values["memory_bytes"] == Absent(Reason.NOT_REPORTED, COMPUTE_PROCESSES)


async def test_unsupported_process_lists_are_none_not_empty(fake: FakeNvml, start: Start) -> None:
    for kind in ("Compute", "Graphics", "MPSCompute"):
        fake.scenario.fault(f"{G}{kind}RunningProcesses_v3", gpu=1, code=3)
    fake.scenario.fault(f"{G}ProcessUtilization", gpu=2, code=3)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 1).processes is None
    assert device(round_, 1).values["gpu_compute_processes"] == Absent(Reason.NOT_SUPPORTED, COMPUTE_PROCESSES)
    two = device(round_, 2).processes
    assert two is not None
    assert two[0].values["sm_utilization_ratio"] == Absent(Reason.NOT_SUPPORTED, PROCESS_UTILIZATION)
    assert device(round_, 0).processes == ()  # known to be empty


async def test_many_processes(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[0].rows[f"{G}ComputeRunningProcesses"] = [(pid, pid, 0, 0) for pid in range(1, 1001)]
    fake.apply()
    sample = device(await start(fake).read(Lane.FAST), 0)
    assert sample.processes is not None
    assert [process.values["memory_bytes"] for process in sample.processes] == list(range(1, 1001))


async def test_growing_list_is_whole_in_every_pass(fake: FakeNvml, start: Start) -> None:
    reader, function = start(fake), f"{G}ComputeRunningProcesses"
    calls = []
    for count in (3, 5, 300, 302, 2, 40, 0, 1):
        fake.scenario.devices[0].rows[function] = [(pid, pid * count, 0, 0) for pid in range(1, count + 1)]
        fake.apply()
        before = fake.calls()[f"{function}_v3", 0]
        sample = device(await reader.read(Lane.FAST), 0)
        calls.append(fake.calls()[f"{function}_v3", 0] - before)
        assert sample.processes is not None
        memory = {process.pid: process.values["memory_bytes"] for process in sample.processes}
        assert memory == {pid: pid * count for pid in range(1, count + 1)}
    assert calls == [1, 1, 2, 1, 1, 1, 1, 1]


entries = st.lists(st.none() | st.text(max_size=3) | st.lists(st.integers(-1, 2**64 - 1), max_size=6), max_size=8)


@given(st.integers(-5, 30), entries, entries)
def test_any_answer_gives_a_list_or_none(code: int, processes: list[object], uses: list[object]) -> None:
    answers = [CallResult(3)] * len(CALLS["fast"])
    keys = [call.key for call in CALLS["fast"]]
    answers[keys.index(COMPUTE_PROCESSES)] = CallResult(code, processes)
    answers[keys.index(PROCESS_UTILIZATION)] = CallResult(0, uses)
    found = ProcessLister(Path("/nowhere")).list_device(GpuPassRecord(1, 0, 1, answers=tuple(answers)))
    assert (found is None) == (code != 0)
    for process in found or ():
        for value in process.values.values():
            assert isinstance(value, Absent) or value >= 0


async def test_sample_of_process_0_is_ignored(fake: FakeNvml, start: Start) -> None:
    """Drivers leave empty entries in the list. They must not be attributed to every process."""
    fake.scenario.devices[2].rows[f"{G}ProcessUtilization"] = [(0, 1_000, 0, 0, 0, 0)]
    fake.apply()
    sample = device(await start(fake).read(Lane.FAST), 2)
    assert sample.processes
    shares = {process.values[name] for process in sample.processes for name in UTILIZATION_METRICS}
    assert shares == {Absent(Reason.NO_DATA, PROCESS_UTILIZATION)}


async def test_sample_is_not_repeated_after_reattaching(fake: FakeNvml, start: Start) -> None:
    freeze_samples(fake, 3)
    reader = start(fake)
    first = device(await reader.read(Lane.FAST), 3).processes
    assert first
    assert 0.4 in [process.values["sm_utilization_ratio"] for process in first]
    await reader.read(Lane.STATIC)
    second = device(await reader.read(Lane.FAST), 3).processes
    assert second
    why = Absent(Reason.NO_DATA, PROCESS_UTILIZATION)
    assert {process.values[name] for process in second for name in UTILIZATION_METRICS} == {why}


async def test_samples_from_before_a_clock_step_are_dropped(fake: FakeNvml, start: Start) -> None:
    fake_gpu = fake.scenario.devices[3]
    pid, at = fake_gpu.rows[f"{G}ProcessUtilization"][0][:2]
    fake_gpu.rows[f"{G}ProcessUtilization"] = [(pid, 4_000_000_000_000_000, 90, 91, 92, 93), (pid, at, 1, 2, 3, 4)]
    fake.apply()
    processes = device(await start(fake).read(Lane.FAST), 3).processes
    assert processes
    (process,) = [each for each in processes if each.pid == pid]
    assert [process.values[name] for name in UTILIZATION_METRICS] == [0.01, 0.02, 0.03, 0.04]
