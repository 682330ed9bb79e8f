"""Merge of readings in columns: the same readings as the merge of samples, over random machines."""

from collections.abc import Mapping

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpufleet.fleet.facts.conditions import CORE_FAILURES
from gpufleet.fleet.facts.metrics import DEVICE_METRICS, DEVICE_TEXTS, FACT_METRICS, STATE
from gpufleet.fleet.facts.newest import MergedReadings, current_rows, number_of
from gpufleet.fleet.readings import Freshness, all_stale, merge, stored_readings
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind
from gpufleet.model.reading import Provenance, Reading, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.support.newest import newest_columns
from tests.support.profiles import examples

NOW = 1_800_000_000 * NANOS
STALE_AFTER = 120.0
METRICS = (
    *("gpu_state", "gpu_power_watts", "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_energy_joules_total"),
    *("gpu_row_remap_pending", "gpu_recovery_action", "gpu_sm_clock_max_hertz", "gpu_name", "gpu_vbios_version"),
)
REASONS = (Reason.TIMEOUT, Reason.INVALID_VALUE, Reason.NOT_SUPPORTED, Reason.DRIVER_ERROR, Reason.GPU_LOST)
UUIDS = ("GPU-a", "GPU-b")
PROVENANCES = {"exporter": Provenance.IMPORTED, "netdata": Provenance.HOST_NETDATA}
COUNTED = frozenset({*CORE_FAILURES, Reason.INVALID_VALUE})


def value_of(metric: str) -> st.SearchStrategy[object]:
    row = CATALOGUE[metric]
    known: st.SearchStrategy[object] = st.integers(0, 1)
    if row.kind is MetricKind.STATE:
        known = st.sampled_from(row.states[:3])  # of `gpu_state`: ok, lost and reset_required
    elif row.kind is MetricKind.INFO:
        known = st.sampled_from(("x", "y"))
    return known | st.sampled_from(REASONS).map(Absent)


@st.composite
def samples(draw: st.DrawFn) -> list[StoredSample]:
    """Newest samples of two GPUs by some readers, of any age."""
    found = []
    for uuid in UUIDS:
        for reader in draw(st.sets(st.sampled_from(("nvml", "dcgm", "other", "netdata", "exporter")), min_size=1)):
            for lane in draw(st.sets(st.sampled_from((Lane.FAST, Lane.SLOW, Lane.STATIC)), min_size=1)):
                own = [metric for metric in METRICS if CATALOGUE[metric].lane is lane]
                own = [metric for metric in own if (reader, metric) != ("netdata", STATE)]  # it reports none
                covered = draw(st.sets(st.sampled_from(own)))
                sample = Sample(
                    view=View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid),
                    reader=reader,
                    lane=lane,
                    measured_at=NOW - draw(st.sampled_from((0, 30, 31, 150, 151))) * NANOS,
                    values={metric: draw(value_of(metric)) for metric in own if metric in covered},  # type: ignore[misc]
                    provenance=PROVENANCES.get(reader, Provenance.HOST_LOCAL_PROBE),
                )
                age = draw(st.sampled_from((-1000, -10, 0, 60, 119, 121, 150, 1000, 1790, 1900, 4000)))
                found.append(StoredSample(sample=sample, received_at=NOW - age * NANOS))
    return draw(st.permutations(found))


STATUSES = [
    ReaderStatus(reader="dcgm", lane=lane, state=ReaderState.OK, interval_seconds=50.0)
    for lane in (Lane.FAST, Lane.SLOW)
]


def expected_readings(stored: list[StoredSample], uuid: str) -> Mapping[str, Reading]:
    """Return the merged readings of a GPU, as a hub answers them."""
    freshness = Freshness(NOW, STALE_AFTER, STATUSES)
    own = [one for one in stored if one.sample.view is not None and one.sample.view.uuid == uuid]
    readings = merge(stored_readings(own, freshness))
    return readings if any(freshness.is_live(one.received_at) for one in stored) else all_stale(readings)


def imported(lane: Lane, age: int, **values: Value) -> StoredSample:
    """Return the newest sample of a lane of the first GPU by an import."""
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=UUIDS[0])
    at = NOW - age * NANOS
    sample = Sample(
        view=view, reader="exporter", lane=lane, measured_at=at, values={**values}, provenance=Provenance.IMPORTED
    )
    return StoredSample(sample=sample, received_at=at)


LOST_IN_IMPORT = imported(Lane.FAST, 0, gpu_state="lost", gpu_power_watts=1)


@settings(max_examples=examples(ci=200, long=5000), deadline=None)
@given(samples())
@example([LOST_IN_IMPORT, imported(Lane.SLOW, 30, gpu_row_remap_pending=1)])
@example([LOST_IN_IMPORT, imported(Lane.SLOW, 0, gpu_row_remap_pending=1)])
def test_columns_have_the_values_and_reasons_of_the_merge(stored: list[StoredSample]) -> None:
    newest = newest_columns({"m": stored}, FACT_METRICS, {"m": STATUSES})
    current = current_rows(newest, NOW, STALE_AFTER)
    uuid_of = [newest.views[place].removeprefix("gpu/") for place in newest.view]
    subject = np.array([UUIDS.index(uuid) for uuid in uuid_of])
    readings = MergedReadings(newest, np.arange(len(newest)), subject, len(UUIDS), current, DEVICE_TEXTS)
    failed = readings.count_absences(DEVICE_METRICS, COUNTED)
    for place, uuid in enumerate(UUIDS):
        expected = expected_readings(stored, uuid)
        absent = [reading.absent for name, reading in expected.items() if name in DEVICE_METRICS]
        assert failed[place] == sum(reason in COUNTED for reason in absent)
        for metric in METRICS:
            reading = expected.get(metric)
            value = None if reading is None else reading.value
            row = CATALOGUE[metric]
            if row.kind is MetricKind.INFO:
                text = readings.text(metric)[place]
                assert (readings.texts.texts[text] if text >= 0 else None) == value
                continue
            number = row.states.index(str(value)) if row.kind is MetricKind.STATE and value is not None else value
            assert np.array_equal(readings.value(metric)[place], np.nan if number is None else number, equal_nan=True)
            reason = reading.absent if reading is not None else None
            assert readings.reasons(metric)[place] == (number_of(reason) if reason else 0)
