"""Machine cache: the limit on machines per cluster, retirement, conflicts of names, and the order of lists."""

import itertools
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.identity import RETURN_NS
from gpufleet.model.errors import CapacityError, RegistryError
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import MachineRoom
from gpufleet.model.time import NANOS
from gpufleet.registry.machine_rows import RETIRED_FACTOR
from gpufleet.registry.machines import EXPIRY_NS, SHORT_LIVED_NS, MachineCache, MachineOrder

NOW = 10**18


def machine(number: int, boot_id: str | None = None) -> Machine:
    return Machine(name=f"n{number}", machine_id=f"{number:032x}", boot_id=boot_id)


def sharing(name: str, *, boot_id: str | None = None, k8s_node_uid: str | None = None) -> Machine:
    """Return a machine with the same UUID as all others of this function."""
    return Machine(name=name, machine_id="a" * 32, system_uuid="u", boot_id=boot_id, k8s_node_uid=k8s_node_uid)


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


def test_use_of_the_nearest_limit_includes_senders_and_retired_machines() -> None:
    machines = MachineCache(max_machines=10)
    add(machines, range(3))
    add(machines, range(3, 5), sender="other")
    assert machines.limit_ratios() == {"c": 3 / 5}
    for id_ in add(machines, range(5, 32)):
        machines.confirm_retired(id_, NOW + 1)
    assert machines.limit_ratios() == {"c": 32 / 40}
    for number in range(32, 40):
        (id_,) = add(machines, range(number, number + 1), sender="third")
        machines.confirm_retired(id_, NOW + 1)
    assert machines.room("c", "fourth") == MachineRoom(cluster=0, sender=0)
    assert (machines.limit_ratios(), machines.counts()) == ({"c": 1.0}, {"c": 5})


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


def test_machine_known_by_name_only_expires_until_it_is_named_again() -> None:
    machines = MachineCache(max_machines=10)
    ids = [machines.match_named("c", "s", machine(number), NOW, NOW).id for number in range(9)]
    machines.confirm_retired(ids[0], NOW + 1)
    machines.match_named("c", "s", machine(9), NOW, NOW)
    later = NOW + EXPIRY_NS + 1
    machines.match_named("c", "s", machine(1), later, later)  # the search precedes it
    assert machines.counts() == {"c": 1}
    machines.match_named("c", "s", machine(0), later, later)
    assert [machines.record(id_).retired_at is None for id_ in ids[:3]] == [False, False, False]
    assert machines.counts() == {"c": 1}, "a machine that an operator retired is not revived by its name"
    assert machines.record(ids[1]).last_seen > machines.record(ids[2]).last_seen


def test_short_lived_machines_of_other_clusters_are_kept() -> None:
    machines = MachineCache(max_machines=10)
    add(machines, range(8))
    later = NOW + 2 * EXPIRY_NS
    add(machines, range(1), at=later)
    assert machines.counts() == {"c": 8}


@pytest.mark.parametrize(("agents", "count"), [(("node", "clone"), 2), (("first", "second"), 3)])
def test_node_with_the_uuid_of_a_clone_is_one_machine(agents: tuple[str, str], count: int) -> None:
    """A collector reports a node without boot id: its name decides between the clones if only one of them has it."""
    machines = MachineCache()
    node = sharing("node", k8s_node_uid="1")
    found = set()
    for at in range(NOW, NOW + 300 * NANOS, 10 * NANOS):
        for number, name in enumerate(agents):
            machines.match("c", f"agent-{number}", sharing(name, boot_id=str(number)), at, at)
        found.add(machines.match_named("c", "collector", node, at, at).id)
    assert len(found) == 1
    assert len(machines.records("c")) == count


def test_two_nodes_with_one_uuid_are_two_machines() -> None:
    machines = MachineCache()
    nodes = [sharing(f"node-{number}", k8s_node_uid=str(number)) for number in range(2)]
    found: list[set[str]] = [set(), set()]
    for at in range(NOW, NOW + 300 * NANOS, 10 * NANOS):
        for name in ("a", "b"):
            machines.match("c", name, sharing(name, boot_id=name), at, at)
        for node, ids in zip(nodes, found, strict=True):
            ids.add(machines.match_named("c", "collector", node, at, at).id)
    assert [len(ids) for ids in found] == [1, 1]
    assert found[0].isdisjoint(found[1])


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


