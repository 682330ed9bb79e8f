"""Machine cache: the limit on machines per cluster."""

import pytest

from gpufleet.fleet.identity import RETURN_NS
from gpufleet.model.errors import CapacityError, RegistryError
from gpufleet.model.machine import Machine
from gpufleet.registry.machines import MachineCache

NOW = 10**18


def machine(number: int, boot_id: str | None = None) -> Machine:
    return Machine(name=f"n{number}", machine_id=f"{number:032x}", boot_id=boot_id)


def test_machine_limit_keeps_known_machines() -> None:
    machines = MachineCache(max_machines=2)
    ids = [machines.match("c", "s", machine(number), NOW, NOW).id for number in (1, 2)]
    with pytest.raises(CapacityError, match=r"3 .*'c'.* 2") as refused:
        machines.match("c", "s", machine(3), NOW, NOW)
    assert not isinstance(refused.value, RegistryError)  # a registry error is retried and blocks later records
    rebooted = machine(2, boot_id="another")
    assert [machines.match("c", "s", one, NOW + 1, NOW + 1).id for one in (machine(1), rebooted)] == ids
    assert machines.match("other", "s", machine(3), NOW, NOW).id not in ids


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
