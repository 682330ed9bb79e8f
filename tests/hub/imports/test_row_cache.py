"""Row cache: rows that arrive in parts are merged, for any split."""

import functools
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.dialects.sample_builder import SERIES_ENDED
from gpufleet.hub.imports.remote_write import read_request
from gpufleet.hub.imports.row_cache import RowCache
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.hub.imports.test_remote_write import PAGES, STALE, request

NODE = Machine(name="node")
T0 = 1_700_000_000 * NANOS
METRICS = ("gpu_power_watts", "gpu_temperature_celsius", "gpu_utilization_ratio", "gpu_sm_clock_hertz")
LINKS = ("0", "1")


def sample(number: int, at: int, values: dict[str, Value | Absent], *dims: DimValue, lane: Lane = Lane.FAST) -> Sample:
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}")
    return Sample(
        view=view, reader="remote_write/x", lane=lane, measured_at=at, values=values, dims=dims,
        provenance=Provenance.IMPORTED,
    )  # fmt: skip


@given(st.integers(1, 3), st.integers(1, 2), st.randoms(use_true_random=False), st.integers(1, 5))
def test_last_row_is_complete_for_any_split(gpus: int, instants: int, dice: random.Random, bodies: int) -> None:
    whole = {(gpu, at): {name: dice.random() for name in METRICS} for gpu in range(gpus) for at in range(instants)}
    links = {key: {link: dice.randrange(9) for link in LINKS} for key in whole}
    parts = [sample(gpu, T0 + at, {name: value}) for (gpu, at), row in whole.items() for name, value in row.items()]
    parts += [
        sample(gpu, T0 + at, {}, DimValue("gpu_nvlink_crc_errors_total", (link,), value))
        for (gpu, at), row in links.items()
        for link, value in row.items()
    ]
    parts += dice.choices(parts, k=5)  # some parts arrive twice
    dice.shuffle(parts)
    rows, store = RowCache(), {}
    for start in range(0, len(parts), bodies):
        joined = rows.merge(NODE, parts[start : start + bodies])
        rows.keep(NODE, joined, 0.0)
        store.update({(one.view.uuid, one.measured_at): one for one in joined if one.view})
    for (gpu, at), row in whole.items():
        stored = store[f"GPU-{gpu}", T0 + at]
        assert stored.values == row
        assert {one.labels[0]: one.value for one in stored.dims} == links[gpu, at]
    assert rows.merge(NODE, parts) == []  # the same parts add nothing


def test_rows_that_were_not_made_durable_are_merged_again() -> None:
    rows = RowCache()
    part = sample(0, T0, {"gpu_power_watts": 1.0})
    assert rows.merge(NODE, [part]) == rows.merge(NODE, [part]) == [part]


def test_differing_series_of_one_device_are_invalid() -> None:
    rows = RowCache()
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0, {"gpu_utilization_ratio": 0.1, "gpu_power_watts": 2.0})]), 0.0)
    (joined,) = rows.merge(NODE, [sample(0, T0, {"gpu_utilization_ratio": 0.2, "gpu_power_watts": 1.0})])
    assert joined.values["gpu_power_watts"] == 2.0  # of a whole GPU, read once for each of its MIG devices
    assert joined.values["gpu_utilization_ratio"] == Absent(Reason.INVALID_VALUE, "several series of one device differ")
    rows.keep(NODE, [joined], 0.0)
    assert rows.merge(NODE, [sample(0, T0, {"gpu_power_watts": 1.0})]) == []


def test_worse_state_of_two_parts_counts() -> None:
    """One part has the state of the page, the other one a reading that proves the loss."""
    parts = [sample(1, T0, {"gpu_state": "ok"}), sample(1, T0, {"gpu_state": "lost"})]
    for ordered in (parts, parts[::-1]):
        rows = RowCache()
        for part in ordered:
            rows.keep(NODE, rows.merge(NODE, [part]), 0.0)
        (row,) = rows.merge(NODE, [sample(1, T0, {"gpu_power_watts": 1.0})])
        assert row.values["gpu_state"] == "lost"


