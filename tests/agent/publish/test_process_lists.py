"""Process lists: when the table of a device is sent."""

import msgspec

from gpufleet.agent.publish.batches import EXPIRE_SECONDS, ProcessLists
from gpufleet.model.catalogue import Lane
from gpufleet.model.process import Process
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from tests.support.passes import gpu

T0 = 1_700_000_000 * NANOS


def sample(second: float, *pids: int, view: View | None = None, listed: bool = True, start: int = 1) -> Sample:
    processes = tuple(Process(pid=pid, kinds=("compute",), start_time=start, values={}) for pid in pids)
    return Sample(
        view=view or gpu(0),
        reader="nvml",
        lane=Lane.FAST,
        measured_at=T0 + int(second * NANOS),
        values={"gpu_compute_processes": len(pids)},
        processes=processes if listed else None,
    )


def is_sent(lists: ProcessLists, *samples: Sample) -> list[bool]:
    return [lists.due(one).processes is not None for one in samples]


def test_process_table_is_sent_on_change_and_once_a_minute() -> None:
    lists = ProcessLists()
    same = [sample(second, 7, 8) for second in range(0, 130, 10)]
    assert is_sent(lists, *same) == [second % 60 == 0 for second in range(0, 130, 10)]
    changing = [sample(130, 7), sample(140, 7), sample(150, 7, start=2), sample(160)]
    assert is_sent(lists, *changing) == [True, False, True, True]


def test_sample_without_its_process_table_is_sent() -> None:
    lists = ProcessLists()
    lists.due(sample(0, 7))
    second = sample(1, 7)
    assert lists.due(second) == msgspec.structs.replace(second, processes=None)


def test_each_device_has_its_own_schedule() -> None:
    lists = ProcessLists()
    assert is_sent(lists, sample(0, 7), sample(0, 7, view=gpu(1)), sample(1, 7)) == [True, True, False]


def test_table_after_a_pass_without_table_is_sent() -> None:
    lists = ProcessLists()
    assert is_sent(lists, sample(0, 7), sample(1, listed=False), sample(2, 7)) == [True, False, True]


def test_clock_set_back_delays_no_table() -> None:
    lists = ProcessLists()
    assert is_sent(lists, sample(1000, 7), sample(0, 7), sample(1, 7)) == [True, True, False]


def test_devices_without_samples_expire() -> None:
    lists = ProcessLists()
    for number in range(100):
        lists.due(sample(number * EXPIRE_SECONDS, 7, view=gpu(number)))
    assert len(lists._sent) <= 2  # unbounded growth is not visible from outside
