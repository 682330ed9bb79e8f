"""The threads that ask the devices: one as long as nobody is slow, as many as there are slow ones otherwise."""

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
    """A device that answers with the thread that asked it, at once or when it is let go."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.answers: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._goes = threading.Event()
        if not hangs:
            self._goes.set()

    def ask(self) -> None:
        self._goes.wait(DEADLINE)
        self.answers.put(threading.get_ident())

    def let_go(self) -> None:
        self._goes.set()

    def answer(self) -> int:
        return self.answers.get(timeout=DEADLINE)


class Rig:
    """A pool with everything around it: requests, a pipe for its records, and somebody who hears the alarm."""

    def __init__(self, patience: float) -> None:
        self._requests: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._replies, self._pipe = os.pipe()
        os.set_blocking(self._replies, False)
        self.outlet, self.alarm = RecordWriter(self._pipe), Alarm(patience)
        self.pool = WorkerPool(self._lead, self.outlet, self.alarm)
        self._frames = Frames()
        self._over, self._ended = os.pipe()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        self.pool.start()

    def give(self, *devices: Device) -> None:
        """Ask for a pass over these devices."""
        self._requests.put([device.ask for device in devices])

    def give_jobs(self, *jobs: Job) -> None:
        """Ask for a pass over these jobs."""
        self._requests.put(list(jobs))

    def told(self) -> list[Record]:
        """Return what came out since the last time."""
        try:
            return self._frames.feed(os.read(self._replies, 1 << 16))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """End the leader and whoever hears the alarm."""
        self._requests.put(None)
        os.close(self._ended)
        self._watcher.join(DEADLINE)

    def _lead(self) -> list[Job] | None:
        jobs = self._requests.get(timeout=DEADLINE)
        if jobs is not None:
            self.outlet.hold()
        return jobs

    def _watch(self) -> None:
        watched = select.poll()
        watched.register(self.alarm.descriptor, select.POLLIN)
        watched.register(self._over, 0)
        while self._over not in dict(watched.poll()):
            self.alarm.acknowledge()
            self.pool.check_progress()


@pytest.fixture
def prompt() -> Iterator[Rig]:
    """Give a pool that never loses patience."""
    rig = Rig(NEVER)
    yield rig
    rig.close()


@pytest.fixture
def hasty() -> Iterator[Rig]:
    """Give a pool that loses patience at once."""
    rig = Rig(AT_ONCE)
    yield rig
    rig.close()


def test_one_thread_asks_prompt_devices_pass_after_pass(prompt: Rig) -> None:
    devices, threads = [Device() for _ in range(8)], set[int]()
    before = threading.active_count()
    for _ in range(3):
        prompt.give(*devices)
        threads |= {device.answer() for device in devices}
    assert len(threads) == 1
    assert threading.active_count() == before


def test_devices_are_asked_in_their_order(prompt: Rig) -> None:
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    prompt.give_jobs(*[functools.partial(asked.put, index) for index in range(8)])
    assert [asked.get(timeout=DEADLINE) for _ in range(8)] == list(range(8))


def test_devices_that_hang_cost_only_themselves(hasty: Rig) -> None:
    devices = [Device(hangs=index in (0, 3, 7)) for index in range(8)]
    hasty.give(*devices)
    well = [device for index, device in enumerate(devices) if index not in (0, 3, 7)]
    assert all(device.answer() for device in well)
    for _ in range(3):  # pass after pass, while the threads of the others are still inside
        hasty.give(*well)
        assert all(device.answer() for device in well)
    assert all(devices[index].answers.empty() for index in (0, 3, 7))  # nobody waited for them
    for index in (0, 3, 7):
        devices[index].let_go()
        assert devices[index].answer()


def test_one_that_hangs_last_does_not_keep_the_next_pass_waiting(hasty: Rig) -> None:
    well, hung = Device(), Device(hangs=True)
    for _ in range(3):
        hasty.give(well, hung)
        assert well.answer()
        hasty.give(well)
        assert well.answer()
    hung.let_go()


def test_no_more_threads_than_devices_are_ever_made(hasty: Rig) -> None:
    before = threading.active_count()
    for _ in range(20):
        devices = [Device(hangs=True) for _ in range(4)]
        hasty.give(*devices)
        for device in devices:
            device.let_go()
        for device in devices:
            device.answer()
    assert threading.active_count() - before <= 8  # without using them again: 80


def test_a_defect_is_told_and_costs_no_other_device(prompt: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.SimpleQueue[threading.ExceptHookArgs] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", told.put)

    def fail() -> None:
        raise IndexError

    device = Device()
    prompt.give_jobs(fail, device.ask)
    assert told.get(timeout=DEADLINE).exc_type is IndexError
    assert device.answer()
    prompt.give(device)
    assert device.answer()


def test_a_pass_is_told_in_one_go_once_it_is_over(prompt: Rig) -> None:
    first, second = Device(), Device(hangs=True)
    over: queue.SimpleQueue[list[Record]] = queue.SimpleQueue()
    prompt.give_jobs(lambda: prompt.outlet.put(BusyRecord(1, 0)), first.ask, second.ask)
    prompt.give_jobs(lambda: over.put(prompt.told()))
    assert first.answer()
    assert prompt.told() == []
    second.let_go()
    assert over.get(timeout=DEADLINE) == [BusyRecord(1, 0)]


def test_what_is_known_is_told_although_a_device_hangs(hasty: Rig) -> None:
    hung, after = Device(hangs=True), Device()
    hasty.give_jobs(lambda: hasty.outlet.put(BusyRecord(1, 0)), hung.ask, after.ask)
    assert after.answer()  # by another thread: by then the pass was taken from its leader
    assert hasty.told() == [BusyRecord(1, 0)]
    hung.let_go()


def test_a_pass_over_nothing_is_over(prompt: Rig) -> None:
    device = Device()
    prompt.give()
    prompt.give(device)
    assert device.answer()
