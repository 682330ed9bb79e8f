"""Worker pool of the NVML child: one thread while every device is prompt, more when devices are slow."""

import functools
import os
import queue
import select
import threading
from collections.abc import Iterator

import pytest

from gpufleet.readers.nvml.pool import Alarm, Job, RecordWriter, WorkerPool
from gpufleet.readers.nvml.protocol import BusyRecord, Frames, Record

NEVER, AT_ONCE, DEADLINE = 600.0, 0.001, 30.0


class Device:
    """Device that answers with the id of the calling thread, at once or when released."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.answers: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._released = threading.Event()
        if not hangs:
            self._released.set()

    def query(self) -> None:
        self._released.wait(DEADLINE)
        self.answers.put(threading.get_ident())

    def release(self) -> None:
        self._released.set()

    def answer(self) -> int:
        return self.answers.get(timeout=DEADLINE)


class Rig:
    """Pool with its requests, its record pipe and a thread that handles the alarm."""

    def __init__(self, patience: float) -> None:
        self._requests: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._replies, self._pipe = os.pipe()
        os.set_blocking(self._replies, False)
        self.outlet, self.alarm = RecordWriter(self._pipe), Alarm(patience)
        self.pool = WorkerPool(self._lead, self.outlet, self.alarm)
        self._frames = Frames()
        self._stop_end, self._stop = os.pipe()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        self.pool.start()

    def give(self, *devices: Device) -> None:
        """Request a pass over these devices."""
        self._requests.put([device.query for device in devices])

    def give_jobs(self, *jobs: Job) -> None:
        """Request a pass over these jobs."""
        self._requests.put(list(jobs))

    def records(self) -> list[Record]:
        """Return the records written since the last call."""
        try:
            return self._frames.feed(os.read(self._replies, 1 << 16))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """End the leader and the thread that handles the alarm."""
        self._requests.put(None)
        os.close(self._stop)
        self._watcher.join(DEADLINE)

    def _lead(self) -> list[Job] | None:
        jobs = self._requests.get(timeout=DEADLINE)
        if jobs is not None:
            self.outlet.hold()
        return jobs

    def _watch(self) -> None:
        watched = select.poll()
        watched.register(self.alarm.descriptor, select.POLLIN)
        watched.register(self._stop_end, 0)
        while self._stop_end not in dict(watched.poll()):
            self.alarm.acknowledge()
            self.pool.check_progress()


@pytest.fixture
def prompt() -> Iterator[Rig]:
    """Return a pool whose alarm never fires."""
    rig = Rig(NEVER)
    yield rig
    rig.close()


@pytest.fixture
def hasty() -> Iterator[Rig]:
    """Return a pool whose alarm fires at once."""
    rig = Rig(AT_ONCE)
    yield rig
    rig.close()


def test_prompt_devices_are_queried_by_one_thread(prompt: Rig) -> None:
    devices, threads = [Device() for _ in range(8)], set[int]()
    before = threading.active_count()
    for _ in range(3):
        prompt.give(*devices)
        threads |= {device.answer() for device in devices}
    assert len(threads) == 1
    assert threading.active_count() == before


def test_devices_are_queried_in_order(prompt: Rig) -> None:
    queried: queue.SimpleQueue[int] = queue.SimpleQueue()
    prompt.give_jobs(*[functools.partial(queried.put, index) for index in range(8)])
    assert [queried.get(timeout=DEADLINE) for _ in range(8)] == list(range(8))


def test_hung_devices_do_not_delay_others(hasty: Rig) -> None:
    devices = [Device(hangs=index in (0, 3, 7)) for index in range(8)]
    hasty.give(*devices)
    healthy = [device for index, device in enumerate(devices) if index not in (0, 3, 7)]
    assert all(device.answer() for device in healthy)
    for _ in range(3):  # further passes, while threads still hang in the other devices
        hasty.give(*healthy)
        assert all(device.answer() for device in healthy)
    assert all(devices[index].answers.empty() for index in (0, 3, 7))  # the passes did not wait for them
    for index in (0, 3, 7):
        devices[index].release()
        assert devices[index].answer()


def test_last_device_hanging_does_not_delay_the_next_pass(hasty: Rig) -> None:
    healthy, hung = Device(), Device(hangs=True)
    for _ in range(3):
        hasty.give(healthy, hung)
        assert healthy.answer()
        hasty.give(healthy)
        assert healthy.answer()
    hung.release()


def test_thread_count_is_bounded_by_devices(hasty: Rig) -> None:
    before = threading.active_count()
    for _ in range(20):
        devices = [Device(hangs=True) for _ in range(4)]
        hasty.give(*devices)
        for device in devices:
            device.release()
        for device in devices:
            device.answer()
    assert threading.active_count() - before <= 8  # without reuse: 80


def test_job_exception_is_reported_and_affects_no_other_device(prompt: Rig, monkeypatch: pytest.MonkeyPatch) -> None:

    reported: queue.SimpleQueue[threading.ExceptHookArgs] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", reported.put)

    def fail() -> None:
        raise IndexError

    device = Device()
    prompt.give_jobs(fail, device.query)
    assert reported.get(timeout=DEADLINE).exc_type is IndexError
    assert device.answer()
    prompt.give(device)
    assert device.answer()


def test_records_of_a_pass_are_written_at_its_end(prompt: Rig) -> None:
    first, second = Device(), Device(hangs=True)
    over: queue.SimpleQueue[list[Record]] = queue.SimpleQueue()
    prompt.give_jobs(lambda: prompt.outlet.put(BusyRecord(1, 0)), first.query, second.query)
    prompt.give_jobs(lambda: over.put(prompt.records()))
    assert first.answer()
    assert prompt.records() == []
    second.release()
    assert over.get(timeout=DEADLINE) == [BusyRecord(1, 0)]


def test_known_records_are_written_while_a_device_hangs(hasty: Rig) -> None:
    hung, after = Device(hangs=True), Device()
    hasty.give_jobs(lambda: hasty.outlet.put(BusyRecord(1, 0)), hung.query, after.query)
    assert after.answer()  # by another thread, after the leader lost the pass
    assert hasty.records() == [BusyRecord(1, 0)]
    hung.release()


def test_empty_pass_ends(prompt: Rig) -> None:
    device = Device()
    prompt.give()
    prompt.give(device)
    assert device.answer()
