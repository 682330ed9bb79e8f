"""Admission of new machines before a batch is acknowledged."""

from collections.abc import Callable

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.hub.receive.machines import MachineAdmission, TooManyMachinesError
from gpufleet.model.machine import Machine
from gpufleet.model.wire.batch import WireBatch
from gpufleet.registry.machines import MachineCache
from tests.fakes.batches import body

NOW = 1_700_000_000_000_000_000


class Registry:
    """Machine cache of half as many machines for each sender as for each cluster."""

    def __init__(self, max_machines: int = 4) -> None:
        self.cache = MachineCache(max_machines=max_machines)
        self.machine_room = self.cache.room
        self.after_answer: Callable[[], object] = lambda: None  # what another thread does after an answer

    def knows_machine(self, cluster: str, sender: str, machine: Machine, at: int) -> bool:
        is_known = self.cache.knows(cluster, sender, machine, at)
        self.after_answer()
        return is_known


class Log:
    """Log that numbers the acknowledged batches."""

    def __init__(self) -> None:
        self.appended = self.flushed = 0

    def make_drain_check(self) -> Callable[[], bool]:
        newest = self.appended
        return lambda: self.flushed >= newest


class Hub:
    """The parts of a hub that new machines pass."""

    def __init__(self, max_machines: int = 4) -> None:
        self.registry, self.log = Registry(max_machines), Log()
        self.admission = MachineAdmission(self.registry, self.log.make_drain_check)

    def receive(self, one: WireBatch, *, is_logged: bool = True) -> None:
        admitted = self.admission.admit(one, NOW)
        self.log.appended += is_logged
        self.admission.finish(one.cluster, one.sender, admitted, is_logged=is_logged)

    def register(self, one: WireBatch) -> str:
        return self.registry.cache.match(one.cluster, one.sender, one.machines[0], NOW, NOW).id


def batch(name: str, *, sender: str = "s") -> WireBatch:
    return decode(body(1, NOW, machine=Machine(name=name), sender=sender))


def test_pending_machines_count_until_they_are_registered() -> None:
    hub = Hub()
    first, second, third = batch("a"), batch("b"), batch("c")
    for one in (first, second, first):
        hub.receive(one)
    with pytest.raises(TooManyMachinesError):
        hub.receive(third)
    hub.register(first)
    hub.register(second)
    hub.receive(first)
    with pytest.raises(TooManyMachinesError):
        hub.receive(third)


