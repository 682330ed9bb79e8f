"""Admission of new machines before a batch is acknowledged."""

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.hub.receive.machines import MachineAdmission, TooManyMachinesError
from gpufleet.model.machine import Machine
from gpufleet.model.wire.batch import WireBatch
from gpufleet.registry.machines import MachineCache
from tests.fakes.batches import body

NOW = 1_700_000_000_000_000_000


class Registry:
    """Machine cache of two machines for each sender, four for each cluster."""

    def __init__(self) -> None:
        self.cache = MachineCache(max_machines=4)
        self.machine_room = self.cache.room
        self.knows_machine = self.cache.knows


def batch(name: str, *, sender: str = "s") -> WireBatch:
    return decode(body(1, NOW, machine=Machine(name=name), sender=sender))


def flush(registry: Registry, one: WireBatch) -> str:
    return registry.cache.match(one.cluster, one.sender, one.machines[0], NOW, NOW).id


def test_pending_machines_count_until_they_are_registered() -> None:
    registry = Registry()
    admission = MachineAdmission(registry, lambda: False)
    first, second, third = batch("a"), batch("b"), batch("c")
    for one in (first, second, first):
        admission.admit(one, NOW)
    with pytest.raises(TooManyMachinesError):
        admission.admit(third, NOW)
    flush(registry, first)
    flush(registry, second)
    admission.admit(first, NOW)
    with pytest.raises(TooManyMachinesError):
        admission.admit(third, NOW)


def test_one_sender_leaves_room_for_another_up_to_the_limit_of_the_cluster() -> None:
    admission = MachineAdmission(Registry(), lambda: False)
    for name in "abcd":
        admission.admit(batch(name, sender="s" if name in "ab" else "t"), NOW)
    with pytest.raises(TooManyMachinesError):
        admission.admit(batch("e", sender="u"), NOW)


def test_retirement_makes_room() -> None:
    registry = Registry()
    admission = MachineAdmission(registry, lambda: False)
    for name in "ab":
        admission.admit(batch(name), NOW)
        id_ = flush(registry, batch(name))
    with pytest.raises(TooManyMachinesError):
        admission.admit(batch("c"), NOW)
    registry.cache.confirm_retired(id_, NOW + 1)
    admission.admit(batch("c"), NOW)  # raises TooManyMachinesError without room


def test_machines_of_quarantined_batches_are_dropped_with_the_backlog() -> None:
    drained = False
    admission = MachineAdmission(Registry(), lambda: drained)
    for name in "ab":
        admission.admit(batch(name), NOW)
    with pytest.raises(TooManyMachinesError):
        admission.admit(batch("c"), NOW)
    drained = True
    admission.admit(batch("c"), NOW)  # raises TooManyMachinesError without room


def test_reservation_takes_the_new_machines_that_fit() -> None:
    registry = Registry()
    admission = MachineAdmission(registry, lambda: False)
    flush(registry, batch("a"))
    a, b, c = (Machine(name=name) for name in "abc")
    assert admission.reserve("local", "s", [c, a, b], NOW) == (b,)
    admission.admit(batch("c"), NOW)
    with pytest.raises(TooManyMachinesError):
        admission.admit(batch("b"), NOW)
    with pytest.raises(TooManyMachinesError):
        admission.reserve("local", "s", [b], NOW)
    assert admission.reserve("local", "s", [a, c], NOW) == admission.reserve("local", "s", [], NOW) == ()
    assert admission.reserve("local", "t", [b], NOW) == ()
