"""Rules about the hub, its registry and its imports: a fault opens the finding in time, and its end closes it."""

from pathlib import Path

import pytest

from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.hub_faults import HUB_FAULTS
from tests.hub.findings.faulty_hub import FAULTS, LOG_BYTES, SMALL_LOG_BYTES, FaultyHub

MINUTE = 60 * NANOS
CLEAN_MINUTES = 11
"""Minutes before the fault: longer than `BASELINE_SECONDS`."""

MAX_MINUTES = 90

WITH_SMALL_LOG = {"hub.not_ingesting", "hub.log_filling"}


def test_every_described_fault_is_made() -> None:
    assert FAULTS.keys() == HUB_FAULTS.keys()


@pytest.mark.parametrize("rule", HUB_FAULTS)
async def test_fault_of_the_hub_opens_and_closes_its_finding(rule: str, tmp_path: Path) -> None:
    fault = HUB_FAULTS[rule]
    hub = FaultyHub(tmp_path, SMALL_LOG_BYTES if rule in WITH_SMALL_LOG else LOG_BYTES)
    try:
        await hub.pass_minute()
        await hub.allocate()
        for _ in range(CLEAN_MINUTES):
            assert await hub.pass_minute() == set()
        begin = hub.clock.now_ns()
        async for _ in FAULTS[rule](hub):
            await hub.pass_minute()
        end = hub.clock.now_ns()
        while await hub.pass_minute() or not hub.transitions(rule):
            assert hub.clock.now_ns() - end < MAX_MINUTES * MINUTE, f"still open: {hub.open_rules}"
    finally:
        hub.end()
    found = [one.transition for one in hub.registered.finding_transitions(0, 1000)]
    times = {one.kind.value: one.at for one in found if one.finding.rule == rule}
    assert {one.finding.rule for one in found} == {rule, *fault.others}
    assert (times["opened"] - begin) / MINUTE == fault.opens
    assert (times["closed"] - end) / MINUTE == fault.closes
