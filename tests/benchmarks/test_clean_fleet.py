"""Fleet without faults over simulated hours: no finding, and a fault beside its disturbances is found."""

import pytest

from benchmarks import clean_fleet
from benchmarks.clean_fleet import NOISE_HOURS, disturbances, main
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FAULTS
from tests.support.profiles import examples

START = 1_795_000_000 * NANOS


@pytest.mark.timeout(900)
def test_clean_fleet_has_no_finding(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = examples(15, 720)
    monkeypatch.setattr(clean_fleet, "RESTART_HOURS", (0.05, minutes / 60 / 3))
    status = main(["--nodes", "16", "--clusters", "1", "--hours", str(minutes / 60)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert " 0 restarts" not in shown


@pytest.mark.timeout(300)
def test_faults_of_a_disturbed_fleet_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The hung GPU works again when its node can reach the hub."""
    faults = "row-remap-failed@+2m/10m:c1/n3/g0,backfill@+3m/15m:c1/n1,gpu-hung@+4m/10m:c1/n1/g0"
    assert main(["--nodes", "8", "--clusters", "1", "--hours", "0.4", "--faults", faults]) == 1
    found = [line.split()[2] for line in capsys.readouterr().out.splitlines() if " min: " in line]
    assert found == ["gpu.row_remap_failed", "node.missing", "cluster.partial", "sender.backfilled", "gpu.hung"]


def test_disturbances_of_every_kind_are_valid_faults() -> None:
    found = list(disturbances(0, 1, 20, START, 48))
    assert {one.kind for one in found} == set(NOISE_HOURS)
    for one in found:
        row = FAULTS[one.kind]
        assert START < one.begin <= one.end
        assert not row.amount or row.minimum <= one.amount <= row.maximum
