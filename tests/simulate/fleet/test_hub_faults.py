"""Faults of the hub: their times fit the rules. `tests/hub/findings/test_hub_faults.py` makes them."""

import pytest

from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.simulate.fleet.hub_faults import HUB_FAULTS


@pytest.mark.parametrize("rule", HUB_FAULTS)
def test_times_are_not_below_those_of_the_rule(rule: str) -> None:
    fault = HUB_FAULTS[rule]
    assert fault.opens * 60 >= RULES_BY_ID[rule].pending_seconds
    assert fault.closes * 60 >= RULES_BY_ID[rule].closing_seconds
    assert RULES_BY_ID.keys() >= {*fault.others}
