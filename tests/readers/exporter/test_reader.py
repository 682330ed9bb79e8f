"""Exporter reader over real sockets: imported values, identity of the machine, staleness and hostile pages."""

import asyncio
import contextlib
import gc
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.channels.stream.dialers import make_dialer
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Provenance, Round, Sample, Value
from gpufleet.model.view import Side
from gpufleet.readers.exporter.fetch import MAX_PAGE_BYTES, ScrapedPage, StreamPageFetcher, UrlPageFetcher
from gpufleet.readers.exporter.mapping import samples_of
from gpufleet.readers.exporter.reader import SHARED_SECONDS, ExporterReader
from gpufleet.readers.exporter.trust import MAX_DEVICES, MAX_VALUES
from tests.fakes.clock import FakeClock
from tests.support.authority import Authority
from tests.support.exporters import serving
from tests.support.profiles import examples

DATA = Path(__file__).parents[2] / "data" / "exposition"
L40S = (DATA / "dcgm-exporter-l40s-vm.txt").read_bytes()
UUID = "GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc43"
SECOND = 1_000_000_000


class FakePages:
    """Page fetcher that returns a given page."""

    def __init__(self, page: str | bytes | Callable[[], str]) -> None:
        self.where = "http://exporter/metrics"
        self.page = page
        self.fetched = 0

    async def fetch(self) -> ScrapedPage:
        self.fetched += 1
        page = self.page() if callable(self.page) else self.page
        return ScrapedPage(page.encode() if isinstance(page, str) else page, openmetrics=False)


def reader_of(
    page: str | bytes | Callable[[], str], clock: FakeClock | None = None, *, dialect: Dialect | None = None
) -> ExporterReader:
    return ExporterReader("x", FakePages(page), clock or FakeClock(), dialect=dialect)


def url_reader(url: str, *, token: Callable[[], str] | None = None, seconds: float = 5.0) -> ExporterReader:
    return ExporterReader("x", UrlPageFetcher(url, timeout_seconds=seconds, token=token), FakeClock())


def passed(reader: ExporterReader, lane: Lane = Lane.FAST) -> Round:
    return asyncio.run(reader.read(lane))


def refused(reader: ExporterReader, lane: Lane = Lane.FAST) -> ReaderError:
    with pytest.raises(ReaderError) as caught:
        passed(reader, lane)
    return caught.value


def values_by_view(done: Round) -> dict[str | None, dict[str, Value | Absent]]:
    return {sample.view.key if sample.view else None: sample.values for sample in done.samples}


def dcgm(field: str, value: object, *, host: str = "n", uuid: str = "GPU-1", stamp: str = "") -> str:
    return f'DCGM_FI_DEV_{field}{{gpu="0",UUID="{uuid}",modelName="H200",Hostname="{host}"}} {value}{stamp}\n'


# --- over the wire ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("over", ["http", "unix"])
def test_page_of_a_real_exporter_is_read_to_the_unit(over: str, chunked: bool, tmp_path: Path) -> None:
    with serving(L40S, tmp_path / "socket" if over == "unix" else None) as (server, address):
        server.chunked = chunked
        clock = FakeClock()
        if over == "unix":
            reader = ExporterReader(
                "x", StreamPageFetcher(make_dialer(address), where=address, timeout_seconds=5), clock, side=Side.GUEST
            )
        else:
            reader = ExporterReader("x", UrlPageFetcher(address, timeout_seconds=5), clock)
        fast, slow, static = (passed(reader, lane) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC))
        assert len(server.requests) == 1  # lanes that are due together share a page
        assert server.requests[0]["accept-encoding"] == "identity"
    values = values_by_view(fast)[f"gpu/{UUID}"]
    assert values["gpu_power_watts"] == 35.686
    assert values["gpu_sm_clock_hertz"] == 210_000_000
    assert values_by_view(slow)[f"gpu/{UUID}"]["gpu_remapped_rows_correctable"] == 0
    texts = {"gpu_name": "NVIDIA L40S", "gpu_pci_address": "0000:00:07.0"}
    assert values_by_view(static)[f"gpu/{UUID}"] == texts
    for done in (fast, slow, static):
        for sample in done.samples:
            assert sample.provenance is Provenance.IMPORTED
            assert sample.reader == "exporter/x"
            assert sample.measured_at == clock.now_ns()
            assert sample.view is not None
            assert sample.view.side is (Side.GUEST if over == "unix" else Side.HOST)


