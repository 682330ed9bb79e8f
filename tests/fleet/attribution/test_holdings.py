"""Holdings over time: declarations, observations, restarts, failures."""

import msgspec
import pytest

from gpufleet.fleet.attribution.device_index import DeviceIndex, IndexedDevice
from gpufleet.fleet.attribution.holdings import RESTART_SECONDS, Answer, HoldingsRound, HoldingTracker
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import (
    CertainPeriod,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Method,
    Share,
)
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.holder import DeviceName, HolderClaim, HolderId, HolderReport, Naming

UIDS = {name: f"00000000-0000-0000-0000-00000000000{number}" for number, name in enumerate("abcd")}
GPUS = [View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}") for number in range(3)]
INDEX = DeviceIndex([IndexedDevice(view, minor=number) for number, view in enumerate(GPUS)])
FIRST, SECOND, THIRD = (view.key for view in GPUS)


def pod(name: str) -> Holder:
    return Holder(kind=HolderKind.POD, id=UIDS[name], name=name, namespace="ml")


def declared(name: str, *gpus: int, share: Share = Share.EXCLUSIVE, container: str = "main") -> HolderClaim:
    return HolderClaim(
        holder=pod(name),
        devices=tuple(DeviceName(Naming.UUID, f"GPU-{gpu}") for gpu in gpus),
        method=Method.KUBELET,
        container=container,
        share=share,
    )


def process(name: str, *gpus: int, method: Method = Method.PROCESS) -> HolderClaim:
    return HolderClaim(
        holder=Holder(kind=HolderKind.POD, id=UIDS[name]),
        devices=tuple(DeviceName(Naming.MINOR, str(gpu)) for gpu in gpus),
        method=method,
    )


def kubelet(*claims: HolderClaim, session: str = "1", listed: str = "") -> HolderReport:
    ids: set[HolderId] = {(claim.holder.kind, claim.holder.id) for claim in claims}
    return HolderReport(
        claims=claims,
        session=session,
        lists=HolderKind.POD,
        listed=frozenset(ids | {(HolderKind.POD, UIDS[n]) for n in listed}),
    )


def processes(*claims: HolderClaim, living: str | None = None, unattributed: tuple[str, ...] = ()) -> HolderReport:
    return HolderReport(
        claims=claims,
        observes=True,
        living=None if living is None else frozenset((HolderKind.POD, UIDS[name]) for name in living),
        unattributed=frozenset(unattributed),
    )


TIMEOUT = HolderError(Reason.TIMEOUT, "no answer within 5 s")
ABSENT = HolderError(Reason.NOT_ENABLED, "not on this machine")


class Node:
    """A tracker and its clock: one round every 10 s."""

    def __init__(self, tracker: HoldingTracker | None = None) -> None:
        self.tracker = tracker or HoldingTracker()
        self.now = 1_000 * NANOS

    def round(self, **answers: Answer) -> HoldingsRound:
        self.now += 10 * NANOS
        return self.tracker.update(answers, INDEX, self.now)


def verdicts(result: HoldingsRound, view: str = FIRST) -> dict[str, HoldingVerdict]:
    return {UIDS_BACK[one.holder.id]: one.verdict for one in result.devices[view].holdings}


UIDS_BACK = {uid: name for name, uid in UIDS.items()}


def test_declared_and_observed_holder_agree() -> None:
    result = Node().round(kubelet=kubelet(declared("a", 0)), processes=processes(process("a", 0)))

    (holding,) = result.devices[FIRST].holdings
    assert holding.verdict is HoldingVerdict.AGREED
    assert holding.methods == ("kubelet", "process")
    assert (holding.holder.name, holding.holder.id, holding.container) == ("a", UIDS["a"], "main")
    assert result.devices[SECOND].state is HolderState.FREE


def test_idle_holder_is_declared_only() -> None:
    result = Node().round(kubelet=kubelet(declared("a", 0)), processes=processes())

    assert verdicts(result) == {"a": HoldingVerdict.DECLARED_ONLY}


def test_process_of_undeclared_pod_is_a_conflict_of_both() -> None:
    result = Node().round(kubelet=kubelet(declared("a", 0)), processes=processes(process("b", 0)))

    assert verdicts(result) == {"a": HoldingVerdict.CONFLICT, "b": HoldingVerdict.CONFLICT}
    assert result.devices[FIRST].detail


