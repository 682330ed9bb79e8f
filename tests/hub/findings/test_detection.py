"""Time until the hub reports what is missing, partial or stale, with every default. The mission allows an hour."""

from pathlib import Path

from gpufleet.simulate.fleet.rule_faults import OUTAGES
from tests.hub.findings.played_fleet import Play

MAX_MINUTES = 60


async def test_every_outage_is_reported_in_minutes(tmp_path: Path) -> None:
    play = Play(tmp_path, ",".join(one.fault for one in OUTAGES), (2, 8, 2))
    play.keep_agents_of(play.faults)
    try:
        while play.minute < 34:
            await play.pass_minute()
    finally:
        play.hub.end()
    expected = sorted((one.rule, one.minutes + 1) for one in OUTAGES)
    rules = {rule for rule, _ in expected}
    assert sorted((rule, minute) for (rule, _), minute in play.subjects.items() if rule in rules) == expected
    assert max(one.minutes for one in OUTAGES) < MAX_MINUTES
