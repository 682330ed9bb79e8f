"""Store as a receiver: every transition once, also after failures and restarts."""

from collections.abc import Sequence

from gpufleet.hub.notify.store import STORE_NAME, StoreReceiver
from gpufleet.model.errors import StoreError
from gpufleet.model.stored.findings import NumberedTransition
from tests.support.notices import Board, DirectExecutor


class Transitions:
    """The part of a store that receives findings."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.is_down = False

    def write_findings(self, transitions: Sequence[NumberedTransition]) -> None:
        if self.is_down:
            raise StoreError("the store is down")
        self.numbers += [one.number for one in transitions]


def receiver(board: Board, store: Transitions) -> StoreReceiver:
    return StoreReceiver(board.feed(), store, thread=DirectExecutor(), clock=board.clock)  # type: ignore[arg-type]


async def test_store_gets_every_transition_of_the_registry() -> None:
    board, store = Board(), Transitions()
    board.close(board.open())
    first = receiver(board, store)
    store.is_down = True
    await board.deliver(first)
    assert (store.numbers, first.stats.lag, first.stats.last_error) == ([], 2, "the store is down")
    store.is_down = False
    await board.deliver(first, seconds=20.0)
    board.open("gpu.hung")
    again = receiver(board, store)
    await board.deliver(again)
    assert (store.numbers, again.stats.lag, board.registry.notified(STORE_NAME)) == ([1, 2, 3], 0, 3)