@pytest.mark.parametrize("over", ["http", "unix"])
@pytest.mark.parametrize(
    ("status", "headers", "message", "reason"),
    [
        (302, {"location": "http://127.0.0.1:1/"}, "redirects are not followed", Reason.READER_FAILED),
        (500, {}, "500", Reason.READER_FAILED),
        (401, {}, "401", Reason.READER_FAILED),
        (200, {"content-encoding": "gzip"}, "'gzip'", Reason.READER_FAILED),
    ],
)
def test_unexpected_responses_are_rejected(
    over: str, status: int, headers: dict[str, str], message: str, reason: Reason, tmp_path: Path
) -> None:
    with serving(L40S, tmp_path / "socket" if over == "unix" else None) as (server, address):
        server.status, server.headers = status, {**server.headers, **headers}
        pages = (
            StreamPageFetcher(make_dialer(address), where=address, timeout_seconds=5)
            if over == "unix"
            else UrlPageFetcher(address, timeout_seconds=5)
        )
        error = refused(ExporterReader("x", pages, FakeClock()))
        assert message in str(error)
        assert address in str(error)
        assert error.absence is reason
        assert len(server.requests) == 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("over", ["http", "unix"])
def test_oversized_page_is_rejected(over: str, chunked: bool, tmp_path: Path) -> None:
    with serving(b"#" * (MAX_PAGE_BYTES + 2), tmp_path / "s" if over == "unix" else None) as (server, address):
        server.chunked = chunked
        pages = (
            StreamPageFetcher(make_dialer(address), where=address, timeout_seconds=20)
            if over == "unix"
            else UrlPageFetcher(address, timeout_seconds=20)
        )
        with pytest.raises(ChannelError, match=str(MAX_PAGE_BYTES)) as caught:
            asyncio.run(pages.fetch())
        assert caught.value.problem is ChannelProblem.TOO_LARGE


