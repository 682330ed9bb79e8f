"""Answers of the PodResources API to records."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.kubelet import parse
from gpufleet.holders.kubelet.parse import ListedPod, parse_pods
from gpufleet.model.errors import WireError, WireLimitError
from tests.support import recorded_kubelet
from tests.support.pod_resources import encode_list

LISTS = recorded_kubelet.answers("List")
GETS = recorded_kubelet.answers("Get")


def plain(pod: ListedPod) -> dict[str, Any]:
    """Return a pod in the form of the recorded JSON, without the parts that are not read."""
    return {
        "name": pod.name,
        "namespace": pod.namespace,
        "containers": [
            {
                "name": container.name,
                "devices": [list(pair) for pair in container.devices],
                "claims": [
                    {
                        "name": claim.name,
                        "namespace": claim.namespace,
                        "devices": [[one.driver, one.pool, one.name, list(one.cdi)] for one in claim.devices],
                    }
                    for claim in container.claims
                ],
            }
            for container in pod.containers
        ],
    }


def recorded(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": pod["name"],
        "namespace": pod["namespace"],
        "containers": [
            {
                "name": container["name"],
                "devices": [
                    [entry["resource_name"], id_]
                    for entry in container.get("devices", [])
                    for id_ in entry["device_ids"]
                ],
                "claims": [
                    {
                        "name": claim["claim_name"],
                        "namespace": claim["claim_namespace"],
                        "devices": [
                            [
                                device["driver_name"],
                                device["pool_name"],
                                device["device_name"],
                                [cdi["name"] for cdi in device.get("cdi_devices", [])],
                            ]
                            for device in claim["claim_resources"]
                        ],
                    }
                    for claim in container.get("dynamic_resources", [])
                ],
            }
            for container in pod.get("containers", [])
        ],
    }


def test_every_recorded_answer_is_present() -> None:
    assert (len(LISTS), len(GETS), len(recorded_kubelet.answers("GetAllocatableResources"))) == (54, 99, 41)
    assert len(recorded_kubelet.scenarios()) == 56


@pytest.mark.parametrize(("scenario", "answer"), LISTS, ids=[name for name, _ in LISTS])
def test_recorded_list_is_read_completely(scenario: str, answer: dict[str, Any]) -> None:
    files = recorded_kubelet.files()
    expected = json.loads(files[answer["json"]]).get("pod_resources", [])
    assert [plain(pod) for pod in parse_pods(files[answer["bin"]])] == [recorded(pod) for pod in expected]


@pytest.mark.parametrize(("scenario", "answer"), GETS, ids=[f"{name}-{one['pod_name']}" for name, one in GETS])
def test_recorded_get_is_read_completely(scenario: str, answer: dict[str, Any]) -> None:
    files = recorded_kubelet.files()
    (pod,) = parse_pods(files[answer["bin"]])
    assert plain(pod) == recorded(json.loads(files[answer["json"]])["pod_resources"])
    assert (pod.namespace, pod.name) == (answer["pod_namespace"], answer["pod_name"])


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1, max_size=30
)
PODS = st.lists(
    st.fixed_dictionaries(
        {
            "name": NAMES,
            "namespace": NAMES,
            "containers": st.lists(
                st.fixed_dictionaries(
                    {
                        "name": NAMES,
                        "devices": st.lists(
                            st.fixed_dictionaries(
                                {
                                    "resource_name": NAMES,
                                    "device_ids": st.lists(NAMES, max_size=3),
                                    "topology": st.just({"nodes": [{"ID": 1}, {}]}),
                                }
                            ),
                            max_size=3,
                        ),
                        "cpu_ids": st.lists(st.integers(0, 2**40), max_size=3),
                        "memory": st.just([{"memory_type": "memory", "size": 2**40}]),
                        "dynamic_resources": st.lists(
                            st.fixed_dictionaries(
                                {
                                    "claim_name": NAMES,
                                    "claim_namespace": NAMES,
                                    "claim_resources": st.lists(
                                        st.fixed_dictionaries(
                                            {
                                                "driver_name": NAMES,
                                                "pool_name": NAMES,
                                                "device_name": NAMES,
                                                "share_id": NAMES,
                                                "cdi_devices": st.lists(
                                                    st.fixed_dictionaries({"name": NAMES}), max_size=2
                                                ),
                                            }
                                        ),
                                        max_size=2,
                                    ),
                                }
                            ),
                            max_size=2,
                        ),
                    }
                ),
                max_size=3,
            ),
        }
    ),
    max_size=4,
)


@given(PODS)
def test_any_answer_is_read_as_protobuf_wrote_it(pods: list[dict[str, Any]]) -> None:
    assert [plain(pod) for pod in parse_pods(encode_list(pods))] == [recorded(pod) for pod in pods]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_rejected(data: bytes) -> None:
    with contextlib.suppress(WireError):
        parse_pods(data)


@given(st.data())
def test_damaged_answer_is_read_or_rejected(data: st.DataObject) -> None:
    content = bytearray(recorded_kubelet.files()["dra-extended-resource.list.bin"])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        parse_pods(bytes(content[: data.draw(st.integers(0, len(content)))]))


def test_hostile_names_are_cut_and_clean() -> None:
    name = "\x1b[31mred\n\u202e\u200b" + "x" * 10_000
    answer = encode_list(
        [
            {
                "name": name,
                "namespace": "ml",
                "containers": [{"name": name, "devices": [{"resource_name": name, "device_ids": [name]}]}],
            }
        ]
    )
    (pod,) = parse_pods(answer)
    texts = [pod.name, pod.containers[0].name, *pod.containers[0].devices[0]]
    assert all(len(text) == parse.MAX_NAME and text.isprintable() for text in texts)


@pytest.mark.parametrize(
    "pods",
    [
        [{"name": "a", "namespace": "ml"}] * (parse.MAX_PODS + 1),
        [{"name": "a", "namespace": "ml", "containers": [{"name": "c"}] * (parse.MAX_CONTAINERS + 1)}],
        [
            {
                "name": "a",
                "namespace": "ml",
                "containers": [
                    {"name": "c", "devices": [{"resource_name": "r", "device_ids": ["x"] * (parse.MAX_DEVICES + 1)}]}
                ],
            }
        ],
    ],
    ids=["pods", "containers", "devices"],
)
def test_answer_over_a_limit_is_rejected(pods: list[dict[str, Any]]) -> None:
    with pytest.raises(WireLimitError):
        parse_pods(encode_list(pods))


def test_pod_without_name_is_rejected() -> None:
    with pytest.raises(WireError):
        parse_pods(encode_list([{"namespace": "ml"}]))
