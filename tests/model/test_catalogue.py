"""Catalogue: its rows are consistent and can be rendered."""

import re

import pytest

from gpufleet.model.catalogue import BY_ID, CATALOGUE, ROWS, Metric, MetricKind, Storage, Subject, ValueType

UNIT_SUFFIX = {
    "ratio": "_ratio",
    "bytes": "_bytes",
    "watts": "_watts",
    "joules": "_joules",
    "celsius": "_celsius",
    "hertz": "_hertz",
    "seconds": "_seconds",
    "bytes_per_second": "_bytes_per_second",
    "rpm": "_rpm",
}


every_metric = pytest.mark.parametrize("metric", CATALOGUE.values(), ids=CATALOGUE.keys())


def test_names_and_numbers_are_unique() -> None:
    assert len({metric.name for metric in ROWS}) == len(ROWS) == len(CATALOGUE)
    assert len({metric.id for metric in ROWS}) == len(ROWS) == len(BY_ID)


@every_metric
def test_name_is_valid_and_ends_in_its_unit(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    bare = metric.name.removesuffix("_total")
    if metric.unit:
        assert bare.endswith(UNIT_SUFFIX[metric.unit])
    else:
        assert not any(bare.endswith(suffix) for suffix in UNIT_SUFFIX.values())


@every_metric
def test_only_counters_end_in_total(metric: Metric) -> None:
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)


@every_metric
def test_type_fits_kind(metric: Metric) -> None:
    assert (metric.kind is MetricKind.STATE) == (metric.type is ValueType.ENUM)
    assert (metric.kind is MetricKind.INFO) == (metric.type is ValueType.TEXT)
    assert bool(metric.states) == (metric.kind is MetricKind.STATE)
    assert len(set(metric.states)) == len(metric.states)


@every_metric
def test_storage_fits_shape(metric: Metric) -> None:
    assert (metric.storage is Storage.DIM) == bool(metric.dims)
    assert (metric.storage is Storage.INFO) == (metric.kind is MetricKind.INFO)


@every_metric
def test_range_is_ordered_and_ratios_have_one(metric: Metric) -> None:
    if metric.low is not None and metric.high is not None:
        assert metric.low < metric.high
    if metric.unit == "ratio":
        assert metric.low is not None
        assert metric.high is not None


@every_metric
def test_row_names_its_source(metric: Metric) -> None:
    assert metric.help
    assert metric.subjects
    source = metric.kernel if Subject.MACHINE in metric.subjects else metric.nvml
    assert source


@every_metric
def test_optional_gpu_metrics_are_stored_beside_the_core(metric: Metric) -> None:
    if metric.role is not None:
        assert Subject.GPU in metric.subjects
        assert metric.storage is not Storage.CORE


def test_counters_have_no_upper_limit() -> None:
    assert [m.name for m in CATALOGUE.values() if m.kind is MetricKind.COUNTER and m.high is not None] == []


@every_metric
def test_dimension_names_differ_from_device_labels(metric: Metric) -> None:
    """Scrapers reject a series with a repeated label."""
    of_devices = {"node", "uuid", "pci_address", "kind", "side", "name", "gpu", "state", "device_instance", "metric"}
    assert not of_devices & set(metric.dims)
