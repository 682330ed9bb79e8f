"""Machine cache: the limit on machines per cluster, retirement and conflicts of names."""

import pytest

from gpufleet.fleet.identity import RETURN_NS
from gpufleet.model.errors import CapacityError, RegistryError
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import MachineRoom
from gpufleet.registry.machines import EXPIRY_NS, RETIRED_FACTOR, SHORT_LIVED_NS, MachineCache

NOW = 10**18


def machine(number: int, boot_id: str | None = None) -> Machine:
    return Machine(name=f"n{number}", machine_id=f"{number:032x}", boot_id=boot_id)


def add(machines: MachineCache, numbers: range, *, sender: str = "s", at: int = NOW) -> list[str]:
    return [machines.match("c", sender, machine(number), at, at).id for number in numbers]


def test_bound_with_retired_machines_keeps_known_machines() -> None:
    machines = MachineCache(max_machines=2)
    ids = add(machines, range(2 * RETIRED_FACTOR))
    with pytest.raises(CapacityError) as refused:
        machines.match("c", "s", machine(9), NOW, NOW)
    assert not isinstance(refused.value, RegistryError)  # a registry error is retried and blocks later records
    rebooted = machine(2, boot_id="another")
    assert [machines.match("c", "s", one, NOW + 1, NOW + 1).id for one in (machine(1), rebooted)] == ids[1:3]
    assert machines.match("other", "s", machine(3), NOW, NOW).id not in ids


def test_room_is_bound_by_cluster_and_by_sender() -> None:
    machines = MachineCache(max_machines=10)
    add(machines, range(5))
    assert machines.room("c", "s") == MachineRoom(cluster=5, sender=0)
    assert machines.room("c", "other") == MachineRoom(cluster=5, sender=5)
    assert machines.room("d", "s") == MachineRoom(cluster=10, sender=5)
    add(machines, range(5, 10), sender="other")
    assert machines.room("c", "third") == MachineRoom(cluster=0, sender=0)


def test_machine_counts_for_its_newest_sender() -> None:
    machines = MachineCache(max_machines=10)
    add(machines, range(3))
    machines.match("c", "agent", machine(0), NOW + 1, NOW + 1)
    assert (machines.room("c", "s").sender, machines.room("c", "agent").sender) == (3, 4)
    assert machines.counts() == {"c": 3}


def test_retirement_frees_room_until_the_machine_reports_again() -> None:
    machines = MachineCache(max_machines=10)
    ids = add(machines, range(4))
    for id_ in ids[:2]:
        machines.confirm_retired(id_, NOW + 5)
    assert machines.room("c", "s") == MachineRoom(cluster=8, sender=3)
    add(machines, range(1), at=NOW + 10)
    assert machines.room("c", "s") == MachineRoom(cluster=7, sender=2)
    assert machines.counts() == {"c": 3}


def test_known_machines_are_found_under_every_report() -> None:
    machines = MachineCache()
    add(machines, range(1))
    assert machines.knows("c", "s", machine(0), NOW)
    assert machines.knows("c", "other", machine(0, boot_id="new"), NOW + 1)
    assert not machines.knows("c", "s", machine(1), NOW)
    assert not machines.knows("d", "s", machine(0), NOW)


def test_short_lived_machines_of_a_nearly_full_cluster_expire() -> None:
    machines = MachineCache(max_machines=10)
    ids = add(machines, range(9))
    later = NOW + EXPIRY_NS + SHORT_LIVED_NS + 1
    add(machines, range(1), at=NOW + SHORT_LIVED_NS)  # not short-lived
    add(machines, range(1, 2), at=later)  # still reports; the search precedes it
    assert machines.counts() == {"c": 2}
    assert [machines.record(id_).retired_at is not None for id_ in ids[:3]] == [False, True, True]
    assert machines.record(ids[1]).last_seen > machines.record(ids[2]).last_seen


def test_short_lived_machines_of_other_clusters_are_kept() -> None:
    machines = MachineCache(max_machines=10)
    add(machines, range(8))
    later = NOW + 2 * EXPIRY_NS
    add(machines, range(1), at=later)
    assert machines.counts() == {"c": 8}


def named(name: str) -> Machine:
    return Machine(name=name, machine_id="a" * 32, boot_id="b" * 32)


def test_two_names_of_one_machine_are_a_conflict_of_both_senders() -> None:
    machines = MachineCache()
    matches = [
        machines.match("c", sender, named(sender), NOW + number, NOW + number)
        for number, sender in enumerate(["first", "second", "first"])
    ]
    assert len({one.id for one in matches}) == 1
    assert [one.conflict is None for one in matches] == [True, True, False], "a single change of name is a rename"
    (record,) = machines.records("c")
    assert record.conflict is not None
    assert all(f"sender '{sender}'" in record.conflict for sender in ("first", "second"))
    (freshness,) = machines.freshness_columns("c").others
    assert freshness.conflict


def test_conflict_of_names_ends_with_the_second_sender() -> None:
    machines = MachineCache()
    for number, sender in enumerate(["first", "second", "first"]):
        id_ = machines.match("c", sender, named(sender), NOW + number, NOW + number).id
    later = NOW + RETURN_NS + 10
    assert machines.match("c", "first", named("first"), later, later).conflict is None
    assert machines.record(id_).conflict is None


def test_late_report_of_a_former_name_is_no_conflict() -> None:
    machines = MachineCache()
    machines.match("c", "s", named("before"), NOW, NOW)
    machines.match("c", "s", named("after"), NOW + 10, NOW + 10)
    assert machines.match("c", "s", named("before"), NOW + 5, NOW + 11).conflict is None
