"""Host reader: failures, passes, damaged files and the live kernel."""

import asyncio
import os
import shutil
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ChannelError, ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.ports.channel import FetchPlan, FetchResult
from gpufleet.readers.host import HostReader
from gpufleet.readers.host.fetch import fetch_lane
from gpufleet.readers.host.parse.network import ERROR_COUNTERS
from gpufleet.readers.host.parse.text import decode
from tests.readers.host.machines import NOW, FixedClock, build, dims, read
from tests.support.profiles import examples
from tests.support.trees import plant


class TestFailures:
    """Bad files affect only their own readings, and the error names them."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return build("bare_metal", tmp_path)

    async def test_malformed_file_affects_only_its_readings(self, root: Path) -> None:
        whole = await read(root, Lane.FAST)
        (root / "proc/meminfo").write_text("MemTotal: lots\n")
        got = await read(root, Lane.FAST)
        assert got.errors == ("/proc/meminfo: 'MemTotal: lots' is not a field",)
        changed = {m for m, value in got.samples[0].values.items() if value != whole.samples[0].values[m]}
        assert changed == {m for m in whole.samples[0].values if m.startswith(("host_memory", "host_swap"))}
        assert got.samples[0].values["host_memory_total_bytes"] == Absent(Reason.INVALID_VALUE, "/proc/meminfo")
        assert got.samples[0].dims == whole.samples[0].dims

    @pytest.mark.parametrize(("slab", "buffers"), [(0, Absent), (812_345, int)])
    async def test_fixed_zero_of_lxcfs_is_no_size_of_buffers(self, root: Path, slab: int, buffers: type) -> None:
        (root / "proc/meminfo").write_text(
            f"MemTotal: 8388608 kB\nBuffers:               0 kB\nCached: 12000 kB\nSlab:        {slab} kB\n"
        )
        values = (await read(root, Lane.FAST)).samples[0].values
        assert isinstance(values["host_memory_buffers_bytes"], buffers)
        assert values["host_memory_cached_bytes"] == 12_288_000

    @pytest.mark.parametrize(("slab", "iowait"), [(0, Absent), (812_345, float)])
    async def test_fixed_zero_of_lxcfs_is_no_processor_time(self, root: Path, slab: int, iowait: type) -> None:
        """Lines that lxcfs writes from `cpuacct` of cgroup v1: user, system and idle time, and zeros."""
        (root / "proc/meminfo").write_text(f"MemTotal: 8388608 kB\nSlab:        {slab} kB\n")
        (root / "proc/stat").write_text(
            "cpu  300 0 80 20000 0 0 0 0 0 0\ncpu0 200 0 50 10000 0 0 0 0 0 0\ncpu1 100 0 30 10000 0 0 0 0 0 0\n"
        )
        spent = dims((await read(root, Lane.FAST)).samples[0], "host_cpu_seconds_total")
        assert {mode for (_, mode), value in spent.items() if not isinstance(value, iowait)} == (
            {"user", "system", "idle"} if iowait is Absent else set()
        )
        assert (spent["0", "user"], spent["1", "system"]) == (2.0, 0.3)

    async def test_counts_of_the_kernel_that_lxcfs_shows_are_times(self, root: Path) -> None:
        (root / "proc/meminfo").write_text("MemTotal: 8388608 kB\nSlab:        0 kB\n")
        (root / "proc/stat").write_text("cpu  300 0 80 20000 5 0 2 0 0 0\ncpu0 300 0 80 20000 5 0 2 0 0 0\n")
        spent = dims((await read(root, Lane.FAST)).samples[0], "host_cpu_seconds_total")
        assert (spent["0", "iowait"], spent["0", "steal"]) == (0.05, 0.0)

    async def test_fixed_zeros_of_gvisor_are_no_readings(self, root: Path) -> None:
        (root / "proc/loadavg").write_text("0.00 0.00 0.00 0/0 0\n")
        (root / "proc/meminfo").write_text("MemTotal: 2097152 kB\nBuffers:               0 kB\nCached: 5392 kB\n")
        (root / "proc/stat").write_text(
            "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nbtime 1720000000\n"
        )
        sample = (await read(root, Lane.FAST)).samples[0]
        zeros = {
            *("host_load_1m", "host_load_5m", "host_load_15m"),
            *("host_cpu_utilization_ratio", "host_memory_buffers_bytes"),
        }
        shown = {name: sample.values[name] for name in zeros} | dims(sample, "host_cpu_seconds_total")
        assert len(shown) == len(zeros) + 16
        assert {value.reason for value in shown.values() if isinstance(value, Absent)} == {Reason.NOT_REPORTED}
        assert [value for value in shown.values() if not isinstance(value, Absent)] == []
        assert (sample.values["host_cpus"], sample.values["host_memory_cached_bytes"]) == (2, 5_521_408)

    async def test_idle_machine_has_a_load_of_zero(self, root: Path) -> None:
        (root / "proc/loadavg").write_text("0.00 0.00 0.00 1/97 4000\n")
        assert (await read(root, Lane.FAST)).samples[0].values["host_load_1m"] == 0.0

    async def test_unknown_processor_model_is_absent(self, root: Path) -> None:
        (root / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: unknown\nflags\t\t: fpu\n")
        got = await read(root, Lane.STATIC)
        model = got.samples[0].values["host_cpu_model"]
        assert isinstance(model, Absent)
        assert (model.reason, got.errors) == (Reason.NOT_REPORTED, ())

    async def test_disk_without_a_size_is_not_empty(self, tmp_path: Path) -> None:
        root = build("guest", tmp_path)
        (root / "sys/class/block/vda/size").write_text("0\n")
        size = (await read(root, Lane.STATIC)).samples[0].values["host_root_disk_bytes"]
        assert size == Absent(Reason.NOT_SUPPORTED, "the disk reports no size")

    @pytest.mark.parametrize(
        ("driver", "layer", "device", "uncounted"),
        [
            ("hfi1", "InfiniBand", "0x24f1", {"VL15_dropped", "symbol_error"}),
            ("mlx4_core", "Ethernet", "0x1003", set(ERROR_COUNTERS) - {"link_downed"}),
            ("mlx4_core", "InfiniBand", "0x1003", set()),
            ("mlx4_core", "InfiniBand", "0x1004", set(ERROR_COUNTERS) - {"link_downed"}),
            ("mlx5_core", "Ethernet", "0x1021", set()),
            (None, "Ethernet", "0x1003", set()),
        ],
    )
    async def test_error_counter_that_the_driver_fills_with_0_is_absent(
        self, root: Path, driver: str | None, layer: str, device: str, uncounted: set[str]
    ) -> None:
        """A count above 0 is a reading, whatever the driver."""
        adapter = "/sys/class/infiniband/ibp9s0"
        lines = [f"{adapter}/ports/1/{name}" for name in ("state = 4: ACTIVE", f"link_layer = {layer}")]
        lines += [f"{adapter}/ports/1/counters/{name} = {3 * (name == 'link_downed')}" for name in ERROR_COUNTERS]
        lines += [f"{adapter}/device/device = {device}"]
        lines += [f"{adapter}/device/driver -> ../../bus/pci/drivers/{driver}"] if driver is not None else []
        plant("\n".join(lines), root)
        got = dims((await read(root, Lane.FAST)).samples[0], "host_infiniband_errors_total")
        found = {labels[-1]: value for labels, value in got.items() if labels[0] == "ibp9s0"}
        absent = {name: value.reason for name, value in found.items() if isinstance(value, Absent)}
        assert len(found) == len(ERROR_COUNTERS)
        assert absent == dict.fromkeys(uncounted, Reason.NOT_SUPPORTED)
        assert found["link_downed"] == 3

    async def test_bad_counter_affects_only_itself(self, root: Path) -> None:
        (root / "sys/class/net/bond0/statistics/rx_bytes").write_text(f"{2**64 - 1}\n")
        got = await read(root, Lane.FAST)
        received = dims(got.samples[0], "host_network_receive_bytes_total")
        assert isinstance(received["bond0", "bond"], Absent)
        assert sum(isinstance(value, Absent) for value in received.values()) == 1
        assert len(got.errors) == 1

    async def test_unlistable_folder_is_a_failure(self, root: Path) -> None:
        class Closed:
            async def fetch(self, plan: FetchPlan) -> FetchResult:
                fetched = await LocalFiles(root).fetch(
                    FetchPlan(files=tuple(f for f in plan.files if "/net/" not in f))
                )
                fetched.errors.update({path: "EACCES" for path in plan.files if "/net/*" in path})
                return fetched

        got = await HostReader(Closed(), FixedClock()).read(Lane.FAST)
        assert got.errors == ("/sys/class/net/: EACCES", "/sys/class/infiniband/: EACCES")
        assert dims(got.samples[0], "host_network_up") == {}

    async def test_many_failures_are_counted(self, root: Path) -> None:
        broken = list((root / "sys/class/net").glob("*/statistics/*"))
        for path in broken:
            path.write_text("x\n")
        errors = (await read(root, Lane.FAST)).errors
        assert len(errors) == 20
        assert errors[-1] == f"and {len(broken) - 19} more"

    async def test_malformed_pci_function_affects_only_itself(self, root: Path) -> None:
        (root / "sys/bus/pci/devices/0000:18:00.0/device").write_text("H200\n")
        got = await read(root, Lane.SLOW)
        assert got.inventory is not None
        assert len(got.inventory) == 8
        assert got.errors == ("/sys/bus/pci/devices/0000:18:00.0/device: 'H200' is not a hexadecimal number",)

    @pytest.mark.parametrize(
        ("name", "reason", "is_failure"),
        [
            ("ENOENT", Reason.NOT_SUPPORTED, True),
            ("EACCES", Reason.NOT_PERMITTED, True),
            ("EIO", Reason.DRIVER_ERROR, True),
            ("ETIMEDOUT", Reason.TIMEOUT, True),
            ("EFBIG", Reason.INVALID_VALUE, True),
        ],
    )
    async def test_missing_mandatory_file_has_its_reason(
        self, root: Path, name: str, reason: Reason, is_failure: bool
    ) -> None:
        got = await read(root, Lane.FAST, {"/proc/loadavg": name})
        value = got.samples[0].values["host_load_1m"]
        assert isinstance(value, Absent)
        assert value.reason is reason
        assert bool(got.errors) is is_failure

    async def test_file_readable_by_root_only_is_no_failure(self, root: Path) -> None:
        path = "/sys/class/dmi/id/product_uuid"
        got = await read(root, Lane.STATIC, {path: "EACCES"})
        assert got.samples[0].values["host_system_uuid"] == Absent(Reason.NOT_PERMITTED, "root only")
        assert got.machine is not None
        assert got.machine.system_uuid is None
        assert got.errors == ()

    async def test_dead_filesystem_affects_only_itself(self, root: Path) -> None:
        got = await read(root, Lane.SLOW, {"/lustre scratch": "ETIMEDOUT"})
        sizes = dims(got.samples[0], "host_filesystem_size_bytes")
        dead = [labels[0] for labels, value in sizes.items() if isinstance(value, Absent)]
        assert dead == ["/lustre scratch"]
        assert got.errors == ("/lustre scratch: ETIMEDOUT",)

    @pytest.mark.parametrize(
        "figures",
        [
            pytest.param({"size_bytes": 0, "free_bytes": 0, "available_bytes": 0}, id="ramfs"),
            pytest.param({"files": 0, "files_free": 0}, id="btrfs"),
            pytest.param({"files": 123_456, "files_free": 2**64 - 1}, id="cephfs"),
        ],
    )
    async def test_figure_that_is_no_limit_is_absent(self, root: Path, figures: dict[str, int]) -> None:
        class Unlimited:
            async def fetch(self, plan: FetchPlan) -> FetchResult:
                fetched = await LocalFiles(root).fetch(plan)
                for point, sizes in fetched.filesystems.items():
                    given = {"files": 1000, "files_free": 10} | (figures if point == "/lustre scratch" else {})
                    fetched.filesystems[point] = msgspec.structs.replace(sizes, **given)
                return fetched

        got = await HostReader(Unlimited(), FixedClock()).read(Lane.SLOW)
        for name in figures:
            found = dims(got.samples[0], f"host_filesystem_{name}").items()
            absent = [(labels[0], value.reason) for labels, value in found if isinstance(value, Absent)]
            assert absent == [("/lustre scratch", Reason.NOT_SUPPORTED)]

    async def test_pressure_switched_off_is_not_supported(self, root: Path) -> None:
        got = await read(root, Lane.FAST, {f"/proc/pressure/{name}": "EOPNOTSUPP" for name in ("cpu", "io", "memory")})
        ratios = dims(got.samples[0], "host_pressure_ratio")
        for labels, value in ratios.items():
            assert labels[0] == "irq" or (isinstance(value, Absent) and value.reason is Reason.NOT_SUPPORTED)
        assert got.errors == ()

    async def test_missing_sysfs_gives_no_inventory(self, root: Path) -> None:
        shutil.rmtree(root / "sys/bus")
        (root / "sys/kernel/uevent_seqnum").unlink()
        got = await read(root, Lane.SLOW)
        assert got.inventory is None
        assert got.errors == ("/sys/bus/pci/drivers_autoprobe: ENOENT",)

    async def test_without_a_pci_bus_the_inventory_is_empty(self, root: Path) -> None:
        shutil.rmtree(root / "sys/bus")
        assert (await read(root, Lane.SLOW)).inventory == ()

    async def test_missing_proc_is_a_reader_error(self, tmp_path: Path) -> None:
        with pytest.raises(ReaderError, match="/proc/"):
            await read(tmp_path, Lane.FAST)

    async def test_failing_channel_is_a_reader_error(self) -> None:
        class Broken:
            async def fetch(self, plan: FetchPlan) -> FetchResult:
                raise ChannelError("the guest is gone")

        with pytest.raises(ReaderError, match="the guest is gone") as caught:
            await HostReader(Broken(), FixedClock()).read(Lane.FAST)
        assert caught.value.absence is Reason.READER_FAILED

    async def test_malformed_numa_node_keeps_the_gpu(self, root: Path) -> None:
        whole = (await read(root, Lane.SLOW)).inventory
        assert whole is not None
        numa = root / f"sys/bus/pci/devices/{whole[0].address}/numa_node"
        numa.write_text("zzz\n")
        got = await read(root, Lane.SLOW)
        assert got.inventory == (msgspec.structs.replace(whole[0], numa_node=None), *whole[1:])
        assert got.errors == (f"/{numa.relative_to(root)}: 'zzz' is not a NUMA node",)

    async def test_unreadable_pci_class_is_a_failure(self, root: Path) -> None:
        (root / "sys/bus/pci/devices/0000:f0:00.0/class").mkdir(parents=True)
        got = await read(root, Lane.SLOW)
        assert got.errors == ("/sys/bus/pci/devices/0000:f0:00.0/class: EISDIR",)

    async def test_interface_name_that_is_not_utf_8_can_be_encoded(self, root: Path) -> None:
        folder = root / "sys/class/net" / os.fsdecode(b"\xff")
        folder.mkdir()
        (folder / "operstate").write_text("up\n")
        got = await read(root, Lane.FAST)
        assert msgspec.msgpack.encode(got.samples)
        assert all(error.encode() for error in got.errors)


class TestRounds:
    async def test_utilization_needs_two_passes(self, tmp_path: Path) -> None:
        root = build("guest", tmp_path)
        reader = HostReader(LocalFiles(root), FixedClock())
        values = (await reader.read(Lane.FAST)).samples[0].values
        absent = values["host_cpu_utilization_ratio"]
        assert isinstance(absent, Absent)
        assert absent.reason is Reason.NO_DATA
        (root / "proc/stat").write_text(
            (root / "proc/stat").read_text().replace("cpu0 1000 10 500 90000", "cpu0 1025 10 500 90075")
        )
        values = (await reader.read(Lane.FAST)).samples[0].values
        assert values["host_cpu_utilization_ratio"] == 0.25
        await reader.close()
        values = (await reader.read(Lane.FAST)).samples[0].values
        assert isinstance(values["host_cpu_utilization_ratio"], Absent)

    async def test_samples_have_their_time_and_boot_session(self, tmp_path: Path) -> None:
        root = build("guest", tmp_path)
        first = (await read(root, Lane.FAST)).samples[0]
        assert (first.view, first.reader, first.measured_at) == (None, "host", NOW)
        assert 0 < first.driver_session < 2**63
        assert (await read(root, Lane.SLOW)).samples[0].driver_session == first.driver_session
        (root / "proc/sys/kernel/random/boot_id").write_text("dddddddd-1111-4222-8333-444444444444\n")
        assert (await read(root, Lane.FAST)).samples[0].driver_session != first.driver_session
        (root / "proc/sys/kernel/random/boot_id").unlink()
        assert (await read(root, Lane.FAST)).samples[0].driver_session == 0


class Damaged:
    """Channel that corrupts what it carries at random."""

    def __init__(self, fetched: FetchResult, random: Random, share: float) -> None:
        self._fetched = fetched
        self._random = random
        self._share = share

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        random = self._random

        def damaged(content: bytes) -> bytes:
            if random.random() > self._share:
                return content
            position, cut = random.randrange(len(content) + 1), random.randrange(8)
            return content[:position] + random.randbytes(random.randrange(4)) + content[position + cut :]

        def link(text: str) -> str:
            return text if random.random() > self._share else decode(random.randbytes(random.randrange(30)))

        names = ("EIO", "EACCES", "ENOENT", "ETIMEDOUT", "EINVAL", "ESTRANGE")
        return FetchResult(
            files={path: damaged(content) for path, content in self._fetched.files.items()},
            links={path: link(text) for path, text in self._fetched.links.items()},
            errors={path: random.choice(names) for path in plan.files if random.random() < self._share},
        )


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> dict[Lane, FetchResult]:
    recorded: dict[Lane, FetchResult] = {}
    for name in ("guest", "kubevirt_node", "bare_metal"):
        files = LocalFiles(build(name, tmp_path_factory.mktemp(name)))
        for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
            recorded[lane] = asyncio.run(fetch_lane(files, lane))[0]
    return recorded


class TestDamage:
    """Passes over damaged files end in a round or a `ReaderError`."""

    @given(
        seed=st.integers(0, 2**32),
        share=st.sampled_from([0.02, 0.3, 1.0]),
        lane=st.sampled_from([Lane.STATIC, Lane.FAST, Lane.SLOW]),
    )
    @settings(max_examples=examples(60, 2000))
    def test_damaged_files(self, carried: dict[Lane, FetchResult], seed: int, share: float, lane: Lane) -> None:
        reader = HostReader(Damaged(carried[lane], Random(seed), share), FixedClock())

        async def twice() -> Round:
            await reader.read(lane)
            return await reader.read(lane)

        try:
            got = asyncio.run(twice())
        except ReaderError:
            return
        (sample,) = got.samples
        msgspec.msgpack.encode(got)
        readings = [*sample.values.items(), *((item.metric, item.value) for item in sample.dims)]
        for metric, value in readings:
            row = CATALOGUE[metric]
            if not isinstance(value, Absent | str):
                assert row.low is None or value >= row.low, metric
                assert row.high is None or value <= row.high, metric
                assert value < 2**63


class TestAgainstTheLiveKernel:
    """Kernel files compared with the C library's view of the same machine."""

    @pytest.fixture
    def reader(self) -> HostReader:
        return HostReader(LocalFiles(), FixedClock())

    async def test_memory_processors_and_load(self, reader: HostReader) -> None:
        values = (await reader.read(Lane.FAST)).samples[0].values
        assert values["host_memory_total_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert values["host_cpus"] == os.sysconf("SC_NPROCESSORS_ONLN")
        assert values["host_load_15m"] == pytest.approx(os.getloadavg()[2], abs=0.5)

    async def test_filesystems(self, reader: HostReader) -> None:
        sample = (await reader.read(Lane.SLOW)).samples[0]
        sizes = dims(sample, "host_filesystem_size_bytes")
        assert sizes
        for (point, _, _), size in sizes.items():
            if not isinstance(size, Absent):
                assert size == shutil.disk_usage(point).total

    async def test_identity(self, reader: HostReader) -> None:
        got = await reader.read(Lane.STATIC)
        assert got.machine is not None
        assert got.machine.name == os.uname().nodename
        assert got.samples[0].values["host_kernel_release"] == os.uname().release

    async def test_interfaces(self, reader: HostReader) -> None:
        sample: Sample = (await reader.read(Lane.FAST)).samples[0]
        seen = {labels[0] for labels in dims(sample, "host_network_up")}
        assert seen == {path.name for path in Path("/sys/class/net").iterdir() if path.is_dir()}  # noqa: ASYNC240
        assert dims(sample, "host_network_up")["lo", "loopback"] in (0, 1)

    async def test_every_lane_passes_without_a_failure(self, reader: HostReader) -> None:
        for lane in reader.lanes:
            assert (await reader.read(lane)).errors == ()