def test_holder_with_processes_does_not_lose_its_verdict_to_an_intruder() -> None:
    result = Node().round(kubelet=kubelet(declared("a", 0)), processes=processes(process("a", 0), process("b", 0)))

    assert verdicts(result) == {"a": HoldingVerdict.AGREED, "b": HoldingVerdict.CONFLICT}


def test_sharers_are_several_holdings_without_conflict() -> None:
    claims = [declared(name, 0, share=Share.TIMESLICE) for name in "ab"]
    result = Node().round(kubelet=kubelet(*claims), processes=processes(process("b", 0)))

    assert verdicts(result) == {"a": HoldingVerdict.DECLARED_ONLY, "b": HoldingVerdict.AGREED}


def test_open_device_file_confirms_and_never_creates_a_holding() -> None:
    opened = processes(process("a", 0, method=Method.DEVICE_FILE), process("b", 0, 1, method=Method.DEVICE_FILE))
    result = Node().round(kubelet=kubelet(declared("a", 0)), processes=opened)

    assert verdicts(result) == {"a": HoldingVerdict.AGREED}
    assert result.devices[SECOND].state is HolderState.FREE


def test_holding_ends_with_the_first_of_two_reports_without_it() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    started = node.now
    first = node.round(kubelet=kubelet())
    ended_at = node.now
    second = node.round(kubelet=kubelet())

    assert verdicts(first) == {"a": HoldingVerdict.UNKNOWN}
    assert first.devices[FIRST].state is HolderState.UNKNOWN
    assert [(one.holder.name, one.since, one.until) for one in second.ended] == [("a", started, ended_at)]
    assert second.devices[FIRST].state is HolderState.FREE


def test_pod_whose_cgroup_exists_is_not_ended() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)), processes=processes(living="a"))
    for _ in range(5):
        result = node.round(kubelet=kubelet(), processes=processes(living="a"))
        assert verdicts(result) == {"a": HoldingVerdict.UNKNOWN}
        assert result.devices[SECOND].state is HolderState.UNKNOWN  # the list is short
    node.round(kubelet=kubelet(), processes=processes(living=""))

    assert node.round(kubelet=kubelet(), processes=processes(living="")).devices[FIRST].state is HolderState.FREE


def test_restarted_kubelet_does_not_end_holdings_without_proof() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    started = node.now
    for _ in range(int(RESTART_SECONDS / 10) - 1):
        assert not node.round(kubelet=kubelet(session="2")).ended
    back = node.round(kubelet=kubelet(declared("a", 0), session="2"))

    assert verdicts(back) == {"a": HoldingVerdict.DECLARED_ONLY}
    assert back.devices[FIRST].holdings[0].since == started


def test_restarted_kubelet_leaves_free_devices_unknown_at_first() -> None:
    node = Node()
    node.round(kubelet=kubelet(), processes=processes(living=""))
    first = node.round(kubelet=kubelet(session="2"), processes=processes(living=""))
    second = node.round(kubelet=kubelet(session="2"), processes=processes(living=""))

    assert first.devices[FIRST].state is HolderState.UNKNOWN
    assert second.devices[FIRST].state is HolderState.FREE


def test_without_cgroups_a_young_kubelet_does_not_prove_free_devices() -> None:
    node = Node()
    young = msgspec.structs.replace(kubelet(), started_at=node.now)

    assert node.round(kubelet=young).devices[FIRST].state is HolderState.UNKNOWN
    node.now += int(RESTART_SECONDS) * NANOS
    assert node.round(kubelet=young).devices[FIRST].state is HolderState.FREE


def test_start_in_the_future_does_not_leave_devices_unknown_for_long() -> None:
    node = Node()
    ahead = msgspec.structs.replace(kubelet(), started_at=node.now + 86_400 * NANOS)

    assert node.round(kubelet=ahead).devices[FIRST].state is HolderState.UNKNOWN
    node.now += int(RESTART_SECONDS) * NANOS
    assert node.round(kubelet=ahead).devices[FIRST].state is HolderState.FREE
    node.now -= 3_600 * NANOS
    node.round(kubelet=ahead)
    node.now += int(RESTART_SECONDS) * NANOS
    assert node.round(kubelet=ahead).devices[FIRST].state is HolderState.FREE


