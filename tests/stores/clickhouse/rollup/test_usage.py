"""Device usage of intervals: equal from samples and hours, and counted once for a device with two reporters."""

import msgspec
import pytest

from gpufleet.model.api.usage import DeviceInterval
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.retention import UNLIMITED, UNLIMITED_DAYS, Resolution, Retention
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.stores.clickhouse.rollup import brute
from tests.stores.clickhouse.rollup.brute import HOUR, Measurement
from tests.stores.clickhouse.rollup.test_against_brute_force import GPU, T0, measured, roll, rows, sample, write
from tests.support.accepted import accept

pytestmark = pytest.mark.costly

SPANS = ((0, 3 * HOUR), (17, HOUR), (HOUR - 1, HOUR + 1), (1234, 2 * HOUR + 77), (2 * HOUR, 3 * HOUR), (5, 6))


def interval(cluster: str, start: int, end: int, *machines: str) -> DeviceInterval:
    views = tuple((machine, GPU.key) for machine in machines)
    return DeviceInterval(cluster=cluster, views=views, start=(T0 + start) * NANOS, end=(T0 + end) * NANOS)


def test_hours_and_samples_give_the_same_usage(store: ClickHouseStore, cluster: str) -> None:
    measurements = [
        Measurement(at=at, watts=float(at % 700), busy=at // 900 % 2 * 0.7, joules=float(at * 300 % 10**6))
        for at in range(3, 3 * HOUR, 30)
        if not 4000 < at < 6100
    ]
    write(store, cluster, measurements)
    intervals = [interval(cluster, start, end, "m") for start, end in SPANS]
    expected = [pytest.approx(tuple(brute.usage(measurements, start, end).values())) for start, end in SPANS]
    assert [msgspec.structs.astuple(one) for one in store.device_usage(intervals)] == expected
    roll(store)
    assert [msgspec.structs.astuple(one) for one in store.device_usage(intervals)] == expected
    late = Measurement(at=5000, watts=1.0, busy=1.0)
    write(store, cluster, [late])  # the hour is answered from samples until it is recomputed
    measurements = sorted([*measurements, late], key=lambda one: one.at)
    expected = [pytest.approx(tuple(brute.usage(measurements, start, end).values())) for start, end in SPANS]
    assert [msgspec.structs.astuple(one) for one in store.device_usage(intervals)] == expected


def test_usage_is_from_the_reporter_with_most_data(store: ClickHouseStore, cluster: str) -> None:
    write(store, cluster, [Measurement(at=at, busy=1.0, watts=5.0) for at in range(0, 600, 60)], "host")
    write(store, cluster, [Measurement(at=at, busy=0.0) for at in range(0, 1200, 60)], "guest")
    for _ in range(2):
        (both,) = store.device_usage([interval(cluster, 0, HOUR, "host", "guest")])
        assert (both.used_seconds, both.idle_seconds) == (0, 1260)  # the last measurement is valid for two minutes
        assert (both.power_joules, both.power_seconds) == (5.0 * 660, 660)
        roll(store)


@pytest.mark.parametrize("provenance", [Provenance.IMPORTED, Provenance.HOST_NETDATA])
def test_lost_gpu_is_not_idle_by_repeated_values(store: ClickHouseStore, cluster: str, provenance: Provenance) -> None:
    """The agent loses the GPU after 15 minutes; an exporter repeats its values, and is alone in the next hour."""
    used = Measurement(at=0, busy=0.9, watts=300.0, state="ok")
    own = [msgspec.structs.replace(used, at=at) for at in range(0, 900, 60)]
    own += [Measurement(at=at, state="lost") for at in range(900, HOUR - 120, 60)]
    write(store, cluster, own)
    repeated = [
        msgspec.structs.replace(sample(Measurement(at=at, busy=0.0, watts=70.0)), reader="x", provenance=provenance)
        for at in range(0, 2 * HOUR, 60)
    ]
    store.write([accept(cluster, "m", repeated)], f"{cluster}-x")
    for _ in range(2):
        lost, after = store.device_usage([interval(cluster, 0, HOUR, "m"), interval(cluster, HOUR, 2 * HOUR, "m")])
        assert (lost.used_seconds, lost.idle_seconds) == (900, 0)
        assert (lost.power_joules, lost.power_seconds) == (900 * 300.0, 900)
        assert (after.used_seconds, after.idle_seconds) == (0, HOUR)
        roll(store)


def test_mig_device_of_a_lost_gpu_is_not_idle_by_repeated_values(store: ClickHouseStore, cluster: str) -> None:
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPU.key)
    write(store, cluster, [Measurement(at=at, state="ok" if at < 900 else "lost") for at in range(0, HOUR, 60)])
    write(store, cluster, [Measurement(at=at, busy=0.9) for at in range(0, 900, 60)], view=mig)
    repeated = [sample(Measurement(at=at, busy=0.0), mig) for at in range(0, HOUR, 60)]
    repeated = [msgspec.structs.replace(one, reader="x", provenance=Provenance.IMPORTED) for one in repeated]
    store.write([accept(cluster, "m", repeated)], f"{cluster}-x")
    whole = interval(cluster, 0, HOUR, "m")
    part = msgspec.structs.replace(whole, views=(("m", mig.key),), whole=whole.views)
    for _ in range(2):
        (found,) = store.device_usage([part])
        assert (found.used_seconds, found.idle_seconds) == (960, 0)  # the last value is valid for two minutes
        roll(store)


