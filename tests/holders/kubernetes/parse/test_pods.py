"""Pods to records: what the scheduler reserves, claims, owners."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.kubernetes.parse.pods import PodSelection, parse_pod
from gpufleet.model.errors import WireError
from gpufleet.model.kubernetes import ChainEnd, ClusterPod


def parse(spec: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> ClusterPod | None:
    content = {"metadata": {"uid": "u", "namespace": "ml", "name": "p", **metadata}, "spec": spec, "status": status}
    return parse_pod(msgspec.json.encode(content))


def container(gpus: int, resource: str = "nvidia.com/gpu", **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {resource: str(gpus), "cpu": "1"}}, **fields}


def counts(pod: ClusterPod | None) -> dict[str, int]:
    return {} if pod is None else {request.resource: request.count for request in pod.requests}


def test_requests_are_the_sum_of_the_containers() -> None:
    pod = parse({"containers": [container(2), container(1), container(3, "nvidia.com/mig-1g.10gb")]})
    assert counts(pod) == {"nvidia.com/gpu": 3, "nvidia.com/mig-1g.10gb": 3}


@pytest.mark.parametrize(
    ("init", "total"),
    [
        ([container(4)], 4),
        ([container(1)], 2),
        ([container(1, restartPolicy="Always")], 3),
        ([container(1, restartPolicy="Always"), container(3)], 4),
        ([container(3), container(1, restartPolicy="Always")], 3),
    ],
)
def test_init_containers_reserve_as_the_scheduler_does(init: list[dict[str, Any]], total: int) -> None:
    assert counts(parse({"containers": [container(2)], "initContainers": init})) == {"nvidia.com/gpu": total}


def test_pod_without_gpus_and_claims_is_left_out() -> None:
    content = {"metadata": {"uid": "u", "namespace": "ml", "name": "p"}, "spec": {"containers": [container(0)]}}
    data = msgspec.json.encode(content)
    assert parse_pod(data) is None
    assert parse_pod(data, PodSelection(all_pods=True)) is not None


def test_claims_of_templates_have_the_generated_name() -> None:
    pod = parse(
        {"resourceClaims": [{"name": "a", "resourceClaimName": "shared"}, {"name": "b"}, {"name": "c"}]},
        {
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-x7"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "p-extended-resources-k2"},
        },
    )
    assert pod is not None
    assert pod.claims == ("shared", "p-b-x7", "p-extended-resources-k2")


def test_request_of_any_size_can_be_sent() -> None:
    """The API server accepts 8.39e15 devices for a container, and 3,000 containers in a pod that never runs."""
    huge = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8000000000Mi"}}}
    pod = parse({"containers": [huge] * 3_000})
    assert pod is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(pod), type=ClusterPod) == pod
    assert counts(pod)["nvidia.com/gpu"] > 10**9


def test_controller_queue_and_virtual_machine() -> None:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u2", "controller": True}
    labels = {"kubevirt.io/created-by": "vmi-uid", "kueue.x-k8s.io/queue-name": "q", "private": "x"}
    pod = parse(
        {"containers": [container(1)], "nodeName": "n"},
        {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        ownerReferences=[reference],
        labels=labels,
        deletionTimestamp="2026-01-01T00:00:00Z",
    )
    assert pod is not None
    assert (pod.node, pod.phase, pod.queue, pod.vmi, pod.deleting) == ("n", "Running", "q", "vmi-uid", True)
    assert pod.started == 1_767_225_600_000_000_000
    assert [owner.name for owner in pod.owners] == ["j"]
    assert pod.chain_end is ChainEnd.NOT_READ
    assert "private" not in pod.labels


def test_pod_without_controller_has_a_complete_chain() -> None:
    pod = parse({"containers": [container(1)]})
    assert pod is not None
    assert (pod.owners, pod.chain_end) == ((), ChainEnd.TOP)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["metadata", "spec", "status", "containers", "resources", "limits", "uid", "name", "labels"]
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_any_json_is_a_pod_or_a_known_error(value: Any) -> None:
    with contextlib.suppress(msgspec.DecodeError, WireError):
        parse_pod(msgspec.json.encode(value))
