"""Time until the hub reports what is missing, partial or stale, with every default. The mission allows an hour."""

from pathlib import Path

from tests.hub.findings.played_fleet import Play

OUTAGES = {
    "a dead agent": ("node-off@+1m/40m:c1/n1", "node.missing", 3),
    "a dead cluster link": ("backfill@+1m/40m:c2/n1", "cluster.stale", 5),
    "a hung GPU": ("gpu-hung@+1m/40m:c1/n3/g0", "gpu.hung", 3),
    "a missing GPU on the PCI bus": ("gpu-unlisted@+1m/40m:c1/n6/g0", "gpu.lost", 3),
    "a missing GPU": ("gpu-removed@+1m/40m:c1/n7/g1", "node.below_class_max", 5),
    "a frozen exporter of a busy GPU": ("frozen-values@+1m/40m:c1/n2/g0", "gpu.frozen", 11),
    "a frozen exporter of an idle GPU": ("frozen-values@+1m/40m:c1/n8/g0", "gpu.frozen", 31),
}
"""Fault of the fleet, the rule that reports it, and the minutes until its finding opens.

The only agent of the second cluster with a place in the test measures on, but cannot reach the hub.
"""


async def test_every_outage_is_reported_in_minutes(tmp_path: Path) -> None:
    play = Play(tmp_path, ",".join(fault for fault, _, _ in OUTAGES.values()), (2, 8, 2))
    play.keep_agents_of(play.faults)
    try:
        while play.minute < 34:
            await play.pass_minute()
    finally:
        play.hub.end()
    expected = sorted((rule, minutes + 1) for _, rule, minutes in OUTAGES.values())
    rules = {rule for rule, _ in expected}
    assert sorted((rule, minute) for (rule, _), minute in play.subjects.items() if rule in rules) == expected
