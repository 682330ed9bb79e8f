"""Freshness of machines in columns equals the rows of the machines after any reports and retirements."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import MachineFreshnessColumns
from gpufleet.registry.machines import MachineCache
from tests.support.profiles import examples

NOW = 1_700_000_000_000_000_000

REPORTS = st.tuples(
    st.sampled_from(("report", "report", "report", "name", "retire")),
    st.integers(0, 3),  # the machine
    st.sampled_from(("s", "t")),
    st.sampled_from(("boot-1", "boot-2")),
    st.sampled_from((0, 1, -50, 100)),  # seconds
)


@settings(max_examples=examples(100, 2000), deadline=None)
@given(st.lists(REPORTS, max_size=20))
def test_columns_equal_the_rows_after_any_reports(reports: list[tuple[str, int, str, str, int]]) -> None:
    machines, now = MachineCache(), NOW
    before: MachineFreshnessColumns | None = None
    for what, number, sender, boot, seconds in reports:
        now += max(0, seconds) * 10**9 + 1
        # Machines 0 and 1 share a UUID, so that both can be clones.
        node = Machine(name=f"n{number}", machine_id=f"{number // 2}" * 32, boot_id=boot)
        if what == "report":
            machines.match("c", sender, node, now + min(0, seconds) * 10**9, now)
        elif what == "name":
            machines.match_named("c", sender, Machine(name=node.name), now, now)
        elif known := [one.id for one in machines.freshness("c")]:
            machines.confirm_retired(known[number % len(known)], now)
        found = machines.freshness_columns("c")
        columns = [found.at("c", place) for place in range(len(found.ids))]
        assert len(found.ids) == len(found.senders) == len(found.last_seen)
        assert sorted([*columns, *found.others], key=lambda one: one.id) == sorted(
            machines.freshness("c"), key=lambda one: one.id
        )
        if before is not None and before.version == found.version:
            assert (before.ids, before.senders) == (found.ids, found.senders)
        before = found
