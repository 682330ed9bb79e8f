"""Reasons of steps without a value, from the absence sets of their samples."""

import msgspec
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.samples import gaps, series
from tests.support.accepted import accept

T0 = 1_700_000_000 * NANOS
STEP = 60 * NANOS
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
POWER = (GPU.key, "gpu_power_watts")
LOST, TIMEOUT = Absent(Reason.GPU_LOST, "of GPU-1"), Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage")


@pytest.fixture(params=[series.MAX_ROWS_WITH_SETS, 0], ids=["with values", "alone"], autouse=True)
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read reasons with the values, or by a query of their own."""
    monkeypatch.setattr(series, "MAX_ROWS_WITH_SETS", request.param)


def sample(second: int, power: float | Absent, reader: str = "nvml", view: View | None = GPU) -> Sample:
    values: dict[str, Value | Absent] = {
        "gpu_power_watts": power,
        "gpu_temperature_celsius": Absent(Reason.NOT_SUPPORTED),
    }
    return Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=T0 + second * NANOS, values=values)


def reasons(store: ClickHouseStore, cluster: str, steps: int) -> dict[int, str]:
    found = store.series(cluster, "m", ["gpu_power_watts", "gpu_temperature_celsius"], T0, T0 + steps * STEP, STEP)
    assert set(found.absences) <= {POWER}  # no series, no gap
    return {(at - T0) // STEP: reason.value for at, reason in found.absences.get(POWER, {}).items()}


def test_gap_has_the_reason_of_its_newest_sample(store: ClickHouseStore, cluster: str) -> None:
    samples = [
        sample(1, 100.0),
        sample(30, LOST),  # not a gap: the step has a value
        sample(70, TIMEOUT),
        sample(110, LOST),
        # nothing was received in the third minute
        sample(190, TIMEOUT),
        sample(250, 100.0),
    ]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    assert reasons(store, cluster, 5) == {1: "gpu_lost", 3: "timeout"}


def test_reader_of_the_series_explains_its_gaps_first(store: ClickHouseStore, cluster: str) -> None:
    samples = [
        *(sample(second, 100.0) for second in (1, 61)),
        sample(121, TIMEOUT),
        *(sample(second, LOST, reader="dcgm") for second in (1, 121, 181)),
    ]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    assert reasons(store, cluster, 4) == {2: "timeout", 3: "gpu_lost"}


def test_other_views_and_sources_explain_no_gap(store: ClickHouseStore, cluster: str) -> None:
    other = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2")
    imported = msgspec.structs.replace(sample(61, LOST, reader="exporter"), provenance=Provenance.IMPORTED)
    samples = [sample(1, 100.0), sample(61, LOST, view=other), imported, sample(121, 100.0)]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    assert reasons(store, cluster, 3) == {}


def test_sample_after_the_end_explains_no_gap(store: ClickHouseStore, cluster: str) -> None:
    """The end is within the last step: the rest of this step can be another tenant's."""
    store.write([accept(cluster, "m", [sample(1, 100.0), sample(70, TIMEOUT), sample(110, LOST)])], f"{cluster}-t")
    end = T0 + 100 * NANOS
    assert store.series(cluster, "m", ["gpu_power_watts"], T0, end, STEP).absences == {
        POWER: {T0 + STEP: Reason.TIMEOUT}
    }


def test_many_gaps_are_read_as_one_interval(
    store: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "MAX_SPANS", 2)
    samples = [sample(60 * step + 1, LOST if step % 2 else 100.0) for step in range(8)]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    assert reasons(store, cluster, 8) == {1: "gpu_lost", 3: "gpu_lost", 5: "gpu_lost", 7: "gpu_lost"}
