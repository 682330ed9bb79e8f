"""Event loop, signals and interpreter settings of the daemons."""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

SWITCH_INTERVAL_SECONDS = 0.0005
"""Thread switch interval of the interpreter; Python's default is ten times as long.

The event loop releases the interpreter lock with each body that it unpacks and each file that it syncs. It then waits
this long to get the lock back while the thread that prepares writes is busy. Measured with `benchmarks ingest` on 2
busy cores, three runs each: a hub stored 272, 283 and 702 batches/s with the default, and 513, 810 and 957 with this.
"""

YOUNG_OBJECTS = 50_000
"""Threshold of the youngest generation of the garbage collector, in new containers; Python's default is 700.

Batches are nested lists without cycles, so that reference counting frees them. With the default, the collector of a hub
with 8,334 senders ran 80 times per second. Once per second it traversed all objects, which stopped every thread for
170 ms. It took 27 % of the hub's CPU time (`benchmarks hub`: 1,059 us per batch, and 778 us with this value).

An agent stalled for up to 40 ms in each full collection, about once per second with scrapes of 8 GPUs with 128 vGPUs
(`benchmarks exposition`).
"""

YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS = 20, 100
"""Collections of a generation per collection of the next older one; a full collection runs about every half hour."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def paused_garbage_collector() -> Iterator[None]:
    """Pause the garbage collector while a start loads millions of objects that stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tune_garbage_collector(*, collects: bool = True) -> None:
    """Make the garbage collector run less often, and exclude the existing objects.

    Args:
        collects: remove the garbage of the start first. With millions of loaded objects this takes seconds.
    """
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)
    if collects:
        gc.collect()
    gc.freeze()


def run_until_stopped(daemon: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `daemon(stop)` to completion, with uvloop if installed.

    The first SIGINT or SIGTERM sets `stop`. A second one kills the process, whatever it waits for.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_with_signals(daemon))


async def wait_until_stopped(stop: asyncio.Event, *tasks: asyncio.Task[Any]) -> None:
    """Wait until `stop` is set or one of the tasks ends."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()


async def _with_signals(daemon: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_once() -> None:
        stop.set()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # the kernel ends the process, even if the loop is blocked

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop_once)
    await daemon(stop)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
