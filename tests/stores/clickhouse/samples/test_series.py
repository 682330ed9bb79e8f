"""Series: means of gauges, last values of counters and states, and limits."""

from collections.abc import Mapping

import msgspec
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import StoreError
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept

T0 = 1_700_000_000 * NANOS
STEP = 60 * NANOS
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")


def sample(
    second: int,
    values: Mapping[str, Value | Absent],
    *,
    reader: str = "nvml",
    view: View | None = GPU,
    lane: Lane = Lane.FAST,
) -> Sample:
    return Sample(view=view, reader=reader, lane=lane, measured_at=T0 + second * NANOS, values={**values})


def test_steps_aggregate_by_kind_of_metric(store: ClickHouseStore, cluster: str) -> None:
    samples = [
        sample(1, {"gpu_power_watts": 100.0, "gpu_ecc_corrected_errors_total": 2**63, "gpu_state": "ok"}),
        sample(59, {"gpu_power_watts": 200.0, "gpu_ecc_corrected_errors_total": 2**63 + 5, "gpu_state": "lost"}),
        sample(130, {"gpu_power_watts": 0.0, "gpu_bar1_used_bytes": 7, "gpu_mig_mode": "enabled"}),
        sample(180, {"gpu_power_watts": 999.0}),
        sample(3, {"host_load_1m": 1.5}, reader="host", view=None),
    ]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    metrics = [
        "gpu_power_watts",
        "gpu_ecc_corrected_errors_total",
        "gpu_state",
        "gpu_bar1_used_bytes",
        "gpu_mig_mode",
        "host_load_1m",
        "gpu_power_watts",
        "gpu_sm_clock_hertz",
    ]
    assert store.series(cluster, "m", metrics, T0, T0 + 3 * STEP, STEP).points == {
        (GPU.key, "gpu_power_watts"): [(T0, 150.0), (T0 + 2 * STEP, 0.0)],
        (GPU.key, "gpu_ecc_corrected_errors_total"): [(T0, 2**63 + 5)],
        (GPU.key, "gpu_state"): [(T0, "lost")],
        (GPU.key, "gpu_bar1_used_bytes"): [(T0 + 2 * STEP, 7)],
        (GPU.key, "gpu_mig_mode"): [(T0 + 2 * STEP, "enabled")],
        (None, "host_load_1m"): [(T0, 1.5)],
    }


def test_duplicate_sample_counts_once(store: ClickHouseStore, cluster: str) -> None:
    low, high = sample(0, {"gpu_power_watts": 100.0}), sample(1, {"gpu_power_watts": 200.0})
    store.write([accept(cluster, "m", [low])], f"{cluster}-a")
    store.write([accept(cluster, "m", [low, high])], f"{cluster}-b")
    assert store.series(cluster, "m", ["gpu_power_watts"], T0, T0 + STEP, STEP).points == {
        (GPU.key, "gpu_power_watts"): [(T0, 150.0)]
    }


def test_readers_are_not_mixed_in_one_series(store: ClickHouseStore, cluster: str) -> None:
    nvml = [sample(second, {"gpu_power_watts": 100.0}) for second in (0, 60)]
    other = [sample(1, {"gpu_power_watts": 900.0}, reader="dcgm")]
    store.write([accept(cluster, "m", [*nvml, *other])], f"{cluster}-t")
    assert store.series(cluster, "m", ["gpu_power_watts"], T0, T0 + 2 * STEP, STEP).points == {
        (GPU.key, "gpu_power_watts"): [(T0, 100.0), (T0 + STEP, 100.0)]
    }


def test_state_is_the_worst_of_all_readers(store: ClickHouseStore, cluster: str) -> None:
    nvml = [sample(second, {"gpu_state": "ok"}) for second in (0, 60, 120)]
    dcgm = [
        sample(second, {"gpu_state": state}, reader="dcgm")
        for second, state in ((1, "lost"), (61, "ok"), (181, "error"))
    ]
    store.write([accept(cluster, "m", [*nvml, *dcgm])], f"{cluster}-t")
    assert store.series(cluster, "m", ["gpu_state"], T0, T0 + 4 * STEP, STEP).points == {
        (GPU.key, "gpu_state"): [(T0, "lost"), (T0 + STEP, "ok"), (T0 + 2 * STEP, "ok"), (T0 + 3 * STEP, "error")]
    }


@pytest.mark.parametrize("step", [600, 3600, 6 * 3600])
def test_state_of_a_reader_that_stopped_before_a_recovery_does_not_count(
    store: ClickHouseStore, cluster: str, step: int
) -> None:
    """DCGM is stopped for the reset of the GPU, and stays off."""
    nvml = [sample(at, {"gpu_state": "ok"}) for at in range(0, step, 60)]
    dcgm = [sample(at, {"gpu_state": "lost"}, reader="dcgm") for at in (1, 61)]
    store.write([accept(cluster, "m", [*nvml, *dcgm])], f"{cluster}-t")
    found = store.series(cluster, "m", ["gpu_state"], T0, T0 + step * NANOS, step * NANOS).points
    assert found == {(GPU.key, "gpu_state"): [(T0, "ok")]}