MACHINE = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.sampled_from("123456"))


@given(
    st.lists(MACHINE, unique_by=lambda one: one[2]),
    st.sets(st.sampled_from("123456")),
    st.none() | MACHINE,
    st.none() | st.sampled_from("abcd"),
)
def test_pages_equal_pages_of_a_sorted_list(
    machines: list[tuple[str, str, str]], gone: set[str], place: tuple[str, str, str] | None, cluster: str | None
) -> None:
    order = MachineOrder()
    for one in machines:
        order.add(*one)
    for one in machines:
        if one[2] in gone:
            order.remove(*one)
    left = sorted(one for one in machines if one[2] not in gone and cluster in (None, one[0]))
    assert list(order.after(cluster, place)) == [one[2] for one in left if place is None or one > place]
    for name in "abcd":
        own = [one[2] for one in machines if one[0] == name and one[2] not in gone]
        assert order.count(name) == len(own)


def test_name_of_a_retired_machine_passes_to_its_successor() -> None:
    """An imported series has no other evidence than the name, and was matched with the first machine before."""
    machines = MachineCache()
    first, second = (Machine(name=name, machine_id=name * 32, boot_id=name) for name in "ab")
    imported = Machine(name="a")
    ids = [machines.match("c", "agent", one, NOW, NOW).id for one in (first, second)]
    assert machines.match("c", "import", imported, NOW + 1, NOW + 1).id == ids[0]
    machines.confirm_retired(ids[0], NOW + 2)
    renamed = Machine(name="a", machine_id=second.machine_id, boot_id=second.boot_id)
    assert machines.match("c", "agent", renamed, NOW + 3, NOW + 3).id == ids[1]
    for match in (machines.match, machines.match_named):
        assert match("c", "import", imported, NOW + 4, NOW + 4).id == ids[1]
    assert machines.record(ids[0]).is_retired


def test_guest_belongs_to_the_node_that_its_sender_reports() -> None:
    machines = MachineCache()
    guest = Machine(name="vm", kind=MachineKind.GUEST, system_uuid="u", hypervisor="n")
    nodes = [Machine(name="n", machine_id=letter * 32, boot_id=letter) for letter in "ab"]
    seen = [
        (machines.match("c", sender, node, NOW + at, NOW + at).id, machines.match("c", sender, guest, NOW + at, NOW).id)
        for at, (sender, node) in enumerate(zip(("s", "t"), nodes, strict=True))
    ]
    assert len({id_ for _, id_ in seen}) == 2
    assert [machines.record(id_).hypervisor_id for _, id_ in seen] == [node for node, _ in seen]
    assert machines.match("c", "other", guest, NOW + 2, NOW + 2).id not in [id_ for _, id_ in seen]


NODE = Machine(name="n", machine_id="a" * 32, boot_id="a")
GUEST = Machine(name="vm", kind=MachineKind.GUEST, system_uuid="u", hypervisor="n")


@pytest.mark.parametrize(
    "order",
    [order for order in itertools.product(("agent", "import"), repeat=4) if "agent" in order],
    ids="-".join,
)
def test_guest_of_a_node_that_is_also_imported_has_its_hypervisor(order: tuple[str, ...]) -> None:
    machines = MachineCache()
    for number, sender in enumerate(order):
        at = NOW + number
        reported = NODE if sender == "agent" else Machine(name="n")
        node = machines.match("c", sender, reported, at, at).id
    guest = machines.match("c", "agent", GUEST, at + 1, at + 1).id
    assert machines.record(guest).hypervisor_id == node


def test_former_sender_of_a_machine_is_not_its_guests_hypervisor() -> None:
    """The name passes to another machine of the guest's sender; an importer still reports both."""
    machines = MachineCache()
    former = machines.match("c", "agent", NODE, NOW, NOW).id
    replaced = Machine(name="n", machine_id="b" * 32, boot_id="b")
    current = machines.match("c", "agent", replaced, NOW + 1, NOW + 1).id
    machines.match("c", "import", NODE, NOW + 2, NOW + 2)
    guest = machines.match("c", "agent", GUEST, NOW + 3, NOW + 3).id
    assert (former != current, machines.record(guest).hypervisor_id) == (True, current)


