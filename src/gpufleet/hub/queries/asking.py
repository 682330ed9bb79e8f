"""Asking what blocks, off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Asking:
    """Asks on the readers' threads: store and registry block."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    async def ask(self, question: Callable[[], T]) -> T:
        """Return what a question comes to."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)

    async def ask_both(self, one: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
        """Return what two questions come to, each on a thread of its own where one is free."""
        answers = await asyncio.gather(self.ask(one), self.ask(other))
        return answers[0], answers[1]