@contextlib.contextmanager
def raw_server(path: Path, answer: bytes, *, hang: bool = False) -> Iterator[str]:
    """Serve these bytes on a Unix socket and then close the connection or hang."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    connections: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(answer)
            connections.append(connection)
            if not hang:
                connection.close()

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"unix://{path}"
    finally:
        listener.close()
        for connection in connections:
            connection.close()
        thread.join(5)


@pytest.mark.parametrize(
    ("answer", "hang", "problem"),
    [
        (b"", False, ChannelProblem.PROTOCOL),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False, ChannelProblem.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", False, ChannelProblem.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * (128 << 10), False, ChannelProblem.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", True, ChannelProblem.TIMEOUT),
    ],
)
def test_stream_without_http_ends_with_the_declared_error(
    answer: bytes, hang: bool, problem: ChannelProblem, tmp_path: Path
) -> None:
    with raw_server(tmp_path / "socket", answer, hang=hang) as address:
        pages = StreamPageFetcher(make_dialer(address), where=address, timeout_seconds=0.5 if hang else 5)
        with pytest.raises(ChannelError) as caught:
            asyncio.run(pages.fetch())
        assert caught.value.problem is problem
        assert address in str(caught.value)


def test_unreachable_exporter_error_names_the_address(tmp_path: Path) -> None:
    error = refused(url_reader("http://127.0.0.1:1/metrics"))
    assert error.absence is Reason.READER_FAILED
    address = f"unix://{tmp_path}/none"
    pages = StreamPageFetcher(make_dialer(address), where=address, timeout_seconds=1)
    assert str(tmp_path) in str(refused(ExporterReader("x", pages, FakeClock())))


async def test_shared_failure_has_the_age_of_its_request() -> None:
    class Refusing:
        where = "unix:///refusing"

        async def fetch(self) -> ScrapedPage:
            raise ChannelError("connection refused", ChannelProblem.NO_LISTENER)

    clock = FakeClock()
    reader = ExporterReader("x", Refusing(), clock)
    ages = []
    for lane in (Lane.SLOW, Lane.FAST, Lane.FAST):
        with pytest.raises(ReaderError) as caught:
            await reader.read(lane)
        ages.append(caught.value.age_seconds)
        clock.advance(3)
    assert ages == [0, 3, 0]


def test_shared_page_has_the_age_of_its_request() -> None:
    with serving(L40S) as (_, address):
        clock = FakeClock()
        reader = ExporterReader("x", UrlPageFetcher(address, timeout_seconds=5), clock)
        assert passed(reader, Lane.SLOW).age_seconds == 0
        clock.advance(3)
        assert passed(reader, Lane.FAST).age_seconds == 3


async def test_cached_failure_holds_no_page() -> None:
    class Page:
        pass

    pages: list[weakref.ref[Page]] = []

    class Endless:
        where = "unix:///endless"

        async def fetch(self) -> ScrapedPage:
            page = Page()
            pages.append(weakref.ref(page))
            raise ChannelError("the page is too large", ChannelProblem.TOO_LARGE)

    reader = ExporterReader("x", Endless(), FakeClock())
    gc.disable()
    try:
        for lane in (Lane.FAST, Lane.SLOW):  # the second lane reuses the failure of the first
            with contextlib.suppress(ReaderError):
                await reader.read(lane)
        assert [page() for page in pages] == [None]
    finally:
        gc.enable()


def test_hanging_exporter_is_a_timeout(tmp_path: Path) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with contextlib.closing(listener):
        error = refused(url_reader(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", seconds=0.2))
    assert error.absence is Reason.TIMEOUT


def test_token_is_sent() -> None:
    with serving(L40S) as (server, address):
        passed(url_reader(address, token=lambda: "secret"))
        assert server.requests[0]["authorization"] == "Bearer secret"


def test_server_certificate_is_verified(tmp_path: Path) -> None:
    mine, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = tmp_path / "crt", tmp_path / "key"
    mine.issue(certificate, key)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    with serving(L40S, tls=server_side) as (server, address):
        assert address.startswith("https://")
        trusted = ExporterReader("x", UrlPageFetcher(address, timeout_seconds=5, tls=mine.trusting), FakeClock())
        assert values_by_view(passed(trusted))
        untrusted = ExporterReader("x", UrlPageFetcher(address, timeout_seconds=5, tls=other.trusting), FakeClock())
        assert "certificate" in str(refused(untrusted)).lower()
        assert len(server.requests) == 1


# --- identity of the machine --------------------------------------------------------------------


def test_forged_host_name_has_no_effect() -> None:
    mine = passed(reader_of(dcgm("GPU_UTIL", 40, host="gpu-17")))
    forged = passed(reader_of(dcgm("GPU_UTIL", 40, host="another-host")))
    assert mine == forged


def test_page_of_several_machines_is_rejected() -> None:
    page = dcgm("GPU_UTIL", 40, host="a") + dcgm("GPU_UTIL", 40, host="b", uuid="GPU-2")
    assert "2 machines ('a', 'b')" in str(refused(reader_of(page)))


VM_UID = 'vm_uid="5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"'


@pytest.mark.parametrize("dialect", ["native", "dcgm"])
@pytest.mark.parametrize("name", ['namespace="ml",vm_name="train-0"', 'vm_name="n"'])
def test_guest_series_are_not_attributed_to_the_host(dialect: str, name: str) -> None:
    """Neither a guest's GPU, even with the UUID of a host GPU, nor a guest's memory is read."""
    guest_labels = f"{name},{VM_UID}"
    if dialect == "native":
        gpu = f'uuid="{UUID}",pci_address="",kind="gpu",side="host",name="A"'
        page = (
            f'gpufleet_gpu_utilization_ratio{{node="n",{gpu}}} 0.5\ngpufleet_host_memory_total_bytes{{node="n"}} 64\n'
        )
        guest = f'{guest_labels},uuid="{UUID}",pci_address="",kind="gpu",side="guest",name="A"'
        page += f'gpufleet_gpu_utilization_ratio{{node="n",{guest}}} 0.9\n'
        page += f'gpufleet_gpu_temperature_celsius{{node="n",{guest}}} 40\n'
        page += f'gpufleet_host_memory_total_bytes{{node="n",{guest_labels}}} 32\n'
        page += f'gpufleet_host_memory_free_bytes{{node="n",{guest_labels}}} 16\n'
    else:
        page = dcgm("GPU_UTIL", 50, uuid=UUID)
        page += dcgm("GPU_UTIL", 90, uuid=UUID).replace("}", f",{guest_labels}}}")
        page += dcgm("GPU_TEMP", 40, uuid=UUID).replace("}", f",{guest_labels}}}")
    found = values_by_view(passed(reader_of(page)))
    assert found[f"gpu/{UUID}"] == {"gpu_utilization_ratio": 0.5}
    assert found.get(None, {}) == ({"host_memory_total_bytes": 64} if dialect == "native" else {})


def test_page_in_two_dialects_needs_a_declared_one() -> None:
    smi = f'all_smi_gpu_utilization{{gpu="A", instance="n", gpu_uuid="{UUID}", gpu_index="0"}} 50\n'
    page = dcgm("GPU_UTIL", 40, uuid=UUID) + smi
    error = refused(reader_of(page))
    assert "dcgm-exporter and all-smi" in str(error)
    assert "dialect" in str(error)
    assert values_by_view(passed(reader_of(page, dialect=DCGM_EXPORTER)))[f"gpu/{UUID}"] == {
        "gpu_utilization_ratio": 0.4
    }


def test_own_page_with_foreign_names_is_read_once() -> None:
    own = (
        f'gpufleet_gpu_utilization_ratio{{node="n",uuid="{UUID}",pci_address="",kind="gpu",side="host",name="A"}} 0.5\n'
    )
    assert values_by_view(passed(reader_of(dcgm("GPU_UTIL", 40, uuid=UUID) + own)))[f"gpu/{UUID}"] == {
        "gpu_utilization_ratio": 0.5
    }


def test_agent_metrics_do_not_determine_the_dialect() -> None:
    page = 'gpufleet_agent_start_timestamp_seconds{node="n"} 1.0\n' + dcgm("GPU_UTIL", 40)
    assert values_by_view(passed(reader_of(page)))["gpu/GPU-1"] == {"gpu_utilization_ratio": 0.4}


def test_dialect_is_kept_from_the_first_page() -> None:
    smi = f'all_smi_gpu_utilization{{gpu="A", instance="n", gpu_uuid="{UUID}", gpu_index="0"}} 50\n'
    pages, clock = iter([dcgm("GPU_UTIL", 40), smi]), FakeClock()
    reader = reader_of(lambda: next(pages), clock)
    passed(reader)
    error = refused(reader)
    assert "dcgm-exporter" in str(error)
    assert error.absence is Reason.NO_DATA


def test_machine_without_a_gpu_is_read() -> None:
    page = 'gpufleet_host_memory_total_bytes{node="n"} 64\ngpufleet_agent_start_timestamp_seconds{node="n"} 1\n'
    assert values_by_view(passed(reader_of(page))) == {None: {"host_memory_total_bytes": 64}}


def test_page_without_known_metrics_is_a_failure() -> None:
    for page in ("", "node_load1 0.5\n", "go_goroutines 7\n"):
        assert refused(reader_of(page)).absence is Reason.NO_DATA
    assert refused(reader_of("<html>no</html>")).absence is Reason.READER_FAILED


def test_second_pass_of_a_lane_fetches_the_page_again() -> None:
    clock = FakeClock()
    pages = FakePages(dcgm("GPU_UTIL", 40))
    reader = ExporterReader("x", pages, clock)
    passed(reader)
    passed(reader)
    assert pages.fetched == 2
    clock.advance(SHARED_SECONDS + 1)
    passed(reader, Lane.SLOW)
    assert pages.fetched == 3
    passed(reader, Lane.STATIC)
    assert pages.fetched == 3


# --- time ---------------------------------------------------------------------------------------


def test_exposed_timestamp_is_the_time_of_measurement() -> None:
    clock = FakeClock()
    ms = clock.now_ns() // 1_000_000
    (sample,) = passed(
        reader_of(dcgm("GPU_UTIL", 40, stamp=f" {ms - 20_000}") + dcgm("GPU_TEMP", 50, stamp=f" {ms - 5_000}"), clock)
    ).samples
    assert sample.measured_at == (ms - 20_000) * 1_000_000  # a lane has one sample, with the time of its oldest value
    assert sample.values == {"gpu_utilization_ratio": 0.4, "gpu_temperature_celsius": 50}


@pytest.mark.parametrize(
    ("age", "value"), [(-3600, 0.4), (0, 0.4), (299, 0.4), (301, Reason.STALE), (10**9, Reason.STALE)]
)
def test_outdated_sample_is_no_value_and_a_future_one_is_now(age: int, value: float | Reason) -> None:
    clock = FakeClock()
    ms = clock.now_ns() // 1_000_000 - age * 1000
    (sample,) = passed(reader_of(dcgm("GPU_UTIL", 40, stamp=f" {ms}"), clock)).samples
    found = sample.values["gpu_utilization_ratio"]
    assert (found.reason if isinstance(found, Absent) else found) == value
    assert clock.now_ns() - 300 * SECOND <= sample.measured_at <= clock.now_ns()


def test_native_page_has_a_measurement_time_per_lane() -> None:
    """If several readers read one device, the page does not name the reader of each value: the oldest time counts."""
    clock = FakeClock()
    gpu = f'node="n",uuid="{UUID}",pci_address="",kind="gpu",side="host",name="A"'
    now = clock.now_ns() // SECOND
    page = f"gpufleet_gpu_utilization_ratio{{{gpu}}} 0.5\ngpufleet_gpu_row_remap_failed{{{gpu}}} 0\n"
    page += 'gpufleet_host_cpus{node="n"} 2\n'
    for reader, lane, age in (("nvml", "fast", 20), ("dcgm", "fast", 30), ("nvml", "slow", 50), ("nvml", "new", 1)):
        labels = f'{gpu},reader="{reader}",lane="{lane}"'
        page += f"gpufleet_measured_timestamp_seconds{{{labels}}} {now - age}\n"
    page += f'gpufleet_measured_timestamp_seconds{{node="n",reader="host",lane="fast"}} {now + 999}\n'
    reader_ = reader_of(page, clock)
    ages = {
        (sample.view is not None, lane): clock.now_ns() // SECOND - sample.measured_at // SECOND
        for lane in (Lane.FAST, Lane.SLOW)
        for sample in passed(reader_, lane).samples
    }
    assert ages == {(True, Lane.FAST): 30, (True, Lane.SLOW): 50, (False, Lane.FAST): 0}


# --- frozen -------------------------------------------------------------------------------------


def working(power: float = 627.4, energy: int | None = 1000, util: int = 100) -> str:
    page = dcgm("POWER_USAGE", power) + dcgm("GPU_TEMP", 52) + dcgm("SM_CLOCK", 1980) + dcgm("GPU_UTIL", util)
    return page + (dcgm("TOTAL_ENERGY_CONSUMPTION", energy) if energy is not None else "")


def scrape(page: Callable[[int], str], times: int = 20) -> list[Round]:
    """Read pages ten seconds apart."""
    clock, number = FakeClock(), iter(range(times))
    reader = reader_of(lambda: page(next(number)), clock)
    rounds = []
    for _ in range(times):
        rounds.append(passed(reader))
        clock.advance(10)
    return rounds


def is_accepted(done: Round) -> bool:
    return not isinstance(values_by_view(done)["gpu/GPU-1"]["gpu_power_watts"], Absent)


def test_values_of_a_frozen_exporter_become_stale() -> None:
    rounds = scrape(lambda _: working())
    accepted = [is_accepted(done) for done in rounds]
    assert accepted == [True] * 12 + [False] * 8  # 120 s
    values = values_by_view(rounds[-1])["gpu/GPU-1"]
    assert {value.reason for value in values.values() if isinstance(value, Absent)} == {Reason.STALE}
    assert all(isinstance(value, Absent) for value in values.values())
    (error,) = rounds[-1].errors
    assert "GPU-1" in error
    assert not rounds[0].errors


def test_values_return_when_a_frozen_exporter_recovers() -> None:
    rounds = scrape(lambda number: working(power=627.4 if number < 18 else 630.1))
    assert [is_accepted(done) for done in rounds[16:]] == [False, False, True, True]
    assert not rounds[-1].errors


@pytest.mark.parametrize(
    "page",
    [
        lambda number: working(power=627.4 + number % 3 / 10),  # noise
        lambda number: working(energy=1000 + number),  # the counter moves
        lambda number: working(energy=1000 + number // 3),  # updated every 30 s
        lambda _: working(util=0, energy=None),  # idle, without other evidence
        lambda _: dcgm("SM_CLOCK", 1980) + dcgm("GPU_UTIL", 100) + dcgm("POWER_USAGE", 0),  # a guest without power
    ],
)
def test_steady_but_live_gpu_is_not_stale(page: Callable[[int], str]) -> None:
    for done in scrape(page):
        values = values_by_view(done)["gpu/GPU-1"].values()
        assert not any(isinstance(value, Absent) for value in values)


def test_constant_energy_under_power_draw_is_frozen() -> None:
    assert not is_accepted(scrape(lambda _: working(util=0))[-1])


# --- hostile ------------------------------------------------------------------------------------


def devices_of(done: Round) -> set[str]:
    return {sample.view.key for sample in done.samples if sample.view is not None}


def test_known_devices_go_on_beyond_the_device_cap() -> None:
    """A page with too many devices keeps those of the page before, wherever they stand, and counts the others."""
    known = "".join(dcgm("GPU_UTIL", 1, uuid=f"GPU-{number}") for number in range(MAX_DEVICES - 1))
    extras = "".join(dcgm("GPU_UTIL", 1, uuid=f"GPU-extra-{number}") for number in range(10))
    pages, clock = iter([known, extras + known, extras + known]), FakeClock()
    reader = reader_of(lambda: next(pages), clock)
    before = devices_of(passed(reader))
    for _ in range(2):
        done = passed(reader)
        assert len(devices_of(done)) == MAX_DEVICES
        assert before < devices_of(done)
        (error,) = done.errors
        assert "9 devices" in error
    assert devices_of(done) - before == {"gpu/GPU-extra-0"}


def test_machine_goes_on_beyond_the_value_cap() -> None:
    """One device with too many values costs itself; a page with nothing else is a failure."""
    xids = "".join(f'nvidia_smi_xid_errors_total{{uuid="1",xid="{number}"}} 1\n' for number in range(MAX_VALUES + 1))
    other = 'nvidia_smi_xid_errors_total{uuid="2",xid="79"} 1\n'
    done = passed(reader_of(xids + other), Lane.EVENT)
    assert devices_of(done) == {"gpu/GPU-2"}
    assert "values" in str(refused(reader_of(xids), Lane.EVENT))


def test_overlong_identifiers_drop_only_their_series() -> None:
    page = dcgm("GPU_UTIL", 40) + dcgm("GPU_UTIL", 40, uuid="G" * 254)
    page += f'nvidia_smi_xid_errors_total{{uuid="1",xid="{"7" * 300}"}} 1\n'
    assert list(values_by_view(passed(reader_of(page, dialect=DCGM_EXPORTER)))) == ["gpu/GPU-1"]


def escaped(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@given(st.text(max_size=40), st.text(max_size=40))
def test_label_values_cannot_forge_another_device(pod: str, model: str) -> None:
    line = (
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",modelName="{escaped(model)}",Hostname="n",'
        f'pod="{escaped(pod)}"}} 40\n'
    )
    samples = samples_of(TextParser().parse(line.encode()), DCGM_EXPORTER, SECOND, reader="x", where="w").samples
    assert {sample.view.uuid for sample in samples if sample.view} == {"GPU-1"}
    assert all(sample.view is not None for sample in samples)


FRAGMENTS = st.sampled_from(
    [
        "DCGM_FI_DEV_GPU_UTIL", "gpufleet_gpu_utilization_ratio", "all_smi_gpu_utilization", "nvidia_smi_gpu_info",
        "gpufleet_measured_timestamp_seconds", "gpufleet_reading_absent", 'UUID="', 'uuid="GPU-1"', 'node="n"', "{",
        "}", '"', ",", " ", "\n", "1", "NaN", "1e308", "-1", "kind=", '"gpu"', 'side="host"', "# HELP x", "\\",
    ]
)  # fmt: skip


@given(st.lists(FRAGMENTS | st.text(max_size=5), max_size=60).map("".join))
@settings(max_examples=examples(100, 3000))
def test_any_page_raises_at_most_a_reader_error(page: str) -> None:
    with contextlib.suppress(ReaderError):
        done = passed(reader_of(page.encode("utf-8", "replace")))
        for sample in done.samples:
            assert isinstance(sample, Sample)
            assert sample.measured_at > 0
