"""XIDs in series of an allocation: those that can be of an earlier tenant are left out."""

import msgspec
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.stores.clickhouse.samples.test_series import GPU, STEP, T0, sample
from tests.support.accepted import accept


@pytest.mark.parametrize(("since", "left_out"), [(-61, []), (-60, []), (-59, [0, 1]), (130, [0, 1]), (131, [0, 1, 2])])
def test_earlier_xids_are_left_out(store: ClickHouseStore, cluster: str, since: int, left_out: list[int]) -> None:
    """An XID of a minute before the interval, and another one in its third minute."""
    xids = [(1, 31, -60), (59, 31, -60), (70, 31, -60), (150, 79, 130)]
    samples = [
        sample(at, {"gpu_last_xid": code, "gpu_last_xid_timestamp_seconds": T0 / NANOS + occurred, "gpu_state": "ok"})
        for at, code, occurred in xids
    ]
    other = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2")
    without_time = sample(1, {"gpu_last_xid": 13}, view=other)
    store.write([accept(cluster, "m", [*samples, without_time])], f"{cluster}-t")
    names = ["gpu_last_xid", "gpu_last_xid_timestamp_seconds", "gpu_state"]
    found = store.series(cluster, "m", names, T0, T0 + 3 * STEP, STEP, xids_since=T0 + since * NANOS).points
    shown = {0: 31, 1: 31, 2: 79}
    expected = [(T0 + step * STEP, code) for step, code in shown.items() if step not in left_out]
    assert found.get((GPU.key, "gpu_last_xid"), []) == expected
    assert [at for at, _ in found.get((GPU.key, names[1]), [])] == [at for at, _ in expected]
    assert len(found[GPU.key, "gpu_state"]) == 3
    assert (other.key, "gpu_last_xid") not in found
    names = ["gpu_last_xid"]
    assert store.series(cluster, "m", names, T0, T0 + STEP, STEP).points[other.key, names[0]] == [(T0, 13)]


NONE = Absent(Reason.NO_DATA)


@pytest.mark.parametrize(
    ("before", "within", "shown"),
    [
        ([13], [13, 13, 13], []),
        ([13], [13, 79, 79], [79, 79]),
        ([NONE], [79, 79, 79], []),  # it can be of the time between the last reading before and the first one
        ([13], [NONE, 79, 79], [79, 79]),
        ([13], [Absent(Reason.TIMEOUT), 13, 79], [79]),
        ([], [13, 79, 13], [79]),
    ],
)
def test_xid_without_time_is_left_out_until_it_changes(
    store: ClickHouseStore, cluster: str, before: list[int | Absent], within: list[int | Absent], shown: list[int]
) -> None:
    """Imported pages have no time of the XID. The interval of the query may begin after the allocation."""
    values = enumerate([*before, *within], start=-len(before))
    samples = [
        msgspec.structs.replace(
            sample(minute * 60, {"gpu_last_xid": value}, reader="dcgm-exporter"), provenance=Provenance.IMPORTED
        )
        for minute, value in values
    ]
    store.write([accept(cluster, "m", samples)], f"{cluster}-t")
    for start in (0, 1, 2):
        window = T0 + start * STEP, T0 + 3 * STEP, STEP, Provenance.IMPORTED
        found = store.series(cluster, "m", ["gpu_last_xid"], *window, xids_since=T0).points
        points = found.get((GPU.key, "gpu_last_xid"), [])
        visible = [value for minute, value in enumerate(within) if minute >= start and value in shown]
        assert [value for _, value in points] == visible, start


@pytest.mark.parametrize(("watched", "shown"), [(-1, []), (None, []), (0, [3])])
def test_xid_counts_of_an_earlier_watch_are_left_out(
    store: ClickHouseStore, cluster: str, watched: int | None, shown: list[int]
) -> None:
    """A count that began before the allocation has the XIDs of earlier tenants."""
    values: dict[str, Value] = {"gpu_xid_events_total": 3}
    if watched is not None:
        values["gpu_xid_watched_since_timestamp_seconds"] = T0 / NANOS + watched
    store.write([accept(cluster, "m", [sample(1, values)])], f"{cluster}-t")
    name = "gpu_xid_events_total"
    found = store.series(cluster, "m", [name], T0, T0 + STEP, STEP, xids_since=T0).points
    assert [value for _, value in found.get((GPU.key, name), [])] == shown
    assert store.series(cluster, "m", [name], T0, T0 + STEP, STEP).points == {(GPU.key, name): [(T0, 3)]}
