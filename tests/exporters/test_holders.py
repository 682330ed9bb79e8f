"""Holders on the metrics pages: labels, several holders of a device, hostile names."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.exporters.dcgm_exporter import add_dcgm
from gpufleet.exporters.exposition import MetricsPage
from gpufleet.exporters.holders import HOLDER_INFO, HOLDER_STATE, holder_labels, only_holder
from gpufleet.exporters.native import add_native
from gpufleet.exporters.prometheus import PrometheusExporter
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState, HoldingVerdict, Share
from gpufleet.runtime import run_to_end
from tests.support.snapshots import EXAMPLE_GUEST, held_snapshot, holding

Series = dict[frozenset[tuple[str, str]], float]


def families(page: bytes, name: str) -> Series:
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == name
    }


def labelled(series: Series, **labels: str) -> list[dict[str, str]]:
    return [dict(known) for known in series if labels.items() <= dict(known).items()]


def test_each_holder_is_one_info_series() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_INFO)

    (sharer,) = labelled(found, pod="infer-b")
    assert (sharer["namespace"], sharer["container"], sharer["share"]) == ("ml", "main", "timeslice")
    assert (sharer["owner_kind"], sharer["owner_name"]) == ("Job", "train")
    assert len(labelled(found, kind="mig")) == 2
    assert set(found.values()) == {1}


def test_virtual_machine_of_a_launcher_pod_is_named() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_INFO)

    (launcher,) = labelled(found, side="pci_only")
    assert (launcher["vm_uid"], launcher["pod"]) == (EXAMPLE_GUEST, "virt-launcher-vm-x2x4z")


def test_quotes_and_backslashes_of_a_pod_name_are_escaped() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_INFO)

    assert labelled(found, pod='tr"ain\\0')


def test_state_series_are_one_per_state() -> None:
    found = families(PrometheusExporter().render(held_snapshot()), HOLDER_STATE)
    states = {dict(labels)["state"]: value for labels, value in found.items() if dict(labels)["kind"] == "mig"}

    assert states == {"held": 1, "free": 0, "unknown": 0}


def test_remote_write_has_the_series_of_the_page() -> None:
    pushed = MetricsPage()
    run_to_end(add_native(pushed, held_snapshot()))
    page = PrometheusExporter().render(held_snapshot())
    for family in (HOLDER_INFO, HOLDER_STATE):
        assert families(pushed.encode(), family) == families(page, family)


def test_dcgm_page_has_one_series_per_holder() -> None:
    page = MetricsPage()
    add_dcgm(page, held_snapshot())
    used = families(page.encode(), "DCGM_FI_DEV_FB_USED")

    assert {labels["pod"] for labels in labelled(used, GPU_I_ID="1")} == {"infer-a", "infer-b"}


def test_only_holder_is_none_for_shared_or_contradicted_devices() -> None:
    pod = holding(Holder(kind=HolderKind.POD, id="uid", name="a", namespace="ml"))
    job = holding(Holder(kind=HolderKind.JOB, id="12"), Share.MPS)

    assert only_holder(None) is None
    assert only_holder(DeviceHolders(state=HolderState.HELD, holdings=(pod,))) is pod
    assert only_holder(DeviceHolders(state=HolderState.HELD, holdings=(pod, job))) is None
    unknown = holding(pod.holder)
    for verdict in (HoldingVerdict.CONFLICT, HoldingVerdict.UNKNOWN):
        contradicted = msgspec.structs.replace(unknown, verdict=verdict)
        assert only_holder(DeviceHolders(state=HolderState.HELD, holdings=(contradicted,))) is None


def test_pod_without_uid_has_no_uid_label() -> None:
    labels = holder_labels(holding(Holder(kind=HolderKind.POD, id="ml/a", name="a", namespace="ml")))

    assert labels["holder_id"] == "ml/a"
    assert "pod_uid" not in labels