def test_usage_of_a_swapped_card_is_added(store: ClickHouseStore, cluster: str) -> None:
    """The first card is known for half an hour, the second one from 40 minutes on."""
    other = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-other", pci_address=GPU.pci_address)
    write(store, cluster, [Measurement(at=at, busy=1.0, watts=100.0) for at in range(0, 1800, 60)], "m")
    write(store, cluster, [Measurement(at=at, busy=0.0, watts=50.0) for at in range(2400, HOUR, 60)], "m", view=other)
    views = (("m", GPU.key), ("m", other.key))
    slot = DeviceInterval(cluster=cluster, views=views, start=T0 * NANOS, end=(T0 + HOUR) * NANOS)
    for _ in range(2):
        (both,) = store.device_usage([slot])
        assert (both.used_seconds, both.idle_seconds) == (1860, 1200)
        assert (both.power_joules, both.power_seconds) == (1860 * 100.0 + 1200 * 50.0, 3060)
        roll(store)


def test_two_uuids_at_the_same_time_are_counted_once(store: ClickHouseStore, cluster: str) -> None:
    other = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-other", pci_address=GPU.pci_address)
    write(store, cluster, [Measurement(at=at, busy=1.0) for at in range(0, HOUR, 60)], "m")
    write(store, cluster, [Measurement(at=at, busy=0.0) for at in range(600, HOUR, 60)], "m", view=other)
    views = (("m", GPU.key), ("m", other.key))
    slot = DeviceInterval(cluster=cluster, views=views, start=T0 * NANOS, end=(T0 + HOUR) * NANOS)
    for _ in range(2):
        (both,) = store.device_usage([slot])
        assert (both.used_seconds, both.idle_seconds) == (HOUR, 0)
        roll(store)


def test_clock_step_adds_no_energy(store: ClickHouseStore, cluster: str) -> None:
    """A GPU at 500 W whose clock was 200 s ahead for ten minutes: measurements of both clocks alternate."""
    behind = [Measurement(at=at, joules=5e8 + 500.0 * at) for at in range(0, 1200, 30)]
    ahead = [Measurement(at=at + 205, joules=5e8 + 500.0 * at) for at in range(1200, 1800, 30)]
    after = [Measurement(at=at, joules=5e8 + 500.0 * at) for at in range(1800, HOUR, 30)]
    measurements = sorted([*behind, *ahead, *after], key=lambda one: one.at)
    write(store, cluster, measurements)
    for _ in range(2):
        (found,) = store.device_usage([interval(cluster, 0, HOUR, "m")])
        assert 0.85 * 500 * HOUR < found.energy_joules <= 500 * HOUR
        assert found.energy_seconds < HOUR - 100  # impossible energy is unknown, not zero
        roll(store)
    ((_, grown),) = rows(store, "windows_1h", "gpu_energy_joules_total_increase", cluster, "m")
    assert isinstance(grown, float)
    assert 0.85 * 500 * HOUR < grown <= 500 * HOUR


def test_clock_step_is_no_counter_reset(store: ClickHouseStore, cluster: str) -> None:
    """Twenty minutes, then the last ten again. By time of measuring, the counter falls twenty times."""
    instants = [*range(0, 1200, 30), *range(615, 1800, 30)]
    measurements = [Measurement(at=at, sent=10**9 + 7 * seq, seq=seq) for seq, at in enumerate(instants, start=1)]
    write(store, cluster, measurements)
    roll(store)
    (of_hour,) = measured(store, "windows_1h", cluster, "m")["sent"].values()
    assert of_hour == (
        10**9 + 7 * len(instants),
        7 * (len(instants) - 2),
    )  # the growth across the clock step is unknown


