"""Running a daemon from a command: its event loop, and stopping it cleanly."""

import asyncio
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
