"""Machine identity: matching of evidence, clones, reboots and renames."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.identity import (
    LIVE_NS,
    RETURN_NS,
    KnownMachine,
    MachineIds,
    MatchOutcome,
    decide,
    names_within,
    new_machine,
)
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import SucceededMachine
from gpufleet.model.time import NANOS

NOW = 10**18
SECOND = NANOS


class Fleet:
    """Applies decisions as a registry does."""

    def __init__(self) -> None:
        self.known: dict[str, KnownMachine] = {}
        self.conflicts: set[str] = set()

    def receive(self, machine: Machine, at: int = NOW, made_at: int | None = None) -> str:
        decision = decide(self.known.values(), machine, at, "", made_at, overtaken=made_at is not None)
        known = decision.known or new_machine(f"m{len(self.known)}", machine, at)
        self.known[known.id] = known
        if decision.rivals:
            self.conflicts |= {known.id, *decision.rivals}
        if decision.verdict is MatchOutcome.RETURNED:
            self.conflicts.add(known.id)
        return known.id


def machine(**evidence: object) -> Machine:
    return msgspec.convert({"name": "node-a", **evidence}, Machine)


def test_same_evidence_is_the_same_machine() -> None:
    fleet = Fleet()
    one = machine(machine_id="a", boot_id="b1")
    assert fleet.receive(one) == fleet.receive(one, NOW + SECOND)
    assert not fleet.conflicts


def test_reboot_keeps_the_id() -> None:
    fleet = Fleet()
    before = fleet.receive(machine(machine_id="a", boot_id="b1"))
    assert fleet.receive(machine(machine_id="a", boot_id="b2"), NOW + 5 * SECOND) == before
    assert not fleet.conflicts


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30))
def test_past_name_is_that_of_the_time_or_not_known(names: list[str]) -> None:
    fleet = Fleet()
    for minute, name in enumerate(names):
        id_ = fleet.receive(machine(name=name, machine_id="a", boot_id="b1"), NOW + minute * LIVE_NS)
    found = names_within(fleet.known[id_], NOW, NOW + len(names) * LIVE_NS)
    assert [found[0].start, *(one.end for one in found)] == [*(one.start for one in found), NOW + len(names) * LIVE_NS]
    for minute, name in enumerate(names):
        (own,) = [one.name for one in found if one.start <= NOW + minute * LIVE_NS < one.end]
        assert own in (None, name)


@pytest.mark.parametrize(
    ("names", "known"),
    [("a", ["a"]), ("aba", ["a", "b", "a"]), ("ab" * 9, [None, *"ab" * 8])],
)
def test_newest_past_names_are_known(names: str, known: list[str | None]) -> None:
    fleet = Fleet()
    for minute, name in enumerate(names):
        id_ = fleet.receive(machine(name=name, machine_id="a", boot_id="b1"), NOW + minute * LIVE_NS)
    assert [one.name for one in names_within(fleet.known[id_], NOW, NOW + len(names) * LIVE_NS)] == known


def test_new_name_begins_when_the_report_was_made() -> None:
    fleet = Fleet()
    fleet.receive(machine(machine_id="a", boot_id="b1"))
    at, made_at = NOW + 2 * SECOND, NOW + SECOND
    known = decide(fleet.known.values(), machine(name="node-b", machine_id="a", boot_id="b1"), at, "", made_at).known
    assert known is not None
    assert names_within(known, 0, at) == (("node-a", 0, made_at), ("node-b", made_at, at))


def test_report_without_attributes_keeps_them() -> None:
    fleet = Fleet()
    node = {"k8s_node_name": "a.east", "cloud_provider": "aws", "instance_type": "p5", "region": "r", "zone": "z1"}
    id_ = fleet.receive(machine(machine_id="a", boot_id="b1", **node))
    fleet.receive(machine(), NOW + SECOND)
    fleet.receive(machine(machine_id="a", zone="z2"), NOW + 2 * SECOND)
    known = fleet.known[id_].machine
    assert {field: getattr(known, field) for field in node} == {**node, "zone": "z2"}


def test_other_attributes_are_the_same_machine() -> None:
    fleet = Fleet()
    one = machine(machine_id="a", boot_id="b1", k8s_node_name="a", zone="z1")
    assert fleet.receive(one) == fleet.receive(machine(machine_id="a", boot_id="b1", k8s_node_name="b"), NOW + SECOND)
    assert not fleet.conflicts


def test_rename_keeps_the_id() -> None:
    fleet = Fleet()
    before = fleet.receive(machine(machine_id="a", boot_id="b1"))
    assert fleet.receive(machine(name="renamed", machine_id="a", boot_id="b1"), NOW + SECOND) == before


def test_renamed_machine_keeps_its_id_over_a_restart() -> None:
    fleet = Fleet()
    before = fleet.receive(machine(machine_id="a", boot_id="b1"))
    later = NOW + LIVE_NS + SECOND
    assert fleet.receive(machine(name="renamed", machine_id="a", boot_id="b2"), later) == before


def test_later_evidence_is_merged_and_kept() -> None:
    fleet = Fleet()
    weak = machine(machine_id="a", boot_id="b1")
    before = fleet.receive(weak)
    assert fleet.receive(machine(machine_id="a", boot_id="b1", system_uuid="u"), NOW + SECOND) == before
    assert fleet.receive(weak, NOW + 2 * SECOND) == before
    assert fleet.known[before].machine.system_uuid == "u"


def test_cloned_machine_id_is_a_conflict() -> None:
    fleet = Fleet()
    first = machine(machine_id="cloned", system_uuid="u1", boot_id="b1")
    second = machine(name="node-b", machine_id="cloned", system_uuid="u2", boot_id="b2")
    ids = fleet.receive(first), fleet.receive(second, NOW + SECOND)
    assert ids[0] != ids[1]
    assert fleet.conflicts == set(ids)
    for tick in range(2, 20):
        assert fleet.receive(first if tick % 2 else second, NOW + tick * SECOND) == ids[0 if tick % 2 else 1]
    assert len(fleet.known) == 2


def test_cloned_machine_ids_differ_by_name_and_boot() -> None:
    fleet = Fleet()
    first = fleet.receive(machine(machine_id="cloned", boot_id="b1"))
    second = fleet.receive(machine(name="node-b", machine_id="cloned", boot_id="b2"), NOW + SECOND)
    assert first != second
    assert fleet.conflicts == {first, second}


def test_full_clones_are_found_when_a_boot_id_comes_back() -> None:
    fleet = Fleet()
    one, other = (
        machine(machine_id="a", system_uuid="u", boot_id="b1"),
        machine(machine_id="a", system_uuid="u", boot_id="b2"),
    )
    ids = [fleet.receive(one if tick % 2 == 0 else other, NOW + tick * SECOND) for tick in range(10)]
    assert ids[0] in fleet.conflicts
    assert len(set(ids[2::2])) == 1
    assert len(set(ids[3::2])) == 1
    assert ids[2] == ids[0]
    assert ids[3] != ids[2]


def test_boot_id_that_returns_much_later_is_late_data() -> None:
    fleet = Fleet()
    one = machine(machine_id="a", boot_id="b1")
    before = fleet.receive(one)
    fleet.receive(machine(machine_id="a", boot_id="b2"), NOW + SECOND)
    assert fleet.receive(one, NOW + RETURN_NS + 10 * SECOND) == before
    assert not fleet.conflicts


@pytest.mark.parametrize(
    ("late", "received"),
    [
        ({"boot_id": "b3"}, 100),  # under its former name
        ({"boot_id": "b2"}, 100),  # of a boot that no report had
        ({"boot_id": "b1"}, 100),  # of the boot before, which could be a clone's
        ({"boot_id": "b1"}, 2000),
        ({"boot_id": "b2", "name": "node-b"}, 100),  # of the boot before, under the present name
    ],
)
def test_late_report_changes_no_evidence(late: dict[str, str], received: int) -> None:
    """A machine was renamed and booted twice during an outage; its newest report arrived before its backlog."""
    fleet = Fleet()
    before = fleet.receive(machine(machine_id="a", boot_id="b1"))
    renamed = machine(name="node-b", machine_id="a", boot_id="b3")
    for seconds in (90, received - 1):
        assert fleet.receive(renamed, NOW + seconds * SECOND) == before
    assert fleet.receive(machine(machine_id="a", **late), NOW + received * SECOND, NOW + 50 * SECOND) == before
    assert fleet.known[before].machine == renamed
    assert fleet.receive(renamed, NOW + (received + 1) * SECOND) == before
    assert (len(fleet.known), fleet.conflicts) == (1, set())
    assert [one.name for one in names_within(fleet.known[before], NOW, NOW + 99 * SECOND)] == ["node-a", "node-b"]


@pytest.mark.parametrize("late", [{"boot_id": "b1"}, {"boot_id": "b2", "name": "node-b"}])
def test_backlog_of_a_new_machine_changes_no_evidence(late: dict[str, str]) -> None:
    """Its newest report is the first that the hub receives."""
    fleet = Fleet()
    newest = machine(machine_id="a", boot_id="b2")
    id_ = fleet.receive(newest)
    assert fleet.receive(machine(machine_id="a", **late), NOW + SECOND, NOW - 600 * SECOND) == id_
    assert fleet.known[id_].machine == newest
    assert fleet.receive(newest, NOW + 2 * SECOND) == id_
    assert not fleet.conflicts


def test_newest_report_is_not_late_by_the_clock_of_its_sender() -> None:
    fleet = Fleet()
    before = fleet.receive(machine(machine_id="a", boot_id="b1"))
    restarted = machine(name="node-b", machine_id="a", boot_id="b2")
    decision = decide(fleet.known.values(), restarted, NOW + 90 * SECOND, "", NOW - 600 * SECOND)
    assert decision.known is not None
    assert (decision.known.id, decision.known.machine) == (before, restarted)


@pytest.mark.parametrize("made_at", [NOW + 90 * SECOND, NOW - 600 * SECOND, 1])
def test_new_name_is_not_of_the_time_before_it(made_at: int) -> None:
    """Whatever the clock of the machine shows."""
    known = new_machine("m", machine(machine_id="a"), NOW, NOW)
    renamed = decide([known], machine(name="node-b", machine_id="a"), NOW + 90 * SECOND, "", made_at).known
    assert renamed is not None
    names = names_within(renamed, NOW - SECOND, NOW + 100 * SECOND)
    assert [one.name for one in names] == ["node-a", "node-b"]
    assert names[0].end > NOW


def test_backlog_of_a_new_clone_is_not_of_the_first_machine() -> None:
    """The clone has reports from before the other machine booted."""
    fleet = Fleet()
    first = machine(machine_id="cloned", boot_id="b1")
    id_ = fleet.receive(first)
    clone = fleet.receive(machine(name="node-b", machine_id="cloned", boot_id="b2"), NOW + SECOND, NOW - 600 * SECOND)
    assert fleet.receive(first, NOW + 2 * SECOND) == id_ != clone
    assert fleet.conflicts == {id_, clone}


def test_disk_in_another_chassis_is_another_machine() -> None:
    fleet = Fleet()
    before = fleet.receive(machine(machine_id="a", system_uuid="u1", boot_id="b1"))
    after = fleet.receive(machine(machine_id="a", system_uuid="u2", boot_id="b2"), NOW + LIVE_NS + SECOND)
    assert before != after
    assert not fleet.conflicts


def test_guest_cannot_take_the_identity_of_its_host() -> None:
    fleet = Fleet()
    host = machine(machine_id="a", system_uuid="u", boot_id="b1")
    guest = msgspec.structs.replace(host, kind=MachineKind.GUEST, hypervisor="node-a")
    assert fleet.receive(host) != fleet.receive(guest)


def test_guests_of_two_hypervisors_are_two_machines() -> None:
    fleet = Fleet()
    guests = [machine(machine_id="a", boot_id="b", kind="guest", hypervisor=host) for host in ("h1", "h2")]
    assert fleet.receive(guests[0]) != fleet.receive(guests[1])


def test_guest_keeps_its_id_when_its_hypervisor_is_renamed() -> None:
    guest = machine(system_uuid="u", kind="guest", hypervisor="h1")
    known = msgspec.structs.replace(new_machine("m", guest, NOW), host="m-h1")
    renamed = msgspec.structs.replace(guest, hypervisor="renamed")
    assert decide([known], renamed, NOW, "m-h1").verdict is MatchOutcome.SAME
    assert decide([known], guest, NOW, "m-h2").verdict is MatchOutcome.NEW, "another hypervisor has that name now"


@pytest.mark.parametrize(
    ("ages", "bearer"),
    [((3600, 1), "m1"), ((1, 3600), "m0"), ((3600, 7200), "m0"), ((7200, 3600), "m1"), ((1, 1), None)],
)
def test_name_alone_means_the_bearer_that_reports(ages: tuple[int, int], bearer: str | None) -> None:
    known = [
        new_machine(f"m{number}", machine(machine_id=str(number)), NOW - age * SECOND)
        for number, age in enumerate(ages)
    ]
    found = decide(known, machine(), NOW).known
    assert (found.id if found else None) == bearer


def full(number: int, boot: int = 0, name: int | None = None) -> Machine:
    return Machine(
        name=f"node-{number if name is None else name}",
        machine_id=f"id-{number}",
        system_uuid=f"uuid-{number}",
        boot_id=f"boot-{number}-{boot}",
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_machines_are_distinguished_in_any_order(order: list[int]) -> None:
    fleet = Fleet()
    ids: dict[int, str] = {}
    for tick, number in enumerate(order):
        assert fleet.receive(full(number), NOW + tick * SECOND) == ids.setdefault(number, f"m{len(ids)}")
    assert len(fleet.known) == len(set(order))
    assert not fleet.conflicts


@given(st.permutations(list(itertools.product(range(3), range(2)))))
def test_id_is_never_assigned_to_another_system_uuid(order: list[tuple[int, int]]) -> None:
    """Machines with a cloned machine-id and name differ only by system UUID, and restart in any order."""
    fleet = Fleet()
    owner: dict[str, int] = {}
    for tick, (number, boot) in enumerate(order):
        clone = msgspec.structs.replace(full(number, boot), machine_id="cloned", name="cloned")
        id_ = fleet.receive(clone, NOW + tick * SECOND)
        assert owner.setdefault(id_, number) == number
    assert len(fleet.conflicts) == len({number for number, _ in order})


EVIDENCE = st.builds(
    Machine,
    name=st.sampled_from(["a", "b", "c"]),
    machine_id=st.sampled_from([None, "m1", "m2"]),
    system_uuid=st.sampled_from([None, "u1", "u2"]),
    boot_id=st.sampled_from([None, "b1", "b2", "b3"]),
    k8s_node_uid=st.sampled_from([None, "k1"]),
)


@given(st.lists(st.tuples(EVIDENCE, st.integers(0, 900)), max_size=30))
def test_system_uuid_of_an_id_never_changes(events: list[tuple[Machine, int]]) -> None:
    fleet = Fleet()
    at = NOW
    for evidence, seconds in events:
        at += seconds * SECOND
        before = dict(fleet.known)
        id_ = fleet.receive(evidence, at)
        old = before.get(id_)
        if old is not None and old.machine.system_uuid and evidence.system_uuid:
            assert old.machine.system_uuid == evidence.system_uuid
        assert all(fleet.known[other] == known for other, known in before.items() if other != id_)


def test_ids_of_one_machine_have_its_main_id() -> None:
    found = [
        SucceededMachine(cluster="c", machine=one, successor="m-a", last_seen=1, was_reported=True)
        for one in ("m-old", "m-older")
    ]
    ids = MachineIds(found)
    assert ids.of("m-old") == ids.of("m-a") == ("m-a", "m-old", "m-older")
    assert (ids.main("m-older"), ids.main("m-b"), ids.of("m-b")) == ("m-a", "m-b", ("m-b",))