def test_holding_is_unknown_while_its_source_does_not_answer() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    for _ in range(5):
        result = node.round(kubelet=TIMEOUT)
        assert verdicts(result) == {"a": HoldingVerdict.UNKNOWN}
        assert result.devices[FIRST].state is HolderState.UNKNOWN
        assert result.devices[SECOND].state is HolderState.UNKNOWN

    assert verdicts(node.round(kubelet=kubelet(declared("a", 0)))) == {"a": HoldingVerdict.DECLARED_ONLY}


def test_socket_that_disappears_is_a_failure_of_a_known_source() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))

    assert verdicts(node.round(kubelet=ABSENT)) == {"a": HoldingVerdict.UNKNOWN}


def test_machine_without_sources_reports_unknown() -> None:
    result = Node().round(kubelet=ABSENT, slurm=ABSENT, processes=processes())

    assert {one.state for one in result.devices.values()} == {HolderState.UNKNOWN}


def test_unresolved_name_makes_free_devices_unknown() -> None:
    strange = HolderClaim(
        holder=pod("a"), devices=(DeviceName(Naming.UNRESOLVED, "gpu.nvidia.com/pool/gpu-0"),), method=Method.KUBELET
    )
    result = Node().round(kubelet=kubelet(strange))

    assert [one.name.name.text for one in result.unresolved] == ["gpu.nvidia.com/pool/gpu-0"]
    assert result.devices[FIRST].state is HolderState.UNKNOWN


def test_process_of_no_known_holder_makes_its_device_unknown() -> None:
    result = Node().round(kubelet=kubelet(), processes=processes(unattributed=(FIRST,)))

    assert result.devices[FIRST].state is HolderState.UNKNOWN
    assert result.devices[SECOND].state is HolderState.FREE


def test_device_that_left_the_bus_is_still_held() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    node.now += 10 * NANOS
    without = DeviceIndex([IndexedDevice(view) for view in GPUS[1:]])
    for _ in range(3):
        result = node.tracker.update({"kubelet": kubelet(declared("a", 0))}, without, node.now)
        assert not result.ended

    assert [one.holder.name for one in node.tracker.current] == ["a"]


def part(number: int, instance: str) -> View:
    return View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{number}", instance=instance, parent=FIRST)


def split(*parts: View) -> DeviceIndex:
    return DeviceIndex(
        [*(IndexedDevice(view, minor=number) for number, view in enumerate(GPUS)), *map(IndexedDevice, parts)]
    )


def named(naming: Naming, text: str) -> HolderReport:
    return kubelet(msgspec.structs.replace(declared("a"), devices=(DeviceName(naming, text),), share=Share.MIG))


def states(result: HoldingsRound) -> dict[str, HolderState]:
    return {view: one.state for view, one in result.devices.items()}


def test_name_that_becomes_ambiguous_loses_its_earlier_meaning() -> None:
    node, report = Node(), named(Naming.MIG_OF_MINOR, "0/1")
    node.tracker.update({"kubelet": report}, split(part(1, "1/0")), node.now)
    result = node.tracker.update({"kubelet": report}, split(part(1, "1/0"), part(2, "1/1")), node.now + 1)

    assert len(result.unresolved) == 1
    assert result.devices[part(1, "1/0").key].state is HolderState.UNKNOWN
    assert result.devices[part(2, "1/1").key].state is HolderState.UNKNOWN


def test_gpu_is_not_free_while_a_vanished_part_of_it_is_held() -> None:
    node, report = Node(), named(Naming.UUID, "MIG-1")
    node.tracker.update({"kubelet": report}, split(part(1, "1/0")), node.now)
    unsplit = node.tracker.update({"kubelet": report}, split(), node.now + 1)
    again = node.tracker.update({"kubelet": report}, split(part(2, "2/0")), node.now + 2)

    assert states(unsplit) == {FIRST: HolderState.UNKNOWN, SECOND: HolderState.FREE, THIRD: HolderState.FREE}
    assert states(again)[part(2, "2/0").key] is HolderState.UNKNOWN


def test_gpu_under_another_identity_is_not_free_while_it_is_held() -> None:
    node = Node()
    bound = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-0", pci_address="0000:3b:00.0")
    unbound = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:3b:00.0")
    other = IndexedDevice(GPUS[1])
    report = kubelet(declared("a", 0))
    node.tracker.update({"kubelet": report}, DeviceIndex([IndexedDevice(bound), other]), node.now)
    result = node.tracker.update({"kubelet": report}, DeviceIndex([IndexedDevice(unbound), other]), node.now + 1)

    assert states(result) == {unbound.key: HolderState.UNKNOWN, SECOND: HolderState.FREE}