def test_only_the_requested_views_and_the_machine_have_series(store: ClickHouseStore, cluster: str) -> None:
    other = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2")
    gpus = [sample(1, {"gpu_power_watts": watts}, view=view) for watts, view in ((100.0, GPU), (200.0, other))]
    load = sample(1, {"host_load_1m": 1.5}, reader="host", view=None)
    store.write([accept(cluster, "m", [*gpus, load])], f"{cluster}-t")

    def views(chosen: frozenset[str] | None) -> set[str | None]:
        metrics = ["gpu_power_watts", "host_load_1m"]
        found = store.series(cluster, "m", metrics, T0, T0 + STEP, STEP, views=chosen)
        return {view for view, _ in found.points}

    assert views(None) == {None, GPU.key, other.key}
    assert views(frozenset({other.key})) == {None, other.key}
    assert views(frozenset()) == {None}


def test_provenances_are_not_mixed_in_one_series(store: ClickHouseStore, cluster: str) -> None:
    imported = msgspec.structs.replace(
        sample(1, {"gpu_power_watts": 900.0}, reader="exporter"), provenance=Provenance.IMPORTED
    )
    store.write([accept(cluster, "m", [imported])], f"{cluster}-t")
    assert store.series(cluster, "m", ["gpu_power_watts"], T0, T0 + STEP, STEP).points == {}
    assert store.series(cluster, "m", ["gpu_power_watts"], T0, T0 + STEP, STEP, Provenance.IMPORTED).points == {
        (GPU.key, "gpu_power_watts"): [(T0, 900.0)]
    }


@pytest.mark.parametrize("source", [Provenance.IMPORTED, Provenance.SLICE_GUEST])
def test_step_with_an_ambiguous_zero_has_no_mean(store: ClickHouseStore, cluster: str, source: Provenance) -> None:
    """A GPU that computes in one of two scrapes, one that is idle, and one that is not read once."""
    names = ("gpu_utilization_ratio", "gpu_memory_used_bytes")
    zero, none = Absent(Reason.AMBIGUOUS_ZERO), Absent(Reason.NO_DATA)
    readings: list[tuple[int, float | Absent, int | Absent]] = [
        (1, 1.0, 10),
        (31, zero, zero),
        (61, 0.5, 20),
        (91, none, 40),
        (121, zero, zero),
    ]
    samples = [sample(at, dict(zip(names, values, strict=True)), reader="exporter") for at, *values in readings]
    samples += [sample(62, {"gpu_power_watts": 9.0}, reader="exporter", lane=Lane.SLOW)]  # a row without these metrics
    samples = [msgspec.structs.replace(one, provenance=source) for one in samples]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    found = store.series(cluster, "m", names, T0, T0 + 3 * STEP, STEP, source)
    assert found.points == {(GPU.key, names[0]): [(T0 + STEP, 0.5)], (GPU.key, names[1]): [(T0 + STEP, 30)]}
    reasons = dict.fromkeys((T0, T0 + 2 * STEP), Reason.AMBIGUOUS_ZERO)
    assert found.absences == {(GPU.key, name): reasons for name in names}


def test_series_is_of_the_reader_with_most_values(store: ClickHouseStore, cluster: str) -> None:
    name = "gpu_utilization_ratio"
    idle = [sample(at, {name: Absent(Reason.AMBIGUOUS_ZERO)}, reader="all-smi") for at in (1, 61, 121)]
    busy = [sample(at, {name: 0.5}, reader="dcgm") for at in (2, 62)]
    samples = [msgspec.structs.replace(one, provenance=Provenance.IMPORTED) for one in (*idle, *busy)]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    found = store.series(cluster, "m", [name], T0, T0 + 3 * STEP, STEP, Provenance.IMPORTED)
    assert found.points == {(GPU.key, name): [(T0, 0.5), (T0 + STEP, 0.5)]}


def test_one_point_over_the_limit_is_refused(store: ClickHouseStore, cluster: str) -> None:
    assert store.series(cluster, "m", ["gpu_power_watts"], T0, T0 + 11_000 * NANOS, NANOS).points == {}
    with pytest.raises(StoreError, match=r"11001.*11000"):
        store.series(cluster, "m", ["gpu_power_watts"], T0, T0 + 11_001 * NANOS, NANOS)


@pytest.mark.parametrize(
    ("metric", "start", "end", "step", "expected"),
    [
        ("gpu_power_watts`, version()", T0, T0 + 1, 1, "gpu_power_watts`"),
        ("gpu_name", T0, T0 + 1, 1, "gpu_name"),
        ("gpu_fan_speed_ratio", T0, T0 + 1, 1, "gpu_fan_speed_ratio"),
        ("gpu_power_watts", T0, T0 + 1, 0, "0 ns"),
        ("gpu_power_watts", T0, T0, 1, "start"),
    ],
)
def test_invalid_series_query_is_refused(
    store: ClickHouseStore, metric: str, start: int, end: int, step: int, expected: str
) -> None:
    with pytest.raises(StoreError, match=expected):
        store.series("c", "m", [metric], start, end, step)
