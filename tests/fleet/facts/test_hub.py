import numpy as np

from gpufleet.fleet.facts.hub import START_SECONDS, HourlyCounts, NewNames, hub_table
from gpufleet.model.stored.findings import HUB_SUBJECT


def test_count_is_the_increase_within_an_hour() -> None:
    counts = HourlyCounts()
    seen = [counts.add(second, {"flush_failures": total})["flush_failures"] for second, total in
            ((60, 2), (120, 2), (1800, 5), (3600, 5), (3661, 5), (5460, 6), (9100, 6))]  # fmt: skip
    assert seen == [2, 2, 5, 5, 3, 1, 0]


def test_name_is_new_for_an_hour() -> None:
    names = NewNames(started=0)
    assert names.count(599, ["a"]) is None
    assert names.count(700, ["a"]) == 0  # sent again after the restart
    assert names.count(760, ["a", "b"]) == 1
    assert names.count(760 + 3599, ["a", "b"]) == 1
    assert names.count(760 + 3600, ["a", "b"]) == 0


def test_nothing_is_known_about_a_hub_that_just_started() -> None:
    values = {"ingesting": 1.0, "clock_behind_seconds": None}
    starting, running = (hub_table(values, uptime) for uptime in (START_SECONDS - 1, START_SECONDS))
    assert list(starting.keys) == list(running.keys) == [HUB_SUBJECT]
    assert np.isnan(starting.column("ingesting")[0])
    assert running.column("ingesting")[0] == 1
    assert np.isnan(running.column("clock_behind_seconds")[0])