def test_remembered_holding_of_an_unknown_device_leaves_no_device_free() -> None:
    gone = msgspec.structs.replace(remembered("a"), view="mig/MIG-9")
    node = Node(HoldingTracker([gone], saved_at=7, sources=["kubelet"]))

    assert node.round(kubelet=kubelet()).devices[SECOND].state is HolderState.UNKNOWN


def test_part_of_a_gpu_that_is_held_as_a_whole_is_not_free() -> None:
    node, report = Node(), kubelet(declared("a", 0))
    node.tracker.update({"kubelet": report}, split(), node.now)
    result = node.tracker.update({"kubelet": report}, split(part(1, "1/0")), node.now + 1)

    assert states(result) == {
        FIRST: HolderState.HELD,
        part(1, "1/0").key: HolderState.UNKNOWN,
        SECOND: HolderState.FREE,
        THIRD: HolderState.FREE,
    }


def test_holder_whose_device_is_not_read_yet_is_not_ended() -> None:
    node = Node(HoldingTracker([remembered("a")], saved_at=7, sources=["kubelet"]))
    for _ in range(3):
        node.now += 10 * NANOS
        assert not node.tracker.update({"kubelet": kubelet(declared("a", 0))}, DeviceIndex([]), node.now).ended
    (holding,) = node.round(kubelet=kubelet(declared("a", 0))).devices[FIRST].holdings

    assert (holding.since, holding.verdict) == (5, HoldingVerdict.DECLARED_ONLY)


def test_unknown_state_has_its_reason() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))

    assert node.round(kubelet=kubelet()).devices[FIRST].detail


def job(since: int, account: str = "") -> HolderReport:
    claim = HolderClaim(
        holder=Holder(kind=HolderKind.JOB, id="12", account=account),
        devices=(DeviceName(Naming.MINOR, "0"),),
        method=Method.SCHEDULER,
        since=since * NANOS,
    )
    return HolderReport(claims=(claim,))


