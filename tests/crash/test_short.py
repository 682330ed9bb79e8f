"""Short run of the crash suite. `make crash` is the long run."""

from pathlib import Path

import pytest

from tests.crash.run import Run

SEED = 20261121


@pytest.mark.timeout(400)
def test_acknowledged_batches_survive_kills_and_lost_responses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = ("kill everything", "network lose-answers, upstream")
    outcome = Run(tmp_path / "run", SEED, print).run(seconds=300, only=faults, steps=len(faults))
    assert outcome.verdict.problems == [], capsys.readouterr().out
    assert sorted(outcome.times) == sorted(faults)
    assert outcome.verdict.values > 1000
