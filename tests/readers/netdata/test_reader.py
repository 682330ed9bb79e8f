"""Netdata reader: values in catalogue units; missing and stale charts are absent."""

import contextlib
import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.errors import ReaderError, WireError
from gpufleet.model.reading import Provenance, Sample
from gpufleet.readers.netdata.mapping import GO_D, HOST, MAX_GPUS, PYTHON_D, STALE_SECONDS
from gpufleet.readers.netdata.parse import MAX_CHARTS, parse
from gpufleet.readers.netdata.reader import NetdataReader, round_of
from tests.fakes.clock import FakeClock

NOW = 1_767_225_600
UUID = "gpu-5b4e07f6-3a86-4340-039d-25f2a83cdc43"


def chart(updated: int = NOW, family: str = "", **values: float | None) -> dict[str, Any]:
    return {
        "name": "any",
        "family": family,
        "context": "any",
        "units": "any",
        "last_updated": updated,
        "dimensions": {f"id_{name}": {"name": name, "value": value} for name, value in values.items()},
    }


def page(**more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the charts of a host without GPUs."""
    return {
        "system.cpu": chart(user=30.5, system=10.25, nice=0, softirq=0.25, iowait=5, guest=20, guest_nice=0),
        "system.load": chart(NOW - 4, load1=1.25, load5=2.5, load15=3.75),
        "system.ram": chart(free=1024.5, used=2048, cached=512.25, buffers=16.125),
        "mem.available": chart(avail=1500.75),
        "net_operstate.eth0": chart(up=1, down=0),
        "net_operstate.eth1": chart(up=0, down=1),
        "net_speed.eth0": chart(speed=100_000_000),
        "net.eth0": chart(received=800.0, sent=-80.0),
        "disk.sda": chart(reads=1),
        **{name.replace("__", "."): one for name, one in more.items()},
    }


def samples(document: object, lane: Lane = Lane.FAST) -> list[Sample]:
    return list(round_of(parse(json.dumps(document).encode()), lane).samples)


def test_host_charts() -> None:
    (host,) = samples(page())
    assert host.provenance is Provenance.HOST_NETDATA
    assert host.measured_at == (NOW - 4) * 10**9  # the oldest chart in use
    assert host.values == {
        "host_load_1m": 1.25,
        "host_load_5m": 2.5,
        "host_load_15m": 3.75,
        "host_memory_available_bytes": 1_573_650_432,
        "host_memory_free_bytes": 1_074_266_112,
        "host_memory_buffers_bytes": 16_908_288,
        "host_swap_free_bytes": Absent(Reason.NOT_REPORTED, "no such chart"),
        "host_cpu_utilization_ratio": 0.41,
    }
    assert {(dim.metric, dim.labels): dim.value for dim in host.dims} == {
        ("host_network_up", ("eth0", "unknown")): 1,
        ("host_network_up", ("eth1", "unknown")): 0,
        ("host_network_speed_bytes_per_second", ("eth0", "unknown")): 12_500_000_000,
        ("host_network_receive_bytes_per_second", ("eth0", "unknown")): 100_000.0,
        ("host_network_transmit_bytes_per_second", ("eth0", "unknown")): 10_000.0,
    }


def test_page_cache_is_not_that_of_netdata() -> None:
    """Netdata's number is not the kernel's: it has reclaimable slabs, and no shared memory."""
    (host,) = samples(page())
    assert "host_memory_cached_bytes" not in host.values


@pytest.mark.parametrize(("slab", "buffers"), [(0.0, Absent), (793.25, int)])
def test_fixed_zero_of_lxcfs_is_no_size_of_buffers(slab: float, buffers: type) -> None:
    charts = {"system.ram": chart(free=1024.5, used=2048, cached=512.25, buffers=0), "mem.kernel": chart(Slab=slab)}
    (host,) = samples(page() | charts)
    assert isinstance(host.values["host_memory_buffers_bytes"], buffers)


def network(**charts: dict[str, Any]) -> dict[tuple[str, str], object]:
    """Return the readings of the interfaces of these charts, by metric and interface; an absence as its reason."""
    (host,) = samples(page() | {name.replace("__", "."): one for name, one in charts.items()})
    values = {(dim.metric, dim.labels[0]): dim.value for dim in host.dims if not dim.labels[0].startswith("eth")}
    return {key: value.reason if isinstance(value, Absent) else value for key, value in values.items()}


@pytest.mark.parametrize(
    ("carrier", "up"),
    [
        ({"net_carrier__tun0": chart(up=1, down=0)}, 1),
        ({"net_carrier__tun0": chart(up=0, down=1)}, 0),
        ({}, Reason.NOT_REPORTED),
    ],
)
def test_carrier_decides_without_an_operational_state(carrier: dict[str, dict[str, Any]], up: object) -> None:
    state = chart(up=0, down=0, lowerlayerdown=0, unknown=1)
    assert network(net_operstate__tun0=state, **carrier) == {("host_network_up", "tun0"): up}


def test_unknown_speed_is_no_speed_of_zero() -> None:
    """The kernel reports -1; Netdata 1.37.1 shows 0."""
    speed = "host_network_speed_bytes_per_second"
    assert network(net_speed__ib0=chart(speed=0)) == {(speed, "ib0"): Reason.NO_DATA}
    old = chart(NOW - STALE_SECONDS - 1, speed=0)
    assert network(net_speed__ib0=old) == {(speed, "ib0"): Reason.STALE}


def test_memory_in_mebibytes_is_exact_in_bytes() -> None:
    (host,) = samples(page(mem__available=chart(avail=21531.3007812)))
    assert host.values["host_memory_available_bytes"] == 22_048_052 * 1024


def by_index(index: int, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    family = f"gpu{index} NVIDIA H100 80GB HBM3"
    charts = {
        "gpu_utilization": chart(family=family, utilization=57 + index),
        "mem_utilization": chart(family=family, utilization=33),
        "encoder_utilization": chart(family=family, encoder=0, decoder=7),
        "mem_usage": chart(family=family, free=80_000, used=1_559 + index),
        "temperature": chart(family=family, temp=41),
        "clocks": chart(family=family, graphics=1980, sm=1965, mem=2619, video=1545),
        "power_state": chart(family=family, **{f"P{n}": int(n == 2) for n in range(16)}),
        **more,
    }
    return {f"nvidia_smi.gpu{index}_{name}": one for name, one in charts.items()}


def test_gpus_of_the_python_collector_are_named_by_index() -> None:
    document = page() | by_index(0) | by_index(10) | by_index(2)
    _, *gpus = samples(document)
    assert [gpu.view.key for gpu in gpus if gpu.view] == [
        "gpu/instance/netdata/gpu0",
        "gpu/instance/netdata/gpu10",
        "gpu/instance/netdata/gpu2",
    ]
    assert gpus[2].values == {
        "gpu_utilization_ratio": 0.59,
        "gpu_memory_activity_ratio": 0.33,
        "gpu_encoder_utilization_ratio": Absent(Reason.NOT_SUPPORTED, "gpu_encoder_utilization_ratio"),
        "gpu_decoder_utilization_ratio": 0.07,
        "gpu_memory_used_bytes": 1_561 << 20,
        "gpu_memory_free_bytes": 80_000 << 20,
        "gpu_bar1_used_bytes": Absent(Reason.NOT_REPORTED, "no such chart"),
        "gpu_temperature_celsius": 41.0,
        "gpu_power_watts": Absent(Reason.NOT_REPORTED, "no such chart"),
        "gpu_graphics_clock_hertz": 1_980_000_000,
        "gpu_sm_clock_hertz": 1_965_000_000,
        "gpu_memory_clock_hertz": 2_619_000_000,
        "gpu_video_clock_hertz": 1_545_000_000,
        "gpu_performance_state": 2,
    }
    (named, *_) = samples(document, Lane.STATIC)
    assert named.values == {"gpu_name": "NVIDIA H100 80GB HBM3"}


def by_uuid() -> dict[str, dict[str, Any]]:
    charts = {
        "gpu_utilization": chart(gpu=91),
        "memory_utilization": chart(memory=44),
        "encoder_utilization": chart(encoder=1),
        "decoder_utilization": chart(decoder=2),
        "frame_buffer_memory_usage": chart(free=70_000_000_000, used=9_000_000_001, reserved=600_000_000),
        "bar1_memory_usage": chart(free=100, used=5),
        "temperature": chart(temperature=55),
        "clock_freq": chart(graphics=1, video=2, sm=3, mem=4),
        "power_draw": chart(power_draw=412.34),
        "fan_speed_perc": chart(fan_speed=30),
        "performance_state": chart(P0=1, P1=0),
    }
    return {f"nvidia_smi_local.gpu_{UUID}_{name}": one for name, one in charts.items()}


def test_gpus_named_by_uuid_take_precedence_over_indices() -> None:
    _, gpu = samples(page() | by_index(0) | by_uuid())
    assert gpu.view is not None
    assert gpu.view.uuid == "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43"
    assert gpu.values["gpu_memory_used_bytes"] == 9_000_000_001
    assert gpu.values["gpu_memory_reserved_bytes"] == 600_000_000
    assert gpu.values["gpu_power_watts"] == 412.34
    assert gpu.values["gpu_performance_state"] == 0
    assert gpu.dims[0].value == 0.3
    assert not [value for value in gpu.values.values() if isinstance(value, Absent)]


def test_fan_speed_of_zero_needs_a_known_product() -> None:
    for product, found in (("A40", Reason.NOT_SUPPORTED), ("RTX A6000", 0)):
        fan = chart(family=f"gpu0 NVIDIA {product}", speed=0)
        usage = chart(family=f"gpu0 NVIDIA {product}", gpu_util=1)
        _, gpu = samples(page() | {"nvidia_smi.gpu0_fan_speed": fan, "nvidia_smi.gpu0_gpu_utilization": usage})
        (speed,) = [dim.value for dim in gpu.dims]
        assert (speed.reason if isinstance(speed, Absent) else speed) == found
    _, gpu = samples(page() | by_uuid() | {f"nvidia_smi_local.gpu_{UUID}_fan_speed_perc": chart(fan_speed=0)})
    assert gpu.dims[0].value == Absent(Reason.NOT_REPORTED, "not in this generation of charts")


def test_stale_chart_has_no_value() -> None:
    old = chart(NOW - STALE_SECONDS - 1, utilization=99)
    _, gpu = samples(page() | by_index(0, gpu_utilization=old, temperature=chart(NOW - STALE_SECONDS, temp=40)))
    stale = gpu.values["gpu_utilization_ratio"]
    assert isinstance(stale, Absent)
    assert stale.reason is Reason.STALE
    assert gpu.values["gpu_temperature_celsius"] == 40
    assert gpu.measured_at == (NOW - STALE_SECONDS) * 10**9


@pytest.mark.parametrize("value", [None, 101, -1])
def test_invalid_value_affects_only_itself(value: float | None) -> None:
    _, gpu = samples(page() | by_index(0, gpu_utilization=chart(utilization=value)))
    assert isinstance(gpu.values["gpu_utilization_ratio"], Absent)
    assert gpu.values["gpu_temperature_celsius"] == 41


def test_malformed_chart_affects_only_itself() -> None:
    document = page() | {"bad.one": {"dimensions": 5}, "bad.two": [1], "bad.three": chart(-5, x=1), "bad.four": {}}
    parsed = parse(json.dumps(document).encode())
    assert len(parsed.charts) == len(page())
    assert len(parsed.errors) == 4


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b"{", b'{"a": 1', b"\xff", b"[" * 100_000, b'{"a":' * 100_000],
)
def test_invalid_document_is_a_wire_error(content: bytes) -> None:
    with pytest.raises(WireError):
        parse(content)


def test_too_many_charts_are_rejected() -> None:
    with pytest.raises(WireError, match=str(MAX_CHARTS)) as caught:
        parse(json.dumps({f"c{n}": 0 for n in range(MAX_CHARTS + 1)}).encode())
    assert caught.value.field == "allmetrics"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*page(), "nvidia_smi.gpu0_clocks", "net.x", ""]), JSON, max_size=6))
def test_any_charts_are_parsed_or_reported(document: dict[str, Any]) -> None:
    parsed = parse(json.dumps(document).encode())
    assert len(parsed.charts) + len(parsed.errors) == len(document)
    if parsed.charts:
        round_of(parsed, Lane.FAST)


@pytest.mark.parametrize("value", [1e300, -1e300, 1.7e308, 2.0**63, 9e18])
def test_out_of_range_number_affects_only_itself(value: float) -> None:
    """Values that do not fit into 64 bits could not be shown, sent or stored."""
    used = chart(used=value, free=value, graphics=value, temp=value)
    charts = {"mem_usage": used, "clocks": used}
    host, gpu = samples(page(net__eth0=chart(received=value, sent=value)) | by_index(0, **charts))
    for found in (host, gpu):
        for one in (*found.values.values(), *(dim.value for dim in found.dims)):
            assert isinstance(one, Absent | str | float) or -(2**63) <= one < 2**63
    assert isinstance(gpu.values["gpu_memory_used_bytes"], Absent)
    assert gpu.values["gpu_temperature_celsius"] == 41


def test_too_many_gpus_are_rejected_and_interfaces_limited() -> None:
    many = {f"nvidia_smi.gpu{n}_temperature": chart(temp=1) for n in range(MAX_GPUS + 1)}
    with pytest.raises(WireError, match=str(MAX_GPUS)) as caught:
        samples(page() | many)
    assert caught.value.field == "allmetrics"
    host, *_ = samples(page() | {f"net.eth{n}": chart(received=1.0) for n in range(2000)})
    assert len(host.dims) < 2 * 2000


def test_overlong_chart_name_affects_only_itself() -> None:
    parsed = parse(json.dumps(page() | {"net." + "x" * 1_000_000: chart(received=1.0)}).encode())
    assert len(parsed.charts) == len(page())
    (error,) = parsed.errors
    assert len(error) < 300


async def test_chart_from_the_future_does_not_make_others_stale() -> None:
    """Taken as the newest, it would make every other chart stale and date the samples into the future."""
    pages = {"now": page() | {"disk.odd": chart(2**32, reads=1)}}
    with serving(200, lambda: json.dumps(pages["now"]).encode()) as url:
        reader = NetdataReader(url, FakeClock(NOW * 10**9))
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.FAST)
        assert caught.value.absence is Reason.NO_DATA
        pages["now"] = later(page(), 10) | {"disk.odd": chart(2**32 + 10, reads=1)}
        round_ = await reader.read(Lane.FAST)
    (host,) = round_.samples
    assert host.values["host_load_1m"] == 1.25
    assert host.measured_at <= (NOW + 10) * 10**9
    assert any("disk.odd" in error for error in round_.errors)


async def test_decompression_bomb_is_bounded() -> None:
    bomb = gzip.compress(bytes(200 << 20), 9)
    with serving(200, lambda: bomb, {"Content-Encoding": "gzip"}) as url:
        tracemalloc.start()
        with pytest.raises(ReaderError, match=str(16 << 20)):
            await NetdataReader(url, FakeClock(NOW * 10**9)).read(Lane.FAST)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 100 << 20


async def test_compressed_page_is_read() -> None:
    packed = gzip.compress(json.dumps(page()).encode())
    with serving(200, lambda: packed, {"Content-Encoding": "gzip"}) as url:
        round_ = await NetdataReader(url, FakeClock(NOW * 10**9)).read(Lane.STATIC)
    assert (round_.samples, round_.errors) == ((), ())  # read, but without GPUs the static lane is empty


@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_invalid_compression_is_an_error(encoding: str) -> None:
    with (
        serving(200, lambda: b"no such thing", {"Content-Encoding": encoding}) as url,
        pytest.raises(ReaderError, match=encoding),
    ):
        await NetdataReader(url, FakeClock(NOW * 10**9)).read(Lane.FAST)


async def test_slow_response_is_a_timeout() -> None:
    stop = Event()

    def drip() -> bytes:
        stop.wait(30)
        return b"{}"

    with serving(200, drip) as url:
        try:
            with pytest.raises(ReaderError) as caught:
                await NetdataReader(url, FakeClock(NOW * 10**9), timeout_seconds=0.5).read(Lane.FAST)
        finally:
            stop.set()
    assert caught.value.absence is Reason.TIMEOUT


def test_rows_are_metrics_of_the_fast_lane() -> None:
    for row in (*PYTHON_D, *GO_D, *HOST):
        assert CATALOGUE[row.metric].lane is Lane.FAST, row.metric


@contextlib.contextmanager
def serving(status: int, content: Callable[[], bytes], headers: dict[str, str] | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def later(document: dict[str, dict[str, Any]], seconds: int) -> dict[str, dict[str, Any]]:
    return {name: one | {"last_updated": one["last_updated"] + seconds} for name, one in document.items()}


async def test_chart_collected_only_once_is_ignored() -> None:
    """Netdata shows zeros for a chart that was collected once."""
    pages = {"now": page()}
    with serving(200, lambda: json.dumps(pages["now"]).encode()) as url:
        reader = NetdataReader(url, FakeClock(NOW * 10**9))
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.FAST)
        assert caught.value.absence is Reason.NO_DATA
        begun = by_index(0, temperature=chart(NOW + 10, temp=0))
        pages["now"] = later(page(), 10) | begun
        assert [sample.view for sample in (await reader.read(Lane.FAST)).samples] == [None]
        pages["now"] = later(page() | begun, 20)
        _, gpu = (await reader.read(Lane.FAST)).samples
        assert gpu.values["gpu_utilization_ratio"] == 0.57


async def test_netdata_that_stopped_collecting_is_stale() -> None:
    clock = FakeClock(NOW * 10**9)
    with serving(200, lambda: json.dumps(page()).encode()) as url:
        clock.step(121)
        with pytest.raises(ReaderError) as caught:
            await NetdataReader(url, clock).read(Lane.FAST)
    assert caught.value.absence is Reason.STALE


@pytest.mark.parametrize(
    ("status", "content", "headers", "named"),
    [
        (404, b"", {}, "404"),
        (302, b"", {"Location": "http://127.0.0.1:1/"}, "302"),
        (200, b"no json", {}, "allmetrics"),
        (200, b"{}", {}, ""),
        (200, b" " * ((16 << 20) + 1), {}, str(16 << 20)),
    ],
)
async def test_invalid_responses_are_errors(status: int, content: bytes, headers: dict[str, str], named: str) -> None:
    with serving(status, lambda: content, headers) as url, pytest.raises(ReaderError, match=named or None):
        await NetdataReader(url, FakeClock(NOW * 10**9)).read(Lane.FAST)


async def test_unreachable_netdata_is_an_error() -> None:
    with pytest.raises(ReaderError) as caught:
        await NetdataReader("http://127.0.0.1:1", FakeClock()).read(Lane.FAST)
    assert caught.value.absence is Reason.READER_FAILED


def test_captured_page_is_read() -> None:
    captured = (Path(__file__).parents[2] / "data" / "netdata" / "allmetrics-1.37.1-h100.json").read_bytes()
    found = round_of(parse(captured), Lane.FAST)
    host, first, last = found.samples
    assert not found.errors
    assert host.values["host_memory_available_bytes"] == 22_333_028 * 1024
    assert first.values["gpu_sm_clock_hertz"] == 345_000_000
    assert last.view is not None
    assert last.view.instance == "netdata/gpu7"
