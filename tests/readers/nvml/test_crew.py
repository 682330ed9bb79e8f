"""The threads that ask the devices: one as long as nobody is slow, as many as there are slow ones otherwise."""

import functools
import queue
import threading
from collections import deque

import pytest

from gpufleet.readers.nvml.crew import Crew

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


def test_one_thread_asks_prompt_devices_pass_after_pass() -> None:
    crew, devices = Crew(NEVER), [Device() for _ in range(8)]
    threads = set[int]()
    for _ in range(3):
        crew.do([device.ask for device in devices])
        threads |= {device.answer() for device in devices}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_devices_are_asked_in_their_order() -> None:
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    Crew(NEVER).do([functools.partial(asked.put, index) for index in range(8)])
    assert [asked.get(timeout=DEADLINE) for _ in range(8)] == list(range(8))


def test_devices_that_hang_cost_only_themselves() -> None:
    crew = Crew(AT_ONCE)
    devices = [Device(hangs=index in (0, 3, 7)) for index in range(8)]
    crew.do([device.ask for device in devices])
    well = [device for index, device in enumerate(devices) if index not in (0, 3, 7)]
    assert all(device.answer() for device in well)
    for _ in range(3):  # pass after pass, while the threads of the others are still inside
        crew.do([device.ask for device in well])
        assert all(device.answer() for device in well)
    assert all(devices[index].answers.empty() for index in (0, 3, 7))  # nobody waited for them
    for index in (0, 3, 7):
        devices[index].let_go()
        assert devices[index].answer()


def test_no_more_threads_than_devices_are_ever_made() -> None:
    before = threading.active_count()
    crew = Crew(AT_ONCE)
    for _ in range(20):
        devices = [Device(hangs=True) for _ in range(4)]
        crew.do([device.ask for device in devices])
        for device in devices:
            device.let_go()
        for device in devices:
            device.answer()
    assert threading.active_count() - before <= 8  # without using them again: 80


def test_a_defect_is_told_and_costs_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.SimpleQueue[threading.ExceptHookArgs] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", told.put)
    device, nothing = Device(), deque[int]()
    Crew(AT_ONCE).do([nothing.popleft, device.ask])
    assert told.get(timeout=DEADLINE).exc_type is IndexError
    assert device.answer()


def test_a_pass_over_nothing_is_over() -> None:
    before = threading.active_count()
    Crew(NEVER).do([])
    assert threading.active_count() == before