def test_close_measurements_have_separate_rows() -> None:
    rows = RowCache(NANOS // 2)
    first = [sample(0, T0, {"gpu_power_watts": 1.0}), sample(0, T0 + 1, {"gpu_temperature_celsius": 50.0})]
    (row,) = rows.merge(NODE, first)  # the source read the clock for each metric
    assert (row.measured_at, row.values) == (T0, {"gpu_power_watts": 1.0, "gpu_temperature_celsius": 50.0})
    rows.keep(NODE, [row], 0.0)
    link = DimValue("gpu_nvlink_crc_errors_total", ("0",), 4)
    later = [sample(0, T0 + 9, {"gpu_power_watts": 2.0}, link), sample(0, T0 + 10, {"gpu_temperature_celsius": 51.0})]
    (row,) = rows.merge(NODE, later)
    assert (row.measured_at, row.values) == (T0 + 9, {"gpu_power_watts": 2.0, "gpu_temperature_celsius": 51.0})
    rows.keep(NODE, [row], 0.0)
    assert rows.merge(NODE, [*first, *later]) == []
    more = DimValue("gpu_nvlink_crc_errors_total", ("0",), 5)
    (row,) = rows.merge(NODE, [sample(0, T0 + 20, {}, more)])
    assert (row.measured_at, row.dims) == (T0 + 20, (more,))


def test_parts_of_different_machines_are_not_merged() -> None:
    rows = RowCache()
    rows.keep(Machine(name="a"), rows.merge(Machine(name="a"), [sample(0, T0, {"gpu_power_watts": 1.0})]), 0.0)
    (other,) = rows.merge(Machine(name="b"), [sample(0, T0, {"gpu_temperature_celsius": 40.0})])
    assert other.values == {"gpu_temperature_celsius": 40.0}


def test_constant_rows_are_written_every_ten_minutes() -> None:
    rows = RowCache()

    def is_written(at: int, name: str) -> bool:
        joined = rows.merge(NODE, [sample(0, at, {"gpu_name": name}, lane=Lane.STATIC)])
        rows.keep(NODE, joined, 0.0)
        return bool(joined)

    seconds = {0: "A", 15: "A", 300: "A", 599: "A", 600: "A", 615: "A", 630: "B", 645: "B"}
    assert [at for at, name in seconds.items() if is_written(T0 + at * NANOS, name)] == [0, 600, 630]


STATIC_VALUES: dict[str, Value | Absent] = {"gpu_ecc_mode": "enabled", "gpu_power_limit_max_watts": 700.0}


def texts(second: int, **values: Value | Absent) -> Sample:
    return sample(0, T0 + second * NANOS, values or {"gpu_name": "H200", "gpu_serial": "1"}, lane=Lane.STATIC)


def test_repeated_texts_do_not_hide_other_static_values() -> None:
    rows = RowCache()
    numbers = sample(0, T0, STATIC_VALUES, lane=Lane.STATIC)
    written = rows.merge(NODE, [texts(2), numbers])
    assert [(one.measured_at, one.values) for one in written] == [(T0, STATIC_VALUES | texts(2).values)]
    rows.keep(NODE, written, 0.0)
    for second in (10, 599, 601):
        assert rows.merge(NODE, [texts(second)]) == []
    ended = Absent(Reason.NO_DATA, "the source reported the end of the series")
    assert rows.merge(NODE, [texts(20, gpu_serial=ended)]) == []
    assert [one.values for one in rows.merge(NODE, [texts(20, gpu_serial="2")])] == [{"gpu_serial": "2"}]


def test_texts_beside_outdated_static_values_have_their_own_row() -> None:
    rows = RowCache()
    rows.keep(NODE, [sample(0, T0, STATIC_VALUES, lane=Lane.STATIC)], 0.0)
    assert rows.merge(NODE, [texts(1801)]) == [texts(1801)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_static_parts_of_one_scrape_make_one_row(order: tuple[int, int]) -> None:
    rows, store = RowCache(), {}
    scrapes = [(0, "A", 700), (15, "A", 700), (300, "A", 600), (315, "A", 600), (900, "A", 600), (915, "B", 600)]
    for second, name, limit in scrapes:
        values: dict[str, Value | Absent] = {"gpu_power_limit_max_watts": limit}
        parts = [texts(second, gpu_name=name), sample(0, T0 + second * NANOS, values, lane=Lane.STATIC)]
        for number in order:
            written = rows.merge(NODE, [parts[number]])
            rows.keep(NODE, written, 0.0)
            store.update({one.measured_at: one.values for one in written})
        assert store[max(store)] == {"gpu_name": name, **values}
    assert [(at - T0) // NANOS for at in store] == [0, 300, 900, 915]


def test_cache_keeps_the_newest_instants_of_written_subjects() -> None:
    rows = RowCache()
    for at in range(100):
        rows.keep(NODE, rows.merge(NODE, [sample(0, T0 + at * NANOS, {"gpu_power_watts": 1.0})]), float(at))
    assert rows.merge(NODE, [sample(0, T0 + 99 * NANOS, {"gpu_power_watts": 1.0})]) == []
    assert rows.merge(NODE, [sample(0, T0 + 50 * NANOS, {"gpu_power_watts": 1.0})]) != []
    rows.drop_before(99.0)
    assert rows.machines == {NODE}
    rows.drop_before(100.0)
    assert rows.machines == set()


def test_constant_value_is_written_again_after_an_absence() -> None:
    rows, name = RowCache(), "gpu_name"
    values: list[tuple[int, Value | Absent, bool]] = [
        (0, "H200", True),
        (1, Absent(Reason.NO_DATA, "ended"), True),
        (2, "H200", True),
        (3, "H200", False),
    ]
    for second, value, is_news in values:
        part = sample(0, T0 + second * NANOS, {name: value}, lane=Lane.STATIC)
        joined = rows.merge(NODE, [part])
        assert bool(joined) is is_news, second
        rows.keep(NODE, joined, 0.0)


def test_uneven_queues_of_a_writer_lose_nothing() -> None:
    rows = RowCache()

    def write(at: int, metric: str, written: float) -> list[set[str]]:
        joined = rows.merge(NODE, [sample(0, T0 + at * NANOS, {metric: 1.0})])
        rows.keep(NODE, joined, written)
        return [set(one.values) for one in joined]

    for at in range(40):  # one of the writer's queues is forty scrapes ahead of the other
        write(at, "gpu_power_watts", at / 10)
    for at in range(40):
        assert write(at, "gpu_utilization_ratio", 4 + at / 10) == [{"gpu_power_watts", "gpu_utilization_ratio"}]
    for at in range(40, 60):  # scrapes in order: only the newest are kept
        write(at, "gpu_power_watts", 15.0 * at)
    assert len(rows) == 1
    assert sum(map(len, rows._kept.values())) <= 3
    rows.keep(NODE, [sample(0, T0 + at, {"gpu_power_watts": 1.0}) for at in range(5000)], 900.0)
    assert sum(map(len, rows._kept.values())) <= 256  # however many arrive at once


def test_cached_instants_are_bounded_and_newest_kept() -> None:
    rows, gpus = RowCache(max_earlier=100), 20
    for at in range(60):
        rows.keep(NODE, [sample(gpu, T0 + at, {"gpu_power_watts": 1.0}) for gpu in range(gpus)], 1.0)
        assert sum(map(len, rows._kept.values())) <= 100 + 2 * gpus
        for gpu in range(gpus):
            (joined,) = rows.merge(NODE, [sample(gpu, T0 + at, {"gpu_utilization_ratio": 1.0})])
            assert set(joined.values) == {"gpu_power_watts", "gpu_utilization_ratio"}
    rows.drop_before(2.0)
    rows.keep(NODE, [sample(0, T0 + at, {"gpu_power_watts": 1.0}) for at in range(102)], 2.0)
    assert sum(map(len, rows._kept.values())) == 102


MODE, COUNT = "gpu_ecc_mode", "gpu_ecc_corrected_errors_total"
LOCATION = DimValue("gpu_ecc_location_errors_total", ("sram", "corrected"), 0)
NO_ECC = Absent(Reason.NOT_SUPPORTED, MODE)


def without_mode(
    rows: RowCache, at: int, *, gpu: int = 0, reader: str = "remote_write/x", count: str = COUNT
) -> list[Value | Absent]:
    """Merge counts of zero and return them as they are written."""
    parts = [sample(gpu, at, {count: 0}), sample(gpu, at, {}, LOCATION, lane=Lane.SLOW)]
    parts = [msgspec.structs.replace(part, reader=reader) for part in parts]
    written = rows.merge(NODE, parts)
    return [value for row in written for value in (*row.values.values(), *(dim.value for dim in row.dims))]


def test_counts_without_ecc_are_not_supported() -> None:
    rows = RowCache()
    mode = sample(0, T0, {MODE: "disabled"}, lane=Lane.STATIC)
    written = rows.merge(NODE, [sample(0, T0, {COUNT: 0}), mode, sample(1, T0, {COUNT: 0})])
    assert [row.values for row in written] == [{COUNT: NO_ECC}, {MODE: "disabled"}, {COUNT: 0}]


def test_ecc_mode_of_an_earlier_part_counts() -> None:
    rows = RowCache()
    assert without_mode(rows, T0) == [0, 0]  # the mode has not arrived yet
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0, {MODE: "disabled"}, lane=Lane.STATIC)]), 0.0)
    assert without_mode(rows, T0 + NANOS) == [NO_ECC, NO_ECC]
    assert without_mode(rows, T0 + NANOS, gpu=1) == [0, 0]
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0 + 2 * NANOS, {MODE: "enabled"}, lane=Lane.STATIC)]), 0.0)
    assert without_mode(rows, T0 + 3 * NANOS) == [0, 0]


