"""Paths of API resources."""

import pytest

from gpufleet.holders.kubernetes.resources import LEASES, NODES, PODS, version_path


def test_paths_of_resources() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ml", "train-0") == "/api/v1/namespaces/ml/pods/train-0"
    assert NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert LEASES.path("kube-system") == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    assert (PODS.name, LEASES.name) == ("pods", "leases.coordination.k8s.io")


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a b", "a?b", "%2e%2e", "-", "a" * 254, "ä"])
def test_names_that_would_change_the_path_are_rejected(name: str) -> None:
    for namespace, object_name in (("ml", name), (name, "pod")):
        with pytest.raises(ValueError, match="name of an object"):
            PODS.path(namespace, object_name)


@pytest.mark.parametrize("api_version", ["", "v", "../v1", "apps/../v1", "apps/v1/extra", "Apps/v1", "a..b/v1", "/v1"])
def test_texts_that_are_no_api_version_are_rejected(api_version: str) -> None:
    with pytest.raises(ValueError, match="API version"):
        version_path(api_version)