@pytest.mark.parametrize("late", [False, True])
def test_changing_evidence_of_one_machine_takes_no_more_memory(late: bool) -> None:
    machines = MachineCache()

    def report(numbers: range) -> int:
        for number in numbers:
            one = Machine(name=f"n{number}", system_uuid="u", instance_id=f"i{number}")
            machines.match("c", f"s{number % 9}", one, NOW - number if late else NOW + number, NOW + number)
        return tracemalloc.get_traced_memory()[0]

    machines.match("c", "s", Machine(name="n", system_uuid="u"), NOW, NOW)
    tracemalloc.start()
    try:
        before = report(range(1, 500))
        assert report(range(500, 3000)) - before < 100_000
    finally:
        tracemalloc.stop()
    assert machines.counts() == {"c": 1}


@pytest.mark.parametrize("by_name", [False, True])
def test_name_of_two_live_machines_alone_is_one_further_machine(by_name: bool) -> None:
    machines = MachineCache()
    bearers = [Machine(name="n", machine_id=letter * 32, boot_id=letter) for letter in "ab"]
    imported = Machine(name="n")
    found: set[str] = set()
    for at in range(NOW, NOW + 5):
        ids = {machines.match("c", one.boot_id or "", one, at, at).id for one in bearers}
        is_known = machines.knows("c", "import", imported, at)
        assert is_known is bool(found), "else it bypasses the limit"
        found.add((machines.match_named if by_name else machines.match)("c", "import", imported, at, at).id)
    assert (len(found), len(found - ids), machines.counts()) == (1, 1, {"c": 3})


@pytest.mark.parametrize("by_name", [False, True])
def test_new_name_that_was_imported_first_is_of_one_machine(by_name: bool) -> None:
    """After the restart, the exporter or Kubernetes reported the new name before the agent did."""
    machines = MachineCache()
    before, after = (Machine(name=name, machine_id="a" * 32, boot_id=name) for name in ("old", "new"))
    third_party = machines.match_named if by_name else machines.match
    id_ = machines.match("c", "agent", before, NOW, NOW).id
    first = NOW + 300 * NANOS
    stand_in = third_party("c", "import", Machine(name="new"), first, first).id
    assert machines.match("c", "agent", after, first + 1, first + 1).id == id_
    assert machines.record(stand_in).is_retired
    assert third_party("c", "import", Machine(name="new"), first + 2, first + 2).id == id_
    assert machines.counts() == {"c": 1}


@pytest.mark.parametrize(("overlap", "has_ended", "count"), [(600, False, 1), (601, False, 2), (601, True, 1)])
def test_machine_that_was_imported_under_both_names_is_another_one(
    overlap: int, count: int, *, has_ended: bool
) -> None:
    """The end of the series of the old name is no report of the machine."""
    machines = MachineCache()
    before, after = (Machine(name=name, machine_id="a" * 32, boot_id=name) for name in ("old", "new"))
    id_ = machines.match("c", "agent", before, NOW, NOW).id
    first = NOW + 300 * NANOS
    machines.match("c", "import", Machine(name="new"), first, first)
    last = first + overlap * NANOS
    for _ in range(2):
        assert machines.match("c", "import", Machine(name="old"), last, last, has_ended=has_ended).id == id_
    assert machines.last_seen(id_) == (NOW if has_ended else last)
    returned = last + 300 * NANOS
    assert machines.match("c", "agent", after, returned, returned).id == id_
    assert machines.counts() == {"c": count}


def test_end_of_series_of_a_listed_machine_is_no_report() -> None:
    machines = MachineCache()
    listed = machines.match_named("c", "kubernetes", Machine(name="n"), NOW, NOW).id
    assert machines.match("c", "import", Machine(name="n"), NOW + 1, NOW + 1, has_ended=True).id == listed
    assert machines.record(listed).named_only
    machines.match("c", "import", Machine(name="n"), NOW + 2, NOW + 2)
    assert not machines.record(listed).named_only