@pytest.mark.parametrize("first", ["modes", "counts", "both"])
@pytest.mark.parametrize(("before", "after"), [("disabled", "enabled"), ("enabled", "disabled")])
def test_counts_have_the_ecc_mode_of_their_time(before: str, after: str, first: str) -> None:
    """ECC was switched while the hub was down. One of the queues with modes and counts can be ahead of the other."""
    rows, at = RowCache(), [T0 + second * NANOS for second in range(4)]
    modes = [sample(0, one, {MODE: before if place < 2 else after}, lane=Lane.STATIC) for place, one in enumerate(at)]
    counts = [sample(0, one, {COUNT: 7}) for one in at]
    rows.keep(NODE, rows.merge(NODE, modes[:1]), 0.0)
    values: dict[int, Value | Absent] = {}
    for parts in {"modes": (modes, counts), "counts": (counts, modes), "both": ([*counts, *modes],)}[first]:
        written = rows.merge(NODE, parts)
        rows.keep(NODE, written, 0.0)
        values |= {row.measured_at: row.values[COUNT] for row in written if COUNT in row.values}
    expected = {"disabled": NO_ECC, "enabled": 7}
    assert values == {one: expected[before if place < 2 else after] for place, one in enumerate(at)}


def test_judgement_outlasts_the_rows_that_it_follows_from() -> None:
    rows = RowCache()
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0, {MODE: "disabled"}, lane=Lane.STATIC)]), 0.0)
    for second in range(1, 4):
        other = sample(0, T0 + second * NANOS, {"gpu_serial": str(second)}, lane=Lane.STATIC)
        rows.keep(NODE, rows.merge(NODE, [other]), 100.0 * second)
    assert without_mode(rows, T0 + 5 * NANOS) == [NO_ECC, NO_ECC]


