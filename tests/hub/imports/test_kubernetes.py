"""GPU counts of nodes from kube-state-metrics."""

import struct

import pytest

from gpufleet.codecs.otlp.decode import decode_metrics
from gpufleet.codecs.otlp.encode import encode_metrics
from gpufleet.codecs.otlp.records import Kind, OtlpMetric, ResourceMetrics
from gpufleet.codecs.otlp.records import OtlpPoint as OtlpPoint
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import WritePoint as Written
from gpufleet.codecs.remote_write.encode import encode_1
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.hub.imports.federation import as_request
from gpufleet.hub.imports.otlp import read_metrics_request as read_points
from gpufleet.hub.imports.remote_write import read_request
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.time import NANOS

T0 = 1_700_000_000 * NANOS
STALE = struct.unpack("<d", bytes.fromhex("020000000000f07f"))[0]


def request(*points: tuple[ImportedSeries, float, int], stale: tuple[int, ...] = ()) -> WriteRequest:
    return WriteRequest(
        [one for one, _, _ in points],
        [value for _, value, _ in points],
        [at for _, _, at in points],
        list(stale),
        {},
        {},
    )


def series(name: str, /, **labels: str) -> ImportedSeries:
    return ImportedSeries(name, labels)


def test_node_series_of_kube_state_metrics_become_counts() -> None:
    capacity, allocatable = "kube_node_status_capacity", "kube_node_status_allocatable"
    own = {"instance": "10.1.1.1:8080", "job": "kube-state-metrics"}
    found = read_request(
        request(
            (series(capacity, node="n1", resource="nvidia_com_gpu", unit="integer", **own), 8.0, T0),
            (series(allocatable, node="n1", resource="nvidia_com_gpu", unit="integer", **own), 7.0, T0),
            (series(capacity, node="n1", resource="nvidia_com_mig_1g_10gb", unit="integer", **own), 14.0, T0),
            (series("kube_node_labels", node="n1", label_nvidia_com_gpu_count="8", **own), 1.0, T0),
            (series(capacity, node="m1", exported_node="n2", resource="nvidia_com_gpu", **own), 0.0, T0),
            (series(f"{capacity}_nvidia_gpu_cards", node="n3", **own), 4.0, T0),
            (series(capacity, node="n1", resource="cpu", unit="core", **own), 64.0, T0),
            (series("kube_node_labels", node="n2", **own), 1.0, T0),
            (series(capacity, resource="nvidia_com_gpu", **own), 8.0, T0),
        )
    )
    assert (sum(found.others.values()), found.unattributed, found.drift) == (2, 1, {})
    capacity, allocatable = "kubernetes_capacity_devices", "kubernetes_allocatable_devices"
    for samples in found.machines.values():
        for one in samples:
            assert (one.reader, one.view, one.values) == ("remote_write/kube_state_metrics", None, {})
    counts = {
        machine.name: {(dim.metric, dim.labels[0]): dim.value for one in samples for dim in one.dims}
        for machine, samples in found.machines.items()
    }
    assert counts == {
        "n1": {
            (capacity, "nvidia_com_gpu"): 8,
            (allocatable, "nvidia_com_gpu"): 7,
            (capacity, "nvidia_com_mig_1g_10gb"): 14,
            ("kubernetes_labelled_devices", "nvidia.com/gpu.count"): 8,
        },
        "n2": {(capacity, "nvidia_com_gpu"): 0},
        "n3": {(capacity, "alpha_kubernetes_io_nvidia_gpu"): 4},
    }


@pytest.mark.parametrize("source", ["remote write", "page", "otlp"])
def test_node_with_all_feature_discovery_labels_is_accepted(source: str) -> None:
    features = {f"label_feature_node_kubernetes_io_cpu_cpuid_{number}": "true" for number in range(150)}
    labels = {"node": "n1", "label_nvidia_com_gpu_count": "8", **features}
    if source == "remote write":
        found = read_request(
            WriteDecoder().decode_1(encode_1([Written({**labels, "__name__": "kube_node_labels"}, 1.0, T0)]))
        )
    elif source == "page":
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        page = TextParser().parse(f"kube_node_labels{{{text}}} 1 {T0 // 1_000_000}\n".encode())
        found = read_request(as_request(page))
    else:
        metric = OtlpMetric("kube_node_labels", Kind.GAUGE, [OtlpPoint(1, T0, 0, labels)])
        found = read_points(decode_metrics(encode_metrics([ResourceMetrics({}, [metric])])))
    assert (found.problems, found.unattributed) == ({}, 0)
    ((sample,),) = found.machines.values()
    assert [one.value for one in sample.dims] == [8]


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_impossible_count_is_invalid(value: float) -> None:
    capacity = series("kube_node_status_capacity", node="n1", resource="nvidia_com_gpu")
    ((sample,),) = read_request(request((capacity, value, T0))).machines.values()
    assert [one.value for one in sample.dims] == [Absent(Reason.INVALID_VALUE, "kube_node_status_capacity")]


def test_node_with_a_stale_series_has_no_count() -> None:
    capacity = series("kube_node_status_capacity", node="n1", resource="nvidia_com_gpu")
    ((sample,),) = read_request(request((capacity, STALE, T0), stale=(0,))).machines.values()
    (absent,) = [one.value for one in sample.dims]
    assert isinstance(absent, Absent)
    assert absent.reason is Reason.NO_DATA