@pytest.mark.parametrize("other", ["a", "b"])
def test_name_imported_first_passes_on_to_one_machine(other: str) -> None:
    """The machine of the first import was retired. The name then passes on, or returns, and is imported first again."""
    machines = MachineCache()
    machines.match("c", "b", Machine(name="n", machine_id="b" * 32, boot_id="b"), NOW, NOW)
    at, ids = NOW, {}
    for name, digit in ("old", "a"), ("new", "a"), ("old", "a"), ("third", "b"), ("new", other):
        machines.match("c", "import", Machine(name=name), at + 1, at + 1)
        at += 300 * NANOS
        bearer = Machine(name=name, machine_id=digit * 32, boot_id=str(at))
        ids[digit] = machines.match("c", digit, bearer, at, at).id
    assert machines.match("c", "import", Machine(name="new"), at + 1, at + 1).id == ids[other]
    assert machines.counts() == {"c": 2}


def test_agent_has_a_name_imported_first_for_another_machine() -> None:
    machines = MachineCache()
    before, after, third = (Machine(name=name, machine_id="a" * 32, boot_id=name) for name in ("old", "new", "third"))
    machines.match("c", "agent", before, NOW, NOW)
    stand_in = machines.match("c", "import", Machine(name="new"), NOW + 1, NOW + 1).id
    machines.match("c", "agent", after, NOW + 300 * NANOS, NOW + 300 * NANOS)
    machines.match("c", "agent", third, NOW + 600 * NANOS, NOW + 600 * NANOS)
    other = Machine(name="new", machine_id="b" * 32, boot_id="b")
    assert machines.match("c", "b", other, NOW + 700 * NANOS, NOW + 700 * NANOS).id != stand_in


def test_machine_imported_beside_another_keeps_its_name() -> None:
    machines = MachineCache()
    before, after = (Machine(name=name, machine_id="a" * 32, boot_id="b") for name in ("old", "new"))
    imported = machines.match("c", "import", Machine(name="new"), NOW, NOW).id
    id_ = machines.match("c", "agent", before, NOW + 1, NOW + 1).id
    assert machines.match("c", "agent", after, NOW + 2, NOW + 2).id == id_ != imported
    assert machines.match("c", "import", Machine(name="new"), NOW + 3, NOW + 3).id == imported
    assert machines.counts() == {"c": 2}


def test_guests_of_two_hypervisors_keep_one_name() -> None:
    machines = MachineCache()
    renamed, other = (Machine(name="n", kind=MachineKind.GUEST, hypervisor=host) for host in ("h1", "h2"))
    before = msgspec.structs.replace(renamed, name="o", system_uuid="u" * 36)
    machines.match("c", "s1", before, NOW, NOW)
    id_ = machines.match("c", "s2", other, NOW + 1, NOW + 1).id
    machines.match("c", "s1", msgspec.structs.replace(before, name="n"), NOW + 2, NOW + 2)
    assert not machines.record(id_).is_retired
    assert machines.match("c", "s2", other, NOW + 3, NOW + 3).id == id_


def test_name_that_becomes_ambiguous_is_not_known() -> None:
    machines = MachineCache()
    imported = Machine(name="n")
    machines.match("c", "agent", NODE, NOW, NOW)
    machines.match("c", "import", imported, NOW, NOW)
    machines.match("c", "other", Machine(name="n", machine_id="b" * 32, boot_id="b"), NOW, NOW)
    assert not machines.knows("c", "import", imported, NOW)
    machines.match("c", "import", imported, NOW, NOW)
    assert machines.counts() == {"c": 3}


def test_guest_of_a_replaced_hypervisor_is_not_known() -> None:
    machines = MachineCache()
    machines.match("c", "agent", NODE, NOW, NOW)
    machines.match("c", "agent", GUEST, NOW, NOW)
    assert machines.knows("c", "agent", GUEST, NOW + 1)
    machines.match("c", "agent", Machine(name="n", machine_id="b" * 32, boot_id="b"), NOW + 1, NOW + 1)
    assert not machines.knows("c", "agent", GUEST, NOW + 2)
    machines.match("c", "agent", GUEST, NOW + 2, NOW + 2)
    assert machines.counts() == {"c": 4}