def test_row_from_the_store_is_judged_again() -> None:
    """The hub was restarted between the counts and the mode of a scrape, after ECC had been switched."""
    rows = RowCache()
    rows.keep(NODE, [listed(T0, {COUNT: 0}), listed(T0, {"gpu_serial": "1"}, Lane.STATIC)], 0.0)
    written = rows.merge(NODE, [listed(T0, {MODE: "disabled"}, Lane.STATIC)])
    assert {COUNT: NO_ECC} in [row.values for row in written]


def queues_of(product: str, dice: random.Random) -> list[list[Sample]]:
    """Return the parts of four scrapes in queues, each in order of time, as a writer has one for each series."""
    switched, joined = ["enabled", "disabled"], ["completed", "in_progress"]
    idle: dict[str, Value | Absent] = {"gpu_memory_activity_ratio": 0.0, "gpu_encoder_utilization_ratio": 0.0}
    slow: dict[str, Value | Absent] = {"gpu_mig_mode": "disabled", "gpu_fan_speed_rpm": 0}
    fabric: dict[str, Value | Absent] = {"gpu_fabric_clique": "0", "gpu_fabric_health_status": "not_reported"}
    readings: list[tuple[Lane, list[dict[str, Value | Absent]]]] = [
        (Lane.STATIC, [{"gpu_name": product}] * 4),
        (Lane.STATIC, [{MODE: switched[at // 2]} for at in range(4)]),
        (Lane.FAST, [{COUNT: dice.choice([0, 7])} for _ in range(4)]),
        (Lane.FAST, [idle] * 4),
        (Lane.SLOW, [slow] * 4),
        (Lane.SLOW, [{"gpu_fabric_state": joined[at // 2]} for at in range(4)]),
        (Lane.SLOW, [fabric] * 4),
    ]
    return [[sample(0, T0 + at * NANOS, row, lane=lane) for at, row in enumerate(own)] for lane, own in readings]


@given(st.integers(0, 2**32), st.sampled_from(["NVIDIA GB10", "NVIDIA L40S", "GRID V100D-8C"]))
def test_rows_are_judged_alike_for_any_split_of_a_writers_queues(seed: int, product: str) -> None:
    dice = random.Random(seed)
    queues = queues_of(product, dice)
    whole = RowCache().merge(NODE, [part for queue in queues for part in queue])
    rows = RowCache()
    store: dict[tuple[Lane, int], dict[str, Value | Absent]] = {}
    while any(queues):
        taken = [(queue, dice.randrange(len(queue) + 1)) for queue in queues]
        written = rows.merge(NODE, [part for queue, count in taken for part in queue[:count]])
        rows.keep(NODE, written, 0.0)
        store |= {(row.lane, row.measured_at): row.values for row in written}
        queues = [queue[count:] for queue, count in taken]
    expected = {(row.lane, row.measured_at): row.values for row in whole if row.lane is not Lane.STATIC}
    assert {key: values for key, values in store.items() if key[0] is not Lane.STATIC} == expected


@pytest.mark.parametrize("mode", [None, Absent(Reason.TIMEOUT)])
def test_first_errors_of_a_board_make_its_earlier_zeros_values(mode: Value | Absent | None) -> None:
    rows = RowCache()
    modes = [] if mode is None else [sample(0, T0, {MODE: mode}, lane=Lane.STATIC)]
    named = sample(0, T0, {"gpu_name": "NVIDIA GB10"}, lane=Lane.STATIC)
    rows.keep(NODE, rows.merge(NODE, [*modes, named, sample(0, T0, {COUNT: 0})]), 0.0)
    written = rows.merge(NODE, [sample(0, T0 + NANOS, {COUNT: 7})])
    assert [row.values[COUNT] for row in written] == [7, 0]


def test_ecc_mode_of_the_same_scrape_counts() -> None:
    """The points of one scrape can have slightly different times."""
    rows, later = RowCache(merge_window_ns=5), T0 + NANOS
    modes = [sample(0, at, {MODE: mode}, lane=Lane.STATIC) for at, mode in ((T0, "enabled"), (later + 5, "disabled"))]
    written = rows.merge(NODE, [*modes, sample(0, T0, {COUNT: 0}), sample(0, later, {COUNT: 0})])
    assert [row.values[COUNT] for row in written if COUNT in row.values] == [0, NO_ECC]


def test_zero_counts_with_an_unreadable_ecc_mode_are_no_values() -> None:
    rows, timeout = RowCache(), Absent(Reason.TIMEOUT)
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0, {MODE: timeout}, lane=Lane.STATIC)]), 0.0)
    assert without_mode(rows, T0 + NANOS) == [Absent(Reason.TIMEOUT, MODE)] * 2
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0 + NANOS, {COUNT: 3})]), 0.0)
    assert without_mode(rows, T0 + 2 * NANOS) == [0, 0]


