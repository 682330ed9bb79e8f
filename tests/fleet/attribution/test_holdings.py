"""Holdings over time: declarations, observations, restarts, failures."""

import msgspec

from gpufleet.fleet.attribution.device_index import DeviceIndex, IndexedDevice
from gpufleet.fleet.attribution.holdings import RESTART_SECONDS, Answer, HoldingsRound, HoldingTracker
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import Holder, HolderKind, HolderState, Holding, HoldingVerdict, Method, Share
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


def test_reassigned_device_ends_the_earlier_holding_after_a_restart() -> None:
    node = Node()
    node.round(kubelet=kubelet(declared("a", 0)))
    node.round(kubelet=kubelet(declared("b", 0), session="2"))
    result = node.round(kubelet=kubelet(declared("b", 0), session="2"))

    assert verdicts(result) == {"b": HoldingVerdict.DECLARED_ONLY}


def test_uid_that_becomes_known_continues_the_holding() -> None:
    node = Node()
    unnamed = HolderClaim(
        holder=Holder(kind=HolderKind.POD, id="ml/a", name="a", namespace="ml"),
        devices=(DeviceName(Naming.UUID, "GPU-0"),),
        method=Method.KUBELET,
        container="main",
    )
    node.round(kubelet=kubelet(unnamed))
    started = node.now
    result = node.round(kubelet=kubelet(declared("a", 0)))

    (holding,) = result.devices[FIRST].holdings
    assert (holding.holder.id, holding.since) == (UIDS["a"], started)


def test_virtual_machine_is_the_parent_of_its_launcher_pod() -> None:
    vm = Holder(kind=HolderKind.VM, id="11111111-0000-0000-0000-000000000000", name="vm")
    by_pod = HolderClaim(
        holder=Holder(kind=HolderKind.POD, id=UIDS["a"]),
        devices=(DeviceName(Naming.UUID, "GPU-0"),),
        method=Method.PROCESS,
        parent=Holder(kind=HolderKind.VM, id=vm.id),
    )
    by_libvirt = HolderClaim(holder=vm, devices=(DeviceName(Naming.UUID, "GPU-0"),), method=Method.HYPERVISOR)
    result = Node().round(
        kubelet=kubelet(declared("a", 0)), processes=processes(by_pod), libvirt=HolderReport(claims=(by_libvirt,))
    )

    (holding,) = result.devices[FIRST].holdings
    assert (holding.holder.name, holding.verdict) == ("a", HoldingVerdict.AGREED)
    assert holding.parent == vm


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
