"""Times of measurement on an agent's page: evidence of a GPU's state, and readers that have stopped."""

import pytest

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.reading import read_series
from gpufleet.model.reading import Sample

AT = 1_790_000_000_000_000_000


def samples_of(text: str, at: int = AT) -> list[Sample]:
    page = TextParser().parse(text.encode())
    return read_series(NATIVE, page.series, page.values, page.times, at, reader="x").machines["n"]


def state_of(text: str, at: int = AT) -> object:
    """Return the state of the GPU of a page, or None."""
    found = [one.values["gpu_state"] for one in samples_of(text, at) if "gpu_state" in one.values]
    assert len(found) < 2
    return found[0] if found else None


def native_page(*ages: tuple[str, str, int], stamp: str = "") -> str:
    """Return an agent's page of a GPU that is `ok`, whose serial number was read while the GPU was lost.

    Args:
        ages: reader, lane and age in seconds of the readings.
        stamp: timestamp of every sample.
    """
    gpu = 'node="n",uuid="GPU-1",pci_address="",kind="gpu",side="host",name="A"'
    lines = [
        f'gpufleet_gpu_state{{{gpu},state="ok"}} 1',
        f'gpufleet_reading_absent{{{gpu},metric="gpu_serial",reason="gpu_lost"}} 1',
    ]
    for reader, lane, age in ages:
        labels = f'{gpu},reader="{reader}",lane="{lane}",provenance="host_local_probe"'
        lines.append(f"gpufleet_measured_timestamp_seconds{{{labels}}} {AT // 10**9 - age}")
    return "".join(f"{line} {stamp}\n" for line in lines)


@pytest.mark.parametrize("stamp", ["", str(AT // 10**6)])
@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ([("nvml", "fast", 5), ("nvml", "static", 300)], "ok"),
        ([("nvml", "fast", 5), ("nvml", "static", 1)], "lost"),
        ([("nvml", "fast", 5), ("nvml", "static", 5)], "lost"),
        ([("nvml", "fast", 5), ("netdata", "fast", 900), ("nvml", "static", 300)], "ok"),
        ([("nvml", "fast", 5), ("netdata", "fast", 12), ("nvml", "static", 10)], "ok"),
        ([("netdata", "fast", 900), ("nvml", "static", 300)], "ok"),
        ([("nvml", "fast", 5), ("nvml", "static", 300), ("dcgm", "static", 1)], "ok"),
        ([("nvml", "fast", -300), ("nvml", "static", -200)], "ok"),
        ([("nvml", "fast", 90), ("nvml", "static", 80), ("dcgm", "fast", 5)], "ok"),
    ],
)
def test_loss_read_before_the_state_is_over(ages: list[tuple[str, str, int]], expected: str, stamp: str) -> None:
    """By remote write and federation, all series of a page have the time of the scrape."""
    assert state_of(native_page(*ages, stamp=stamp), 0 if stamp else AT) == expected


def test_loss_in_a_part_of_a_scrape_without_measurement_times_is_no_evidence() -> None:
    """A part can have the times, the state or the loss without the others."""
    page = native_page(stamp=str(AT // 10**6))
    assert state_of(page, 0) == "ok"
    assert state_of("".join(line for line in page.splitlines(keepends=True) if "gpu_state" not in line), 0) is None


@pytest.mark.parametrize(("interval", "age"), [(None, 20), (10, 20), (40, 100)])
def test_time_of_a_stopped_reader_does_not_count(interval: int | None, age: int) -> None:
    page = native_page(("nvml", "fast", 20), ("dcgm", "fast", 100))
    if interval is not None:
        page += f'gpufleet_reader_interval_seconds{{node="n",reader="dcgm",lane="fast"}} {interval}\n'
    (sample,) = (one for one in samples_of(page) if "gpu_state" in one.values)
    assert AT // 10**9 - sample.measured_at // 10**9 == age


def test_time_of_the_probe_is_not_that_of_other_readings() -> None:
    """The probe runs once a day, and its readings are not imported."""
    page = 'gpufleet_host_info{node="n",nvidia_driver_version="580.1",probe_hugepages="2048kB: 0"} 1\n'
    for reader, age in (("nvml", 5), ("probe", 100)):
        labels = f'node="n",reader="{reader}",lane="static",provenance="host_local_probe"'
        page += f"gpufleet_measured_timestamp_seconds{{{labels}}} {AT // 10**9 - age}\n"
    (sample,) = samples_of(page)
    assert (sample.values, AT - sample.measured_at) == ({"nvidia_driver_version": "580.1"}, 5 * 10**9)