def test_impossible_energy_reading_is_ignored(store: ClickHouseStore, cluster: str) -> None:
    measurements = [Measurement(at=at, joules=500.0 * at + (2.0**60 if at == 600 else 0)) for at in range(0, 1201, 60)]
    write(store, cluster, measurements)
    for _ in range(2):
        (found,) = store.device_usage([interval(cluster, 0, HOUR, "m")])
        assert found.energy_joules == pytest.approx(500.0 * 1080)
        assert found.energy_seconds == 1080
        roll(store)


def test_earlier_xids_are_left_out_of_windows(store: ClickHouseStore, cluster: str) -> None:
    """An XID of before the interval, and another one in the middle of its seventh hour."""
    samples = []
    for at in range(0, 12 * HOUR, 600):
        code, occurred = (31, -100) if at < 6 * HOUR + 1800 else (79, 6 * HOUR + 1790)
        values: dict[str, Value] = {"gpu_last_xid": code, "gpu_last_xid_timestamp_seconds": float(T0 + occurred)}
        samples.append(
            Sample(view=GPU, reader="events", lane=Lane.EVENT, measured_at=(T0 + at) * NANOS, values={**values})
        )
    store.write([accept(cluster, "m", samples)], f"{cluster}-xids")
    roll(store)
    span = T0 * NANOS, (T0 + 12 * HOUR) * NANOS
    for step, first in ((HOUR, 7 * HOUR), (300, 6 * HOUR + 1800)):
        found = store.series(cluster, "m", ["gpu_last_xid"], *span, step * NANOS, xids_since=T0 * NANOS)
        assert found.resolution is not Resolution.RAW
        points = found.points[GPU.key, "gpu_last_xid"]
        assert (points[0], {code for _, code in points}) == (((T0 + first) * NANOS, 79), {79})


def test_imported_xids_are_left_out_of_windows_until_they_change(store: ClickHouseStore, cluster: str) -> None:
    """An XID whose time is not known, and another one in the middle of the seventh hour."""
    samples = []
    for at in range(0, 12 * HOUR, 600):
        values: dict[str, Value] = {"gpu_last_xid": 31 if at < 6 * HOUR + 1800 else 79}
        one = Sample(
            view=GPU, reader="dcgm-exporter", lane=Lane.EVENT, measured_at=(T0 + at) * NANOS, values={**values}
        )
        samples.append(msgspec.structs.replace(one, provenance=Provenance.IMPORTED))
    store.write([accept(cluster, "m", samples)], f"{cluster}-xids")
    roll(store)
    span = T0 * NANOS, (T0 + 12 * HOUR) * NANOS
    for step, first in ((HOUR, 7 * HOUR), (300, 6 * HOUR + 1800)):
        window = *span, step * NANOS, Provenance.IMPORTED
        found = store.series(cluster, "m", ["gpu_last_xid"], *window, xids_since=T0 * NANOS)
        assert found.resolution is not Resolution.RAW
        points = found.points[GPU.key, "gpu_last_xid"]
        assert (points[0], {code for _, code in points}) == (((T0 + first) * NANOS, 79), {79})


def test_xid_counts_of_an_earlier_watch_are_left_out_of_windows(store: ClickHouseStore, cluster: str) -> None:
    """The count began before the interval, and again after six hours."""
    samples = []
    for at in range(0, 12 * HOUR, 600):
        count, since = (5, -100) if at < 6 * HOUR else (1, 6 * HOUR)
        values: dict[str, Value] = {
            "gpu_xid_events_total": count,
            "gpu_xid_watched_since_timestamp_seconds": float(T0 + since),
        }
        samples.append(
            Sample(view=GPU, reader="events", lane=Lane.EVENT, measured_at=(T0 + at) * NANOS, values={**values})
        )
    store.write([accept(cluster, "m", samples)], f"{cluster}-xids")
    roll(store)
    window = T0 * NANOS, (T0 + 12 * HOUR) * NANOS, HOUR * NANOS
    found = store.series(cluster, "m", ["gpu_xid_events_total"], *window, xids_since=T0 * NANOS)
    assert found.resolution is Resolution.HOUR
    expected = [((T0 + hour * HOUR) * NANOS, 1) for hour in range(6, 12)]
    assert found.points[GPU.key, "gpu_xid_events_total"] == expected


