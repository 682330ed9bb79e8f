"""Evidence of one view, joined to holdings: containers, merged fields, conflicts of declarations."""

import msgspec

from gpufleet.fleet.attribution.evidence import Evidence, join
from gpufleet.model.holdings import MAX_STEPS, Holder, HolderKind, Holding, HoldingVerdict, Method, Share
from gpufleet.ports.holder import HolderClaim

VIEW = "gpu/GPU-1"


def evidence(
    holder: Holder, method: Method, *, container: str = "", container_id: str = "", share: Share = Share.EXCLUSIVE
) -> Evidence:
    claim = HolderClaim(
        holder=holder, devices=(), method=method, container=container, container_id=container_id, share=share
    )
    return Evidence(claim, since=1)


def pod(uid: str, **known: str) -> Holder:
    return Holder(kind=HolderKind.POD, id=f"uid-{uid}", **known)  # type: ignore[arg-type]  # texts only


def joined(*found: Evidence) -> list[Holding]:
    return [one.holding for one in join(VIEW, found)]


def test_process_confirms_only_its_own_container() -> None:
    first = evidence(pod("a"), Method.KUBELET, container="x", container_id="1" * 64, share=Share.TIMESLICE)
    second = evidence(pod("a"), Method.KUBELET, container="y", container_id="2" * 64, share=Share.TIMESLICE)
    process = evidence(pod("a"), Method.PROCESS, container_id="2" * 64)

    assert {one.container: one.verdict for one in joined(first, second, process)} == {
        "x": HoldingVerdict.DECLARED_ONLY,
        "y": HoldingVerdict.AGREED,
    }


def test_process_of_an_unknown_container_is_observed_only() -> None:
    declared = evidence(pod("a"), Method.KUBELET, container="x", container_id="1" * 64)
    process = evidence(pod("a"), Method.PROCESS, container_id="3" * 64)

    assert [(one.container, one.verdict) for one in joined(declared, process)] == [
        ("x", HoldingVerdict.DECLARED_ONLY),
        ("", HoldingVerdict.OBSERVED_ONLY),
    ]


def test_unknown_fields_come_from_other_evidence() -> None:
    declared = evidence(pod("a", name="a", namespace="ml"), Method.KUBELET, container="x")
    process = evidence(pod("a", user="alice"), Method.PROCESS, container_id="1" * 64)
    (holding,) = joined(declared, process)

    assert (holding.holder.name, holding.holder.namespace, holding.holder.user) == ("a", "ml", "alice")
    assert (holding.container, holding.container_id) == ("x", "1" * 64)


def test_two_exclusive_declarations_are_a_conflict() -> None:
    job = Holder(kind=HolderKind.JOB, id="12")
    found = joined(evidence(pod("a"), Method.KUBELET), evidence(job, Method.SCHEDULER))

    assert [one.verdict for one in found] == [HoldingVerdict.CONFLICT, HoldingVerdict.CONFLICT]


def launcher(namespace: str, *, name: str = "virt-launcher-train-0-x2x4z", vm: str = "ml") -> list[Evidence]:
    declared = evidence(pod("a", name=name, namespace=namespace), Method.KUBELET, container="compute")
    process = evidence(pod("a"), Method.PROCESS)
    parent = Holder(kind=HolderKind.VM, id=f"{vm}/train-0", name="train-0", namespace=vm)
    process.claim = msgspec.structs.replace(process.claim, parent=parent)
    return [declared, process]


def test_machine_that_a_process_names_is_the_parent_of_a_launcher_pod_only() -> None:
    parents = [joined(*found)[0].parent for found in (launcher("ml"), launcher("mallory"), launcher("ml", name="x"))]

    assert [one.id if one else "" for one in parents] == ["ml/train-0", "", ""]


def test_parent_of_a_pod_whose_namespace_is_unknown_is_kept() -> None:
    _, process = launcher("ml")

    assert joined(process)[0].parent is not None


def test_pod_that_names_a_machine_does_not_remove_its_declaration() -> None:
    vm = Holder(kind=HolderKind.VM, id="ml/train-0", name="train")
    found = joined(*launcher("ml"), evidence(vm, Method.HYPERVISOR))

    assert {one.holder.kind for one in found} == {HolderKind.POD, HolderKind.VM}


def test_pod_without_uid_and_a_process_of_a_pod_are_no_conflict() -> None:
    unnamed = Holder(kind=HolderKind.POD, id="ml/a", name="a", namespace="ml")
    declared, own = evidence(unnamed, Method.KUBELET, container="x"), evidence(pod("a"), Method.PROCESS)
    two = joined(declared, own, evidence(pod("b"), Method.PROCESS))
    by_job = joined(declared, evidence(Holder(kind=HolderKind.JOB, id="4"), Method.PROCESS))

    assert [one.verdict for one in joined(declared, own)] == [
        HoldingVerdict.DECLARED_ONLY,
        HoldingVerdict.OBSERVED_ONLY,
    ]
    assert {one.verdict for one in (*two, *by_job)} == {HoldingVerdict.CONFLICT}


def test_device_file_alone_is_no_holding() -> None:
    assert joined(evidence(pod("a"), Method.DEVICE_FILE)) == []


def test_steps_of_processes_and_open_files_are_bounded_together() -> None:
    job = Holder(kind=HolderKind.JOB, id="12")
    found = [evidence(job, method) for method in (Method.SCHEDULER, Method.PROCESS, Method.DEVICE_FILE)]
    for one, first in zip(found[1:], (0, MAX_STEPS), strict=True):
        steps = tuple(str(first + number) for number in range(MAX_STEPS))
        one.claim = msgspec.structs.replace(one.claim, steps=steps)
    (holding,) = joined(*found)

    assert len(holding.steps) == MAX_STEPS
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(holding), type=Holding) == holding
