"""Evidence of open findings after a restart, in place of the history of a GPU."""

import numpy as np

from gpufleet.fleet.facts.earlier import VALID_SECONDS, EarlierFindings
from tests.support.fact_world import FactWorld, Fault

TARGET = 3


def healthy_world() -> FactWorld:
    """Return a world that was healthy for three minutes."""
    world = FactWorld((TARGET, 9), TARGET)
    for _ in range(3):
        assert world.judge() == {}
    return world


def test_restart_keeps_a_missing_reading_by_its_finding() -> None:
    world = healthy_world()
    fault = Fault(dropped=["gpu_power_watts"])
    world.judge(fault)
    assert world.judgement is not None
    verdicts = world.judgement.verdicts["gpu.metrics_missing"]
    evidence = verdicts.evidence(int(verdicts.firing[0]))
    assert evidence == {
        "failed_core_readings": "0",
        "missing_core_readings": "1",
        "missing_readings": "gpu_power_watts",
    }
    world.restart({"gpu.metrics_missing": evidence})
    for _ in range(70):
        assert world.judge(fault) == {"gpu.metrics_missing": {world.key}}
    assert world.judge() == {}


def test_links_of_a_repaired_gpu_are_compared_with_its_finding() -> None:
    world = healthy_world()
    world.restart({"gpu.nvlink_down": {"nvlinks_active": "13", "nvlinks_of_peers": "13", "nvlinks_day_before": "18"}})
    fault = Fault(gpu={"gpu_nvlinks_active": 13})
    assert world.judge(fault) == {"gpu.nvlink_down": {world.key}}
    assert world.judge() == {}
    assert world.device("nvlinks_day_before") == 18
    other = next(key for key in world.devices.keys if key != world.key)
    assert np.isnan(world.device("nvlinks_day_before", other))


def test_evidence_is_used_for_a_day_only() -> None:
    world = healthy_world()
    world.restart({"gpu.nvlink_down": {"nvlinks_active": "13", "nvlinks_day_before": "18"}})
    key = np.array([hash(world.key), hash("another")])
    earlier = world.memory.earlier
    assert np.array_equal(earlier.nvlinks(key, VALID_SECONDS), [18, np.nan], equal_nan=True)
    assert np.isnan(earlier.nvlinks(key, VALID_SECONDS + 1)).all()
    assert np.isnan(EarlierFindings().nvlinks(key, 0)).all()