LISTING = "remote_write/nvidia-gpu-exporter"
"""Reader of an exporter that omits the ECC mode of boards without ECC only."""


def listed(at: int, values: dict[str, Value | Absent], lane: Lane = Lane.FAST) -> Sample:
    return msgspec.structs.replace(sample(0, at, values, lane=lane), reader=LISTING)


def test_zero_counts_without_a_mode_are_no_values_if_modes_are_listed() -> None:
    rows, sram = RowCache(), functools.partial(without_mode, reader=LISTING, count="gpu_sram_threshold_exceeded")
    assert sram(rows, T0) == [NO_ECC, NO_ECC]
    rows.keep(NODE, rows.merge(NODE, [listed(T0, {MODE: "enabled"}, Lane.STATIC)]), 0.0)
    assert sram(rows, T0 + NANOS) == [0, 0]
    rows.keep(NODE, rows.merge(NODE, [listed(T0 + 2 * NANOS, {"gpu_name": "H200"}, Lane.STATIC)]), 0.0)
    assert sram(rows, T0 + 2 * NANOS) == [0, 0]  # the part of this instant has no mode
    assert sram(rows, T0 + NANOS, gpu=1) == [NO_ECC, NO_ECC]
    assert without_mode(rows, T0 + NANOS, gpu=2, reader=LISTING) == [0, 0]  # a total: the mode was not selected


