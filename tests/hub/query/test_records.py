"""Rows of nodes: the metrics that they depend on."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.readings import Freshness
from gpufleet.hub.query.records import (
    NODE_METRICS,
    count_gpus,
    count_shown,
    gpu_records,
    node_gpus,
    values_decide,
    with_metrics,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.stored.samples import SampleSummary, StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from tests.support.profiles import examples

NOW = 1_800_000_000 * NANOS
NODE = MachineRecord(
    id="m",
    sender="s",
    cluster="c",
    machine=Machine(name="node"),
    first_seen=to_datetime(NOW),
    last_seen=to_datetime(NOW),
)

absences = st.builds(Absent, st.sampled_from([Reason.TIMEOUT, Reason.BOUND_TO_VFIO, Reason.NO_DRIVER]))
values: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "gpu_state": st.sampled_from(["ok", "lost"]) | absences,
        "gpu_name": st.sampled_from(["H200", "L40S"]) | absences,
        "mig_profile": st.just("1g.18gb"),
        "gpu_utilization_ratio": st.sampled_from([0.0, 0.5]) | absences,
        "gpu_power_watts": st.sampled_from([100.0, 200.0]) | absences,
        "gpu_temperature_celsius": st.just(40.0) | absences,
        "gpu_memory_used_bytes": st.integers(0, 9) | absences,
    },
)
views = st.builds(
    View,
    kind=st.sampled_from([ViewKind.GPU, ViewKind.GPU, ViewKind.MIG]),
    side=st.sampled_from([Side.HOST, Side.PCI_ONLY]),
    uuid=st.sampled_from([None, "GPU-1", "GPU-2"]),
    pci_address=st.sampled_from([None, "0000:01:00.0", "0000:02:00.0"]),
    instance=st.sampled_from(["0", "1"]),
    parent=st.sampled_from([None, "gpu/GPU-1"]),
)
samples = st.builds(
    StoredSample,
    sample=st.builds(
        Sample,
        view=views,
        reader=st.sampled_from(["nvml", "dcgm", "exporter"]),
        lane=st.sampled_from([Lane.FAST, Lane.SLOW]),
        measured_at=st.integers(NOW - 400 * NANOS, NOW),
        values=values,
        dims=st.just((DimValue("gpu_fan_speed_ratio", ("0",), 0.5),)),
        provenance=st.sampled_from([Provenance.HOST_LOCAL_PROBE, Provenance.IMPORTED]),
    ),
    received_at=st.integers(NOW - 400 * NANOS, NOW),
)


def place(stored: StoredSample) -> tuple[str, str, str]:
    assert stored.sample.view is not None
    return stored.sample.view.key, stored.sample.reader, stored.sample.lane


@settings(max_examples=examples(150, 5000))
@given(stored=st.lists(samples, max_size=8, unique_by=place))
def test_row_of_a_node_depends_on_its_metrics_only(stored: list[StoredSample]) -> None:
    freshness = Freshness(NOW, 90.0, ())
    every, some = (
        node_gpus(NODE, gpu_records(NODE, chosen, freshness, lambda _, __: 0.0), ())
        for chosen in (stored, with_metrics(stored, NODE_METRICS))
    )
    assert some == every


@pytest.mark.parametrize(("age", "reporting"), [(0, 0), (30, 0), (31, 1)])
def test_gpu_that_one_reader_lost_is_not_reporting(age: int, reporting: int) -> None:
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    reports: dict[str, dict[str, Any]] = {
        "nvml": {"gpu_state": "ok", "gpu_power_watts": 100.0},
        "dcgm": {"gpu_state": "lost"},
    }
    stored = [
        StoredSample(
            sample=Sample(
                view=view,
                reader=reader,
                lane=Lane.FAST,
                measured_at=NOW - age * NANOS * (reader == "dcgm"),
                values=found,
            ),
            received_at=NOW,
        )
        for reader, found in reports.items()
    ]
    summaries = [
        SampleSummary(
            stored=one,
            has_totals="gpu_power_watts" in one.sample.values,
            is_lost=one.sample.values["gpu_state"] == "lost",
        )
        for one in stored
    ]
    freshness = Freshness(NOW, 90.0, ())
    assert count_gpus(summaries, freshness) == (1, reporting)
    assert not values_decide(stored)
    assert count_shown(gpu_records(NODE, stored, freshness, lambda _, __: 0.0)) == (1, reporting)


def test_gpu_lost_under_its_address_is_not_reporting() -> None:
    named = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:1b:00.0")
    views = {"nvml": View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:1b:00.0"), "dcgm": named}
    values: dict[str, dict[str, Any]] = {"nvml": {"gpu_state": "lost"}, "dcgm": {"gpu_power_watts": 100.0}}
    stored = [
        StoredSample(
            sample=Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=NOW, values=values[reader]),
            received_at=NOW,
        )
        for reader, view in views.items()
    ]
    freshness = Freshness(NOW, 90.0, ())
    assert values_decide(stored)
    assert count_shown(gpu_records(NODE, stored, freshness, lambda _, __: 0.0)) == (1, 0)


def test_gpu_whose_series_end_with_a_loss_under_its_address_is_not_reporting() -> None:
    address = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:1b:00.0")
    named = msgspec.structs.replace(address, uuid="GPU-1")
    rows: list[tuple[View, str, dict[str, Any]]] = [
        (named, "exporter", {"gpu_state": Absent(Reason.NO_DATA)}),
        (address, "exporter", {"gpu_state": "lost"}),
        (named, "dcgm", {"gpu_power_watts": 100.0}),
    ]
    stored = [
        StoredSample(
            sample=Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=NOW, values=values), received_at=NOW
        )
        for view, reader, values in rows
    ]
    freshness = Freshness(NOW, 90.0, ())
    assert values_decide(stored)
    assert count_shown(gpu_records(NODE, stored, freshness, lambda _, __: 0.0)) == (1, 0)


def test_values_decide_which_gpu_of_a_slot_is_in_a_row() -> None:
    address = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:1b:00.0")
    views = (address, msgspec.structs.replace(address, uuid="GPU-1"))
    values: tuple[dict[str, Any], ...] = ({"gpu_state": "lost"}, {"gpu_temperature_celsius": 40.0})
    stored = [
        StoredSample(
            sample=Sample(view=view, reader="exporter", lane=Lane.FAST, measured_at=NOW, values=found), received_at=NOW
        )
        for view, found in zip(views, values, strict=True)
    ]
    keys = [
        [one.device.id for one in gpu_records(NODE, chosen, Freshness(NOW, 90.0, ()), lambda _, __: 0.0)]
        for chosen in (stored, with_metrics(stored, NODE_METRICS))
    ]
    assert keys == [["c/m/gpu/GPU-1"]] * 2


def test_imported_power_of_a_lost_gpu_is_in_no_row() -> None:
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    lost = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=NOW, values={"gpu_state": "lost"})
    old = Sample(
        view=view,
        reader="dcgm",
        lane=Lane.FAST,
        measured_at=NOW,
        values={"gpu_power_watts": 100.0},
        provenance=Provenance.IMPORTED,
    )
    rows = []
    for samples_of_gpu in ([old], [lost, old]):
        stored = with_metrics([StoredSample(sample=one, received_at=NOW) for one in samples_of_gpu], NODE_METRICS)
        rows.append(node_gpus(NODE, gpu_records(NODE, stored, Freshness(NOW, 90.0, ()), lambda _, __: 0.0), ()))
    assert [row.power_watts for row in rows] == [100.0, None]


def test_values_of_other_metrics_are_left_out() -> None:
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    shown: dict[str, Any] = {"gpu_power_watts": 1.0, "gpu_temperature_celsius": 2.0}
    sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=NOW, values=shown)
    (found,) = with_metrics([StoredSample(sample=sample, received_at=NOW)], NODE_METRICS)
    assert found.sample.values == {"gpu_power_watts": 1.0}
