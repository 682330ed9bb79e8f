"""A short run of the crash suite; `make crash` is the long one."""

from pathlib import Path

import pytest

from tests.crash.run import Run

SEED = 20261121


@pytest.mark.timeout(400)
def test_nothing_acknowledged_is_lost_or_doubled_whatever_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = ("kill everything", "network lose-answers, upstream")
    outcome = Run(tmp_path / "run", SEED, print).go(seconds=300, only=faults, steps=len(faults))
    assert outcome.verdict.problems == [], capsys.readouterr().out
    assert sorted(outcome.times) == sorted(faults)
    assert outcome.verdict.values > 1000