@pytest.mark.parametrize(
    ("state", "is_written"),
    [("lost", False), (Absent(Reason.STALE), False), (Absent(Reason.NOT_REPORTED), True), ("ok", True), (None, True)],
)
def test_end_of_the_series_of_a_failed_gpu_does_not_hide_its_state(
    state: Value | Absent | None, is_written: bool
) -> None:
    rows = RowCache()
    values: dict[str, Value | Absent] = {"gpu_power_watts": 300.0} if state is None else {"gpu_state": state}
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0, values)]), 0.0)
    end = sample(0, T0 + NANOS, {"gpu_power_watts": SERIES_ENDED})
    assert rows.merge(NODE, [end]) == ([end] if is_written else [])
    works = sample(0, T0 + NANOS, {"gpu_temperature_celsius": 50.0})
    (found,) = rows.merge(NODE, [end, works])  # the parts of one scrape in which the GPU works again
    assert found.values["gpu_temperature_celsius"] == 50.0


def test_count_above_zero_proves_ecc_for_later_requests() -> None:
    rows = RowCache()
    counted = rows.merge(NODE, [listed(T0, {COUNT: 3})])
    assert [row.values for row in counted] == [{COUNT: 3}]
    rows.keep(NODE, counted, 0.0)
    (row, other) = rows.merge(
        NODE, [listed(T0, {"gpu_sram_threshold_exceeded": 0}, Lane.SLOW), listed(T0 + 1, {COUNT: 3})]
    )
    assert (row.values, other.values) == ({"gpu_sram_threshold_exceeded": 0}, {COUNT: 3})


def newest_row(rows: RowCache, parts: Sequence[Sample]) -> dict[str, Value | Absent]:
    """Write each part in a request of its own, and return the values of the newest row."""
    row: dict[str, Value | Absent] = {}
    for part in parts:
        written = rows.merge(NODE, [part])
        rows.keep(NODE, written, 0.0)
        row = next((one.values for one in written), row)
    return row


