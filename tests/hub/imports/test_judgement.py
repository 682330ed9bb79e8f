"""Readings by which imported rows are judged, by time."""

from gpufleet.dialects.sample_builder import SERIES_ENDED
from gpufleet.hub.imports.judgement import KnownReadings
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.view import Side, View, ViewKind

GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")


def row(at: int, **values: Value | Absent) -> Sample:
    return Sample(view=GPU, reader="x", lane=Lane.STATIC, measured_at=at, values=values)


def test_newest_readings_until_a_time_are_known_or_else_the_first_ones_after() -> None:
    rows = [row(30, gpu_ecc_mode="enabled"), row(10, gpu_ecc_mode="disabled"), row(20, gpu_name="NVIDIA A10")]
    known = KnownReadings(rows, {})
    assert [known.at(at)["gpu_ecc_mode"] for at in (5, 10, 29, 30, 99)] == ["disabled"] * 3 + ["enabled"] * 2
    assert {known.at(at)["gpu_name"] for at in (5, 20, 99)} == {"NVIDIA A10"}


def test_readings_from_before_the_rows_are_known_until_the_first_ones() -> None:
    known = KnownReadings([row(10, gpu_ecc_mode="disabled")], {"gpu_ecc_mode": "enabled"})
    assert [known.at(at)["gpu_ecc_mode"] for at in (5, 10)] == ["enabled", "disabled"]


def test_end_of_a_series_and_an_absent_place_are_not_known() -> None:
    lost = Absent(Reason.GPU_LOST)
    reported = row(10, gpu_name=SERIES_ENDED, gpu_chassis_slot=lost, gpu_fabric_state=lost, gpu_uuid="1")
    known = KnownReadings([reported], {})
    assert known.at(10) == {"gpu_fabric_state": lost}
