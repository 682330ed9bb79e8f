"""Store as a receiver: every transition once, also after failures and restarts."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpufleet.hub.notify.dead_letters import DeadLetters
from gpufleet.hub.notify.store import STORE_NAME, StoreReceiver
from gpufleet.model.errors import StoreError, UnstorableError
from gpufleet.model.stored.findings import NumberedTransition
from tests.support.notices import Board, DirectExecutor


class Transitions:
    """The part of a store that receives findings.

    Attributes:
        numbers: written transitions.
        unstorable: transitions that do not fit the store.
        capacity: number of transitions after which the store is down; None for no limit.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.unstorable: set[int] = set()
        self.is_down = False
        self.capacity: int | None = None

    def write_findings(self, transitions: Sequence[NumberedTransition]) -> None:
        if self.is_down or (self.capacity is not None and len(self.numbers) >= self.capacity):
            raise StoreError("the store is down")
        numbers = [one.number for one in transitions]
        if not self.unstorable.isdisjoint(numbers):
            raise UnstorableError("finding_transitions.at: a value does not fit")
        self.numbers += numbers


def receiver(board: Board, store: Transitions, folder: Path) -> StoreReceiver:
    return StoreReceiver(
        board.feed(),
        store,  # type: ignore[arg-type]
        thread=DirectExecutor(),
        dead_letters=DeadLetters(folder),
        clock=board.clock,
    )


async def test_store_gets_every_transition_of_the_registry(tmp_path: Path) -> None:
    board, store = Board(), Transitions()
    board.close(board.open())
    first = receiver(board, store, tmp_path)
    store.is_down = True
    await board.deliver(first)
    assert (store.numbers, first.stats.lag, first.stats.last_error) == ([], 2, "the store is down")
    store.is_down = False
    await board.deliver(first, seconds=20.0)
    board.open("gpu.hung")
    again = receiver(board, store, tmp_path)
    await board.deliver(again)
    assert (store.numbers, again.stats.lag, board.registry.notified(STORE_NAME)) == ([1, 2, 3], 0, 3)


async def test_unstorable_transition_is_a_dead_letter(tmp_path: Path) -> None:
    """The store goes down in between: what is kept or written then is neither repeated nor counted twice."""
    board, store = Board(), Transitions()
    for rule in ("gpu.lost", "gpu.hung", "gpu.frozen", "node.missing", "cluster.stale"):
        board.open(rule)
    store.unstorable, store.capacity = {2, 5}, 2
    first = receiver(board, store, tmp_path)
    await board.deliver(first)
    assert (store.numbers, first.stats.dead, first.stats.lag) == ([1, 3], 1, 2)
    store.capacity = None
    await board.deliver(first, seconds=20.0)
    assert (store.numbers, first.stats.dead, first.stats.sent, first.stats.lag) == ([1, 3, 4], 2, 3, 0)
    assert kept_letters(tmp_path) == [(2, "gpu.hung"), (5, "cluster.stale")]


def kept_letters(folder: Path) -> list[tuple[int, str]]:
    """Return number and rule of the dead letters."""
    kept = [msgspec.json.decode(one.read_bytes(), type=NumberedTransition) for one in folder.iterdir()]
    return sorted((one.number, one.transition.finding.rule) for one in kept)