SLOTS: dict[str, Value | Absent] = {"gpu_chassis_slot": "0", "gpu_tray_index": "0", "gpu_host_id": "1"}
PARTS_OF_DEFAULTS: dict[str, tuple[Lane, list[dict[str, Value | Absent]]]] = {
    "protected memory": (
        Lane.SLOW,
        [{"gpu_protected_memory_total_bytes": 0}, {"gpu_protected_memory_used_bytes": 0}],
    ),
    "fabric": (Lane.SLOW, [{"gpu_fabric_state": "not_supported"}, {"gpu_fabric_clique": "0"}]),
    "rack": (Lane.STATIC, [{"gpu_chassis_serial": ""}, *({name: value} for name, value in SLOTS.items())]),
}


@pytest.mark.parametrize("case", PARTS_OF_DEFAULTS)
@pytest.mark.parametrize("order", [1, -1])
def test_defaults_in_parts_are_no_values(case: str, order: int) -> None:
    lane, values = PARTS_OF_DEFAULTS[case]
    row = newest_row(RowCache(), [sample(0, T0, one, lane=lane) for one in values[::order]])
    assert row.keys() == {name for one in values for name in one}
    assert all(isinstance(value, Absent) for value in row.values())


def test_readings_of_a_part_without_the_rest_of_a_page_are_no_defaults() -> None:
    """The writer sent the total, the state of the fabric and the serial number before."""
    rows, used = RowCache(), sample(0, T0, {"gpu_protected_memory_used_bytes": 0}, lane=Lane.SLOW)
    assert isinstance(newest_row(rows, [used])["gpu_protected_memory_used_bytes"], Absent)
    total: dict[str, Value | Absent] = {"gpu_protected_memory_total_bytes": 8, "gpu_fabric_state": "completed"}
    serial = sample(0, T0, {"gpu_chassis_serial": "18209"}, lane=Lane.STATIC)
    assert newest_row(rows, [sample(0, T0, total, lane=Lane.SLOW)])["gpu_protected_memory_used_bytes"] == 0
    newest_row(rows, [serial])
    assert newest_row(rows, [used]) == {}  # the request was repeated
    later = msgspec.structs.replace(used, measured_at=T0 + NANOS)
    assert newest_row(rows, [later]) == {"gpu_protected_memory_used_bytes": 0}
    assert newest_row(rows, [sample(0, T0 + NANOS, SLOTS, lane=Lane.STATIC)]) == SLOTS


@pytest.mark.parametrize("order", [1, -1])
def test_name_whose_series_ends_is_still_that_of_the_product(order: int) -> None:
    """An info series ends and another one begins with each change of a label, in two queues of one writer."""
    rows, activity = RowCache(), "gpu_memory_activity_ratio"
    name = sample(0, T0, {"gpu_name": "NVIDIA GB10"}, lane=Lane.STATIC)
    newest_row(rows, [name])
    ended = sample(0, T0 + NANOS, {"gpu_name": SERIES_ENDED}, lane=Lane.STATIC)
    idle = sample(0, T0 + NANOS, {activity: 0.0})
    for parts in [[msgspec.structs.replace(name, measured_at=T0 + NANOS)], [ended, idle]][::order]:
        written = rows.merge(NODE, parts)
        rows.keep(NODE, written, 0.0)
        values = [row.values[activity] for row in written if activity in row.values]
        assert values == [Absent(Reason.NOT_SUPPORTED, activity)] * (idle in parts)


