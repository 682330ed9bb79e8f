"""Running a daemon from a command: its event loop, and stopping it cleanly."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run_until_stopped(daemon: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `daemon(stop)` to its end; SIGINT and SIGTERM set `stop`.

    Uses uvloop where it is installed.
    """
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
