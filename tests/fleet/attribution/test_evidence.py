"""Evidence of one view, joined to holdings: containers, merged fields, conflicts of declarations."""

from gpufleet.fleet.attribution.evidence import Evidence, join
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict, Method, Share
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


def test_device_file_alone_is_no_holding() -> None:
    assert joined(evidence(pod("a"), Method.DEVICE_FILE)) == []