def test_product_name_of_an_earlier_request_shows_missing_engines() -> None:
    rows, encoder = RowCache(), "gpu_encoder_utilization_ratio"
    newest_row(rows, [sample(0, T0, {"gpu_name": "NVIDIA H100 80GB HBM3"}, lane=Lane.STATIC)])
    idle = sample(0, T0, {encoder: 0.0})
    assert newest_row(rows, [idle]) == {encoder: Absent(Reason.NOT_SUPPORTED, encoder)}
    early = RowCache()
    unknown = newest_row(early, [idle])[encoder]
    assert isinstance(unknown, Absent)
    assert unknown.reason is Reason.NOT_REPORTED
    written = early.merge(NODE, [sample(0, T0, {"gpu_name": "NVIDIA L40S"}, lane=Lane.STATIC)])
    assert {encoder: 0.0} in [row.values for row in written]


SLOT, OTHER_SLOT = "0000:01:00.0", "0000:02:00.0"
Point = tuple[ImportedSeries, float, int]


def scrape(page: Sequence[tuple[ImportedSeries, float]], second: int, address: str) -> list[Point]:
    """Return the points of a page; of nvidia_gpu_exporter, only the info series has the address."""
    points = []
    for one, value in page:
        labels = {**one.labels, "instance": "node:9835"}
        if "pci_bus_id" in labels:
            labels["pci_bus_id"] = f"0000{address}"
        points.append((ImportedSeries(one.name, labels), value, T0 + second * NANOS))
    return points


def write(rows: RowCache, points: Sequence[Point], second: int) -> list[Sample]:
    """Write a request and return its rows."""
    stale = tuple(place for place, (_, value, _) in enumerate(points) if value is STALE)
    machines = read_request(request(*points, stale=stale)).machines
    written = {machine: rows.merge(machine, samples) for machine, samples in machines.items()}
    for machine, own in written.items():
        rows.keep(machine, own, float(second))
    return [row for own in written.values() for row in own]


@given(st.integers(0, 2**32))
def test_rows_have_the_address_of_their_time_for_any_cut(seed: int) -> None:
    """The GPU is in another slot from the third scrape on, at which the earlier info series ends."""
    dice = random.Random(seed)
    parsed = TextParser().parse((PAGES / "nvidia-gpu-exporter-h200-load.txt").read_bytes())
    page = list(zip(parsed.series, parsed.values, strict=True))
    uncut, rows = RowCache(), RowCache()
    expected: dict[tuple[str, Lane, int], Sample] = {}
    stored: dict[tuple[str, Lane, int], Sample] = {}
    addresses = [SLOT, SLOT, OTHER_SLOT, OTHER_SLOT]
    for second, address in enumerate(addresses):
        points = scrape(page, second, address)
        if second == 2:
            points += [(one, STALE, at) for one, _, at in scrape(page, second, SLOT) if "pci_bus_id" in one.labels]
        expected |= {place_of(row): row for row in write(uncut, points, second)}
        dice.shuffle(points)
        cut = dice.randrange(len(points))
        for part in (points[:cut], points[cut:]):
            written = write(rows, part, second)
            stored |= {place_of(row): row for row in written}
            if second in (1, 3):  # the slot is that of the scrape before: also the first part has it
                assert {row.view.pci_address for row in written if row.view is not None} <= {address}
    for (_, _, at), row in stored.items():
        assert row.view is None or row.view.pci_address == addresses[(at - T0) // NANOS]
    scraped = {place: row.values for place, row in expected.items() if place[1] is not Lane.STATIC}
    assert {place: row.values for place, row in stored.items() if place in scraped} == scraped


def place_of(row: Sample) -> tuple[str, Lane, int]:
    return "" if row.view is None else row.view.key, row.lane, row.measured_at


def test_late_row_keeps_the_address_of_its_labels() -> None:
    rows = RowCache()
    rows.keep(NODE, rows.merge(NODE, [sample(0, T0 + NANOS, {"gpu_pci_address": OTHER_SLOT}, lane=Lane.STATIC)]), 0.0)
    late = sample(0, T0, {"gpu_power_watts": 300.0})
    assert late.view is not None
    late = msgspec.structs.replace(late, view=msgspec.structs.replace(late.view, pci_address=SLOT))
    assert rows.merge(NODE, [late]) == [late]