def test_step_has_the_newest_xid_and_never_a_mean(store: ClickHouseStore, cluster: str) -> None:
    """The XID changes at 6:30: the hour window has two XIDs and shows the first of them."""
    samples = []
    for at in range(0, 12 * HOUR, 300):
        code, occurred = (31, 60) if at < 6 * HOUR + 1800 else (79, 6 * HOUR + 1790)
        values: dict[str, Value] = {"gpu_last_xid": code, "gpu_last_xid_timestamp_seconds": float(T0 + occurred)}
        samples.append(
            Sample(view=GPU, reader="events", lane=Lane.EVENT, measured_at=(T0 + at) * NANOS, values={**values})
        )
    store.write([accept(cluster, "m", samples)], f"{cluster}-xids")
    span = T0 * NANOS, (T0 + 12 * HOUR) * NANOS
    names = ["gpu_last_xid", "gpu_last_xid_timestamp_seconds"]
    raw = store.series(cluster, "m", names, *span, HOUR * NANOS)
    assert raw.resolution is Resolution.RAW
    hours = [31] * 6 + [79] * 6
    assert [code for _, code in raw.points[GPU.key, names[0]]] == hours
    assert {at for _, at in raw.points[GPU.key, names[1]]} == {T0 + 60.0, T0 + 6 * HOUR + 1790.0}
    roll(store)
    for step, expected in ((HOUR, [31] * 6 + [79] * 5), (3 * HOUR, [31, 31, 79, 79])):
        found = store.series(cluster, "m", names, *span, step * NANOS)
        assert found.resolution is not Resolution.RAW
        assert [code for _, code in found.points[GPU.key, names[0]]] == expected
        assert {at for _, at in found.points[GPU.key, names[1]]} == {T0 + 60.0, T0 + 6 * HOUR + 1790.0}


def test_late_rows_do_not_change_hours_past_retention(store: ClickHouseStore, cluster: str) -> None:
    """Such rows come from a node that was offline past the retention, or whose clock is far behind."""
    measurements = [Measurement(at=at, watts=300.0, busy=1.0, joules=300.0 * at) for at in range(0, HOUR, 30)]
    write(store, cluster, measurements)
    roll(store)
    intervals = [interval(cluster, 0, HOUR, "m")]
    before = store.device_usage(intervals)
    whole = T0 * NANOS, (T0 + HOUR) * NANOS, HOUR * NANOS
    series = store.series(cluster, "m", ["gpu_power_watts"], *whole)
    try:
        store.migrate(Retention(raw_days=2, rollup_1m_days=UNLIMITED_DAYS, rollup_1h_days=0))
        store._handles.writer.command("OPTIMIZE TABLE samples FINAL")  # deletes what has expired
        assert store.device_usage([interval(cluster, 17, HOUR, "m")])[0].used_seconds == 0
        write(store, cluster, [Measurement(at=1800, watts=1.0, busy=0.0)], "late")
        assert store.device_usage(intervals) == before
        assert store.series(cluster, "m", ["gpu_power_watts"], *whole).points == series.points
        assert roll(store) == []
    finally:
        store.migrate(UNLIMITED)


def test_usage_of_an_unknown_machine_is_zero(store: ClickHouseStore, cluster: str) -> None:
    (nothing,) = store.device_usage([interval(cluster, 0, HOUR, "m")])
    assert set(msgspec.structs.astuple(nothing)) == {0.0}
    assert store.device_usage([]) == []


def test_each_hour_of_an_interval_has_its_own_reporter(store: ClickHouseStore, cluster: str) -> None:
    """The host is known longer in the first hour, the guest in the second one; both are queried at once."""
    write(store, cluster, [Measurement(at=at, busy=1.0) for at in range(0, 1200, 60)], "host")
    write(store, cluster, [Measurement(at=at, busy=0.0) for at in range(0, 600, 60)], "guest")
    write(store, cluster, [Measurement(at=at, busy=0.0) for at in range(HOUR, HOUR + 1800, 60)], "guest")
    write(store, cluster, [Measurement(at=at, busy=1.0) for at in range(HOUR, HOUR + 300, 60)], "host")
    whole, other = store.device_usage(
        [interval(cluster, 0, 2 * HOUR, "host", "guest"), interval(cluster, 60, 2 * HOUR, "guest")]
    )
    assert (whole.used_seconds, whole.idle_seconds) == (1260, 1860)
    assert (other.used_seconds, other.idle_seconds) == (0, 600 + 1860)