def intervals(ended: tuple[Holding, ...]) -> list[tuple[str, int, int]]:
    return [(one.holder.id, one.since // NANOS, (one.until or 0) // NANOS) for one in ended]


def test_requeued_job_ends_its_earlier_holding() -> None:
    node = Node()
    node.round(slurm=job(900))
    node.round(slurm=TIMEOUT)
    result = node.round(slurm=job(1_025))

    assert intervals(result.ended) == [("12", 900, 1_020)]  # unknown from the first failure on
    assert [one.since for one in result.devices[FIRST].holdings] == [1_025 * NANOS]
    assert not node.round(slurm=job(1_025)).ended


def test_pod_of_the_same_uid_after_a_reboot_is_a_new_holding() -> None:
    node = Node(HoldingTracker([remembered("a")], saved_at=7))
    result = node.round(kubelet=kubelet(declared("a", 0)))

    assert [(one.holder.name, one.since, one.until) for one in result.ended] == [("a", 5, 7)]
    assert [one.since for one in result.devices[FIRST].holdings] == [node.now]


def test_process_that_outlives_its_job_begins_a_holding_of_its_own() -> None:
    node, left = Node(), process("a", 0)
    left = msgspec.structs.replace(left, holder=Holder(kind=HolderKind.JOB, id="12"))
    node.round(slurm=job(900), processes=processes(left))
    found = [node.round(slurm=HolderReport(), processes=processes(left)) for _ in range(3)]
    ended = [interval for result in found for interval in intervals(result.ended)]
    (holding,) = found[-1].devices[FIRST].holdings

    assert ended == [("12", 900, holding.since // NANOS)]
    assert holding.verdict is HoldingVerdict.CONFLICT  # SLURM does not list it


def of_job(id_: str, *gpus: int) -> HolderClaim:
    return msgspec.structs.replace(process("a", *gpus), holder=Holder(kind=HolderKind.JOB, id=id_))


def test_job_of_a_cgroup_that_slurm_does_not_list_is_not_certain() -> None:
    """Its number can be that of a job of another SLURM cluster."""
    node = Node()
    seen = processes(of_job("12", 0), of_job("13", 1))
    before = node.round(processes=seen)
    listed = node.round(slurm=job(900), processes=seen)
    failing = node.round(slurm=TIMEOUT, processes=seen)

    assert [one.verdict for one in before.devices[SECOND].holdings] == [HoldingVerdict.OBSERVED_ONLY]
    assert [one.verdict for one in listed.devices[FIRST].holdings] == [HoldingVerdict.AGREED]
    for result in (listed, failing):
        assert [one.verdict for one in result.devices[SECOND].holdings] == [HoldingVerdict.CONFLICT]


OF_NODE = msgspec.structs.replace(job(900), nodes=frozenset({"n1"}))
"""Report of the cluster in which this machine is the node n1."""


def test_job_on_a_node_of_another_cluster_does_not_confirm_its_namesake() -> None:
    node, seen = Node(), processes(of_job("n2/12", 0, 1))
    result = node.round(slurm=OF_NODE, processes=seen)
    found = {view: {one.holder.id for one in result.devices[view].holdings} for view in (FIRST, SECOND)}

    assert found == {FIRST: {"12", "n2/12"}, SECOND: {"n2/12"}}
    assert {one.verdict for one in result.devices[FIRST].holdings} == {HoldingVerdict.CONFLICT}
    failing = node.round(slurm=TIMEOUT, processes=seen)
    assert {one.holder.id for one in failing.devices[FIRST].holdings} == {"12", "n2/12"}


@pytest.mark.parametrize("id_", ["12", "n1/12"])
def test_job_on_a_node_of_this_cluster_confirms_the_declared_job(id_: str) -> None:
    (holding,) = Node().round(slurm=OF_NODE, processes=processes(of_job(id_, 0))).devices[FIRST].holdings
    assert (holding.holder.id, holding.verdict) == ("12", HoldingVerdict.AGREED)


@pytest.mark.parametrize(("living", "ends"), [("n1/12", False), ("n2/12", True)])
def test_job_is_kept_by_processes_of_its_own_cluster_only(living: str, ends: bool) -> None:
    node, empty = Node(), HolderReport(nodes=frozenset({"n1"}))
    seen = HolderReport(observes=True, living=frozenset({(HolderKind.JOB, living)}))
    node.round(slurm=OF_NODE, processes=seen)
    ended = [one for _ in range(3) for one in node.round(slurm=empty, processes=seen).ended]
    assert [one.holder.id for one in ended] == (["12"] if ends else [])


def test_node_of_a_job_is_left_out_while_slurm_names_no_node() -> None:
    (holding,) = Node().round(processes=processes(of_job("n2/12", 0))).devices[FIRST].holdings
    assert holding.holder.id == "12"


def test_node_of_a_job_stays_until_slurm_has_named_its_nodes() -> None:
    node, seen = Node(HoldingTracker(slurm_nodes=None)), processes(of_job("n2/12", 0))
    for answers in ({}, {"slurm": TIMEOUT}, {"slurm": OF_NODE}):
        found = node.round(**answers, processes=seen).devices[FIRST].holdings
        assert "n2/12" in {one.holder.id for one in found}
    assert node.tracker.slurm_nodes == frozenset({"n1"})


def test_node_of_a_job_is_left_out_on_a_machine_without_slurm() -> None:
    missing = HolderError(Reason.NOT_ENABLED, "no SLURM")
    (holding,) = (
        Node(HoldingTracker(slurm_nodes=None))
        .round(slurm=missing, processes=processes(of_job("n2/12", 0)))
        .devices[FIRST]
        .holdings
    )
    assert holding.holder.id == "12"


def test_unlisted_job_leaves_room_for_holders_that_slurm_cannot_report() -> None:
    node = Node()
    node.round(slurm=HolderReport(), processes=processes(of_job("13", 1)))
    result = node.round(slurm=TIMEOUT, processes=processes(of_job("13", 1)))

    assert result.devices[SECOND].state is HolderState.UNKNOWN


def test_incomplete_answer_of_slurm_does_not_make_a_job_unlisted() -> None:
    report = msgspec.structs.replace(job(900), complete=False)
    result = Node().round(slurm=report, processes=processes(of_job("13", 1)))

    assert [one.verdict for one in result.devices[SECOND].holdings] == [HoldingVerdict.OBSERVED_ONLY]


def test_start_that_the_scheduler_moves_back_leaves_no_overlap() -> None:
    node = Node()
    node.round(slurm=job(900))

    assert intervals(node.round(slurm=job(890)).ended) == [("12", 900, 900)]


def test_reassigned_device_ends_the_earlier_holding_after_a_restart() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    node.round(kubelet=kubelet(declared("b", 0), session="2"))
    result = node.round(kubelet=kubelet(declared("b", 0), session="2"))

    assert verdicts(result) == {"b": HoldingVerdict.DECLARED_ONLY}


def unnamed(name: str) -> HolderClaim:
    claim = declared(name, 0)
    return msgspec.structs.replace(claim, holder=msgspec.structs.replace(claim.holder, id=f"ml/{name}"))


def test_holding_of_a_pod_begins_again_when_its_uid_becomes_known() -> None:
    node = Node()
    node.round(kubelet=kubelet(unnamed("a")))
    started = node.now
    result = node.round(kubelet=kubelet(declared("a", 0)))

    (holding,) = result.devices[FIRST].holdings
    assert (holding.holder.id, holding.since) == (UIDS["a"], node.now)
    assert [(one.holder.id, one.since, one.until) for one in result.ended] == [("ml/a", started, node.now)]


def test_pod_without_uid_begins_again_after_an_outage() -> None:
    """It can be another pod of its name."""
    node = Node()
    node.round(kubelet=kubelet(unnamed("a")))
    started = node.now
    node.round(kubelet=TIMEOUT)
    failed_at = node.now
    result = node.round(kubelet=kubelet(unnamed("a")))

    assert [(one.since, one.until) for one in result.ended] == [(started, failed_at)]
    assert [one.since for one in result.devices[FIRST].holdings] == [node.now]


def test_uid_of_a_pod_that_does_not_run_is_not_accepted() -> None:
    """The folders of a dead pod of the same name can outlive it."""
    node = Node()
    running = msgspec.structs.replace(process("b", 0), holder=Holder(kind=HolderKind.POD, id=UIDS["b"]))
    first = node.round(kubelet=kubelet(declared("a", 0)), processes=processes(running, living="b"))
    again = node.round(kubelet=kubelet(declared("a", 0)), processes=TIMEOUT)
    final = node.round(kubelet=kubelet(renamed("a", "b")), processes=processes(running, living="b"))

    assert {one.holder.id: one.verdict for one in first.devices[FIRST].holdings} == {
        "ml/a": HoldingVerdict.DECLARED_ONLY,
        UIDS["b"]: HoldingVerdict.OBSERVED_ONLY,
    }
    assert first.devices[SECOND].state is HolderState.UNKNOWN  # pod b may have more devices
    assert "ml/a" in {one.holder.id for one in again.devices[FIRST].holdings}
    assert verdicts(final) == {"b": HoldingVerdict.AGREED}


def renamed(name: str, uid: str) -> HolderClaim:
    claim = declared(name, 0)
    return msgspec.structs.replace(claim, holder=msgspec.structs.replace(claim.holder, id=UIDS[uid]))


def test_unresolved_name_of_an_observation_leaves_free_devices_free() -> None:
    observed = msgspec.structs.replace(process("a"), devices=(DeviceName(Naming.UNRESOLVED, "/dev/x"),))
    result = Node().round(kubelet=kubelet(), processes=processes(observed))

    assert len(result.unresolved) == 1
    assert result.devices[FIRST].state is HolderState.FREE


def test_device_with_an_open_file_of_no_known_holder_is_unknown() -> None:
    report = msgspec.structs.replace(
        processes(), unattributed_devices=frozenset({DeviceName(Naming.MINOR, "0"), DeviceName(Naming.MINOR, "1")})
    )
    result = Node().round(kubelet=kubelet(declared("b", 1)), processes=report)

    assert [result.devices[view].state for view in (FIRST, SECOND, THIRD)] == [
        HolderState.UNKNOWN,
        HolderState.HELD,
        HolderState.FREE,
    ]


def remembered(name: str) -> Holding:
    return Holding(
        view=FIRST,
        holder=pod(name),
        container="main",
        since=5,
        methods=("kubelet",),
        verdict=HoldingVerdict.DECLARED_ONLY,
    )


def test_remembered_holding_is_unknown_until_confirmed() -> None:
    node = Node(HoldingTracker([remembered("a")], saved_at=7, sources=["kubelet"]))

    assert verdicts(node.round(kubelet=TIMEOUT)) == {"a": HoldingVerdict.UNKNOWN}
    result = node.round(kubelet=kubelet(declared("a", 0)))
    (holding,) = result.devices[FIRST].holdings
    assert (holding.since, holding.verdict) == (5, HoldingVerdict.DECLARED_ONLY)


def test_holding_of_an_earlier_boot_ends_when_it_was_saved() -> None:
    node = Node(HoldingTracker([remembered("a")], saved_at=7))
    result = node.round(kubelet=kubelet())

    assert [(one.holder.name, one.until) for one in result.ended] == [("a", 7)]


def test_ended_holding_has_its_last_certain_verdict() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)), processes=processes(process("a", 0)))
    node.round(kubelet=kubelet(), processes=processes())
    (ended,) = node.round(kubelet=kubelet(), processes=processes()).ended

    assert (ended.verdict, ended.until) == (HoldingVerdict.AGREED, node.now - 10 * NANOS)


def test_holding_that_ends_in_an_outage_of_its_source_ends_with_its_last_confirmation() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    for _ in range(10):
        node.round(kubelet=TIMEOUT)
    node.round(kubelet=kubelet())
    (ended,) = node.round(kubelet=kubelet()).ended

    assert (ended.verdict, ended.until) == (HoldingVerdict.DECLARED_ONLY, node.now - 110 * NANOS)


def test_holding_that_was_never_certain_ends_without_certainty() -> None:
    node = Node(HoldingTracker([msgspec.structs.replace(remembered("a"), verdict=HoldingVerdict.CONFLICT)], saved_at=7))

    assert [one.verdict for one in node.round(kubelet=kubelet()).ended] == [HoldingVerdict.CONFLICT]


def test_conflict_is_a_holding_of_its_own_in_time() -> None:
    """Usage before and after the conflict is that of the holder."""
    node = Node()
    alone, intruder = processes(), processes(process("b", 0))
    node.round(kubelet=kubelet(declared("a", 0)), processes=alone)
    started = node.now
    begun = node.round(kubelet=kubelet(declared("a", 0)), processes=intruder)
    disputed = node.now
    assert verdicts(begun) == {"a": HoldingVerdict.CONFLICT, "b": HoldingVerdict.CONFLICT}
    assert {one.since for one in begun.devices[FIRST].holdings} == {disputed}
    for _ in range(2):
        over = node.round(kubelet=kubelet(declared("a", 0)), processes=alone)
    resolved = node.now - 10 * NANOS

    rows = [(UIDS_BACK[one.holder.id], one.since, one.until, one.verdict) for one in begun.ended]
    assert rows == [("a", started, disputed, HoldingVerdict.DECLARED_ONLY)]
    (holding,) = over.devices[FIRST].holdings
    assert (holding.since, holding.verdict) == (resolved, HoldingVerdict.DECLARED_ONLY)
    assert (over.ended[0].since, over.ended[0].until) == (disputed, resolved)


def test_outage_does_not_end_a_conflict() -> None:
    node = Node()
    disputed = {"kubelet": kubelet(declared("a", 0)), "processes": processes(process("b", 0))}
    node.round(**disputed)
    started = node.now
    unknown = node.round(kubelet=TIMEOUT, processes=processes(process("b", 0)))
    again = node.round(**disputed)

    assert [one.certain for one in unknown.devices[FIRST].holdings if one.holder == pod("a")] == [None]
    (holding,) = [one for one in again.devices[FIRST].holdings if one.holder == pod("a")]
    assert (holding.since, holding.verdict) == (started, HoldingVerdict.CONFLICT)


def test_unknown_holding_has_its_certain_part() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    started = node.now
    for _ in range(3):
        (unknown,) = node.round(kubelet=TIMEOUT).devices[FIRST].holdings
    (confirmed,) = node.round(kubelet=kubelet(declared("a", 0))).devices[FIRST].holdings

    ceased = started + 10 * NANOS
    assert unknown.certain == CertainPeriod(verdict=HoldingVerdict.DECLARED_ONLY, until=ceased)
    assert (unknown.since, confirmed.since, confirmed.certain) == (started, started, None)


def test_certain_part_survives_restarts() -> None:
    node = Node(HoldingTracker([remembered("a")], saved_at=7, sources=["kubelet"]))
    (first,) = node.round(kubelet=TIMEOUT).devices[FIRST].holdings
    node = Node(HoldingTracker(node.tracker.current, saved_at=node.now, sources=["kubelet"]))
    (second,) = node.round(kubelet=TIMEOUT).devices[FIRST].holdings

    assert first.certain == second.certain == CertainPeriod(verdict=HoldingVerdict.DECLARED_ONLY, until=7)


def test_job_after_a_conflict_keeps_its_start_over_a_restart() -> None:
    node = Node()
    for found in (processes(process("b", 0)), processes(), processes()):
        node.round(slurm=job(900), processes=found)
    (before,) = node.tracker.current
    node = Node(HoldingTracker([before], saved_at=node.now, sources=["slurm"]))
    result = node.round(slurm=job(900), processes=processes())

    assert before.since > 900 * NANOS
    assert [one.since for one in result.devices[FIRST].holdings] == [before.since]
    assert not result.ended


def test_job_with_another_account_is_another_holding() -> None:
    node = Node()
    node.round(slurm=job(900, "lab"))
    unknown = [node.round(slurm=answer) for answer in (TIMEOUT, job(900), job(900, "lab"))]
    changed = node.round(slurm=job(900, "physics"))

    assert not any(one.ended for one in unknown)
    (holding,) = changed.devices[FIRST].holdings
    assert (holding.since, holding.holder.account) == (node.now, "physics")
    (ended,) = changed.ended
    assert (ended.holder.account, ended.until, ended.verdict) == ("lab", node.now, HoldingVerdict.DECLARED_ONLY)
    node = Node(HoldingTracker(node.tracker.current, saved_at=node.now, sources=["slurm"]))
    assert not node.round(slurm=job(900, "physics")).ended


def test_processes_that_end_after_their_job_do_not_shorten_it() -> None:
    node, running, own = Node(), job(900, "lab"), of_job("12", 0)
    node.round(slurm=running, processes=processes())
    for _ in range(3):
        node.round(slurm=running, processes=processes(own))
    rounds = [node.round(slurm=HolderReport(), processes=processes(own))]
    stopped = node.now
    rounds += [node.round(slurm=HolderReport(), processes=processes()) for _ in range(2)]

    ended = [one for result in rounds for one in result.ended]
    assert [(one.since, one.until, one.verdict) for one in ended] == [(900 * NANOS, stopped, HoldingVerdict.AGREED)]
    assert ended[0].holder.account == "lab"


def test_processes_before_and_after_a_job_leave_it_as_it_was() -> None:
    node, own = Node(), of_job("12", 0)
    node.round(slurm=HolderReport(), processes=processes(own))
    begun = node.now + 5 * NANOS
    node.round(slurm=job(begun // NANOS), processes=processes(own))
    unknown = node.round(slurm=HolderReport(), processes=processes(own))
    ceased = node.now
    left = node.round(slurm=HolderReport(), processes=processes(own))

    assert [one.since for one in unknown.devices[FIRST].holdings] == [begun]
    assert [(one.since, one.until, one.verdict) for one in left.ended] == [(begun, ceased, HoldingVerdict.AGREED)]
    (rest,) = left.devices[FIRST].holdings
    assert (rest.since, rest.verdict) == (ceased, HoldingVerdict.CONFLICT)  # SLURM does not list it


def test_job_keeps_its_account_if_a_later_report_lacks_it() -> None:
    node = Node()
    node.round(slurm=job(900, "lab"))
    (holding,) = node.round(slurm=job(900)).devices[FIRST].holdings

    assert (holding.holder.account, holding.since) == ("lab", 900 * NANOS)


def test_job_ends_when_its_successor_begins() -> None:
    node = Node()
    node.round(slurm=job(900))
    following = msgspec.structs.replace(job(1_015).claims[0], holder=Holder(kind=HolderKind.JOB, id="13"))
    rounds = [node.round(slurm=HolderReport(claims=(following,))) for _ in range(2)]

    assert intervals(tuple(one for result in rounds for one in result.ended)) == [("12", 900, 1_015)]


def test_processes_after_a_reboot_begin_a_new_holding() -> None:
    left = msgspec.structs.replace(remembered("a"), methods=("process",), container="")
    node = Node(HoldingTracker([left], saved_at=7))
    result = node.round(kubelet=ABSENT, processes=processes(process("a", 0)))

    assert [(one.since, one.until) for one in result.ended] == [(5, 7)]
    assert [one.since for one in result.devices[FIRST].holdings] == [node.now]
