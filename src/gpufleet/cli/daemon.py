"""Running a daemon from a command: its event loop, and stopping it cleanly."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

SWITCH_SECONDS = 0.0005
"""How long one thread may keep the interpreter from others that wait for it; Python's own default is ten times that.

The event loop lets go of it for a moment with each body that it unpacks and each file that it syncs, and then waits
this long for it whenever the thread that prepares writes is busy. Measured with `benchmarks ingest` on 2 busy cores,
three times in turn: a hub stored 272, 283 and 702 batches/s with the default, and 513, 810 and 957 with this.
"""

YOUNG_OBJECTS = 50_000
"""New containers (lists, records, ...) after which a daemon looks for garbage in cycles; Python's own default is 700.

Batches are lists within lists and never cycles: they go by themselves. With the default the collector went through them
80 times a second, and once a second through everything that the hub remembers, which stopped every thread for 170 ms
each time at 8,334 senders. It took 27 % of the hub's processor time (`benchmarks hub`: 1,059 us a batch, and 778 with
this).

An agent stood still for up to 40 ms whenever everything that it remembers was gone through, about once a second beside
scrapes of 8 GPUs with 128 vGPUs (`benchmarks exposition`).
"""

YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS = 20, 100
"""Collections of one generation before the next older one is collected too: all of it about once in half an hour."""


def spare_collector() -> None:
    """Have the collector of cycles look less often, and never again at what is there now."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)
    gc.collect()
    gc.freeze()


def run_until_stopped(daemon: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `daemon(stop)` to its end; SIGINT and SIGTERM set `stop`.

    Uses uvloop where it is installed.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_with_signals(daemon))


async def _with_signals(daemon: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await daemon(stop)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
