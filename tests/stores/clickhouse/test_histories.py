"""Answers of a store equal a model's after random histories, before and after restarts."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from gpufleet.stores.clickhouse import ClickHouseStore
from tests.stores.clickhouse.histories import HISTORIES, Step, StoreHistory, options, run_history
from tests.support.clickhouse.process import ClickHouse
from tests.support.profiles import examples

ROOT = Path(__file__).parents[3]


@pytest.mark.costly
@pytest.mark.timeout(600)
def test_answers_of_an_embedded_store_equal_a_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.stores.clickhouse.histories", str(tmp_path / "db"), str(examples(6, 200))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
def test_answers_of_two_hubs_in_turn_equal_a_model(shared_server: ClickHouse) -> None:
    """A hub that closes its store is followed by another hub, and one that is killed by itself."""
    dsn, turn, numbers = shared_server.make("histories"), [0], itertools.count()

    def open_store(_: Callable[[], float]) -> ClickHouseStore:  # the lease needs a clock that does not jump
        store = ClickHouseStore.open(dsn)
        store.migrate(None, f"hub-{turn[0] % 2}")
        close = store.close

        def close_and_pass_on() -> None:
            close()
            turn[0] += 1

        store.close = close_and_pass_on  # type: ignore[method-assign]
        return store

    def abandon(store: ClickHouseStore) -> None:
        store._handles.close()

    @options(examples(3, 60))
    @given(HISTORIES)
    def check(steps: list[Step]) -> None:
        run_history(StoreHistory(open_store, abandon, f"history-{next(numbers)}"), steps)

    check()