def test_one_sender_leaves_room_for_another_up_to_the_limit_of_the_cluster() -> None:
    hub = Hub()
    for name in "abcd":
        hub.receive(batch(name, sender="s" if name in "ab" else "t"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("e", sender="u"))


def test_retirement_makes_room() -> None:
    hub = Hub()
    for name in "ab":
        hub.receive(batch(name))
        id_ = hub.register(batch(name))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c"))
    hub.registry.cache.confirm_retired(id_, NOW + 1)
    hub.receive(batch("c"))  # raises TooManyMachinesError without room


def test_machine_being_received_counts_although_the_log_is_empty() -> None:
    hub = Hub()
    for name in "ab":
        hub.admission.admit(batch(name), NOW)
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c"))


def test_machine_counts_until_its_own_batch_is_flushed() -> None:
    hub = Hub()
    admitted = hub.admission.admit(batch("a"), NOW)
    hub.receive(batch("b"))
    hub.log.appended += 1
    hub.admission.finish("local", "s", admitted, is_logged=True)
    hub.log.flushed = 1  # the batch of b, without b
    hub.receive(batch("c"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("d"))


def test_batch_that_is_not_logged_leaves_no_pending_machine() -> None:
    hub = Hub()
    for name in "ab":
        hub.receive(batch(name), is_logged=False)
    for name in "cd":
        hub.receive(batch(name))  # raises TooManyMachinesError without room
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("e"))


def test_machine_of_a_repeated_batch_stays_pending() -> None:
    hub = Hub()
    failing = hub.admission.admit(batch("a"), NOW)
    hub.receive(batch("a"))
    hub.admission.finish("local", "s", failing, is_logged=False)
    hub.receive(batch("b"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c"))


def test_machines_of_quarantined_batches_are_dropped_with_their_backlog() -> None:
    hub = Hub()
    for name in "ab":
        hub.receive(batch(name))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c"))
    hub.log.flushed = 1
    hub.receive(batch("c"))  # raises TooManyMachinesError without room


def test_machines_registered_behind_a_quarantined_one_do_not_count_twice() -> None:
    hub = Hub(max_machines=40)
    hub.receive(batch("quarantined"))
    for number in range(19):
        hub.receive(batch(f"n{number}"))
        hub.register(batch(f"n{number}"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("n20"))
    for number in range(20):  # the share of the other sender
        hub.receive(batch(f"t{number}", sender="t"))


def test_orphans_do_not_shrink_the_limit() -> None:
    hub, senders = Hub(max_machines=20), "stu"
    for number in range(18):
        one = batch(f"n{number}", sender=senders[number % 3])
        hub.receive(batch(f"failed-{number}", sender="u"), is_logged=False)
        hub.receive(batch(f"quarantined-{number}", sender="s"))
        hub.receive(one)
        hub.register(one)
        hub.log.flushed = hub.log.appended
    assert hub.registry.cache.counts() == {"local": 18}
    for name in "ab":
        hub.receive(batch(name, sender="t"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c", sender="t"))


def test_machines_of_the_backlog_at_the_start_are_pending() -> None:
    hub = Hub()
    hub.log.appended = 3
    for name in "abc":
        hub.admission.restore(batch(name), NOW)
    hub.receive(batch("a"))  # pending, so it needs no room
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("d"))
    hub.receive(batch("d", sender="t"))
    for name in "abcd":
        hub.register(batch(name))
    hub.log.flushed = 4
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("e", sender="t"))
    assert hub.registry.cache.counts() == {"local": 4}


def test_reservation_takes_the_new_machines_that_fit() -> None:
    hub = Hub()
    hub.register(batch("a"))
    a, b, c = (Machine(name=name) for name in "abc")
    with hub.admission.reserve("local", "s", [c, a, b], NOW) as excess:
        assert excess == (b,)
        hub.receive(batch("c"))
        with pytest.raises(TooManyMachinesError):
            hub.receive(batch("b"))
    with pytest.raises(TooManyMachinesError), hub.admission.reserve("local", "s", [b], NOW):
        pass
    for sender, machines in (("s", [a, c]), ("s", []), ("t", [b])):
        with hub.admission.reserve("local", sender, machines, NOW) as excess:
            assert excess == ()


def test_reserved_machine_without_a_logged_batch_is_dropped_with_its_request() -> None:
    hub = Hub()
    with hub.admission.reserve("local", "s", [Machine(name="a"), Machine(name="b")], NOW):
        hub.receive(batch("a"))
        with pytest.raises(TooManyMachinesError):
            hub.receive(batch("c"))
    hub.receive(batch("c"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("b"))


def test_reserved_machine_that_is_registered_meanwhile_counts_once() -> None:
    hub = Hub()
    a, b = batch("a"), batch("b")
    hub.receive(a)
    with hub.admission.reserve("local", "s", (*a.machines, *b.machines), NOW) as excess:
        assert not excess
        hub.register(a)
        hub.receive(a)
        hub.receive(b)
    hub.register(b)
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c"))


def test_room_of_others_while_a_reserved_machine_is_registered() -> None:
    hub = Hub()
    a = batch("a")
    with hub.admission.reserve("local", "s", a.machines, NOW):
        hub.receive(a)
        hub.register(a)
        hub.receive(batch("b"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c"))


def test_machine_that_is_registered_while_its_batch_is_admitted_needs_no_room() -> None:
    hub = Hub()
    for name in "ab":
        hub.receive(batch(name))
    hub.registry.after_answer = lambda: hub.register(batch("b"))
    hub.receive(batch("b"))
    with pytest.raises(TooManyMachinesError):
        hub.receive(batch("c"))
