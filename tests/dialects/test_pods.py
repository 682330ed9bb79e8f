"""Pod that holds a device, from labels as Prometheus passes them on."""

import pytest

from gpufleet.dialects.reading import pod_of
from gpufleet.model.holdings import Holder, HolderKind

TRAIN = Holder(kind=HolderKind.POD, id="ml/train-0", name="train-0", namespace="ml")
OWN = {"pod": "dcgm-exporter-x7k2p", "namespace": "gpu-operator", "container": "exporter"}
EXPORTED = {"exported_pod": "train-0", "exported_namespace": "ml", "exported_container": "cuda"}
PLAIN = {"pod": "train-0", "namespace": "ml", "container": "cuda"}


@pytest.mark.parametrize("plain", [False, True])
def test_exported_labels_take_precedence(plain: bool) -> None:
    assert pod_of({**OWN, **EXPORTED}, plain=plain) == TRAIN


def test_pod_of_the_exporter_holds_nothing() -> None:
    assert pod_of(OWN, plain=False) is None
    assert pod_of(PLAIN, plain=False) is None  # not configured as workload labels


def test_plain_labels_count_where_configured_as_workload_labels() -> None:
    assert pod_of(PLAIN, plain=True) == TRAIN


@pytest.mark.parametrize(
    "labels", [{}, {"pod": "", "namespace": ""}, {"pod": "x"}, {"pod": "x" * 254, "namespace": "y"}]
)
def test_incomplete_pod_name_is_none(labels: dict[str, str]) -> None:
    assert pod_of(labels, plain=True) is None


def test_pod_uid_is_the_identity_if_present() -> None:
    found = pod_of({**EXPORTED, "exported_pod_uid": "5b4e07f6"}, plain=False)
    assert found is not None
    assert found.id == "5b4e07f6"
