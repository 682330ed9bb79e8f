"""Workloads of a capture: disk reads by fio, RDMA writes by perftest, and copies of GPUs."""

import asyncio
from collections.abc import Callable, Mapping

from gpufleet.bench import fio, gpu_copies, perftest
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.model.text import bounded
from gpufleet.ports.channel import ExecResult
from gpufleet.probe.machine import read_version
from gpufleet.probe.measurements import MeasurementKind, MeasurementList
from gpufleet.probe.nvidia_smi import busy_gpus
from gpufleet.probe.runner import CommandOutcome, CommandRunner, FixedCommand, failure_of

Progress = Callable[[str], None]
"""Receives a line about the next step."""

SERVER_START_SECONDS, SERVER_END_SECONDS = 0.5, 5.0
"""Time that a started server has before each attempt of the client, and to end after the test."""

NO_DIRECT = Absent(Reason.NOT_SUPPORTED, "the filesystem refuses direct I/O")

CONNECT_ATTEMPTS = 3
"""Attempts of an RDMA test. The peer's server ends after each test and has to be restarted."""


class WorkloadRunner:
    """Runs workloads and collects their measurements.

    Args:
        runner: runs the commands.
        measurements: receives values and absences.
        repeats: number of repeats.
        progress: receives the progress.
    """

    def __init__(self, runner: CommandRunner, measurements: MeasurementList, repeats: int, progress: Progress) -> None:
        self._runner = runner
        self._measurements = measurements
        self._repeats = repeats
        self._progress = progress

    async def measure_disk(self, path: str | None) -> None:
        """Read a file or block device with fio, with direct I/O where the filesystem supports it."""
        if path is None:
            self._skip_disk(Absent(Reason.NOT_COLLECTED, "no file or block device is given"))
            return
        fio.check_path(path)
        version = await read_version(self._runner, "fio_version", ("fio", "--version"))
        absent = version if isinstance(version, Absent) else await self._wrong_target(path)
        if isinstance(version, Absent) or absent is not None:
            self._skip_disk(absent or Absent(Reason.NO_DATA))
            return
        direct = True
        for number in range(1, self._repeats + 1):
            for job in fio.JOBS:
                self._progress(f"fio {job.name}, repeat {number} of {self._repeats}")
                found = await self._read_disk(job, path, version, direct=direct)
                if found is None:
                    direct = False
                    found = await self._read_disk(job, path, version, direct=direct) or NO_DIRECT
                for field, kind in job.kinds(direct=direct).items():
                    value = found if isinstance(found, Absent) else getattr(found, field)
                    self._measurements.add(kind, value, target=path, tool_version=version)

    async def measure_rdma(self, peer: str | None, server: CommandRunner | None = None) -> None:
        """Write to a peer over RDMA.

        Args:
            peer: its host name or address; None skips the tests.
            server: starts the server of each test on the peer; None if the peer runs the servers itself.
        """
        for test in perftest.TESTS:
            kinds = test.kinds()
            if peer is None:
                self._skip(kinds, Absent(Reason.NOT_COLLECTED, "no peer is given"))
                continue
            perftest.check_peer(peer)
            version = await read_version(self._runner, f"{test.program}_version", (test.program, "--version"))
            if isinstance(version, Absent):
                self._skip(kinds, version)
                continue
            for number in range(1, self._repeats + 1):
                self._progress(f"{test.program}, repeat {number} of {self._repeats}")
                found = await self._write_rdma(test, peer, version, server)
                for name, kind in kinds.items():
                    value = found if isinstance(found, Absent) else found[name]
                    self._measurements.add(kind, value, target=peer, tool_version=version)

    async def measure_copies(self, failure: Absent | None) -> None:
        """Copy between host and GPUs, unless processes use the GPUs.

        Args:
            failure: why nvidia-smi does not work, or None.
        """
        absent = failure or await busy_gpus(self._runner)
        kinds = {name: gpu_copies.copy_kind(name, "nvbandwidth") for name in gpu_copies.TESTCASES}
        if absent is not None:
            self._skip(kinds, absent)
            return
        for number in range(1, self._repeats + 1):
            for name, kind in kinds.items():
                self._progress(f"nvbandwidth {gpu_copies.TESTCASES[name]}, repeat {number} of {self._repeats}")
                argv = ("nvbandwidth", *gpu_copies.nvbandwidth_arguments(name))
                found = await self._output(name, argv, gpu_copies.TIMEOUT_SECONDS)
                if isinstance(found, Absent) and found.reason is Reason.NOT_ENABLED:
                    await self._measure_samples(found)
                    return
                self._add_copy(kind, found, name)

    def _add_copy(self, kind: MeasurementKind, found: ExecResult | Absent, name: str) -> None:
        if not isinstance(found, Absent):
            try:
                copied = gpu_copies.parse_nvbandwidth(found.stdout, name)
            except WireError as error:
                found = Absent(Reason.INVALID_VALUE, str(error))
            else:
                self._measurements.add(kind, copied.slowest, tool_version=copied.version)
                return
        self._measurements.add(kind, found)

    async def _measure_samples(self, missing: Absent) -> None:
        """Measure with bandwidthTest; if it is missing too, both are absent with the reason of nvbandwidth."""
        kinds = {name: gpu_copies.copy_kind(name, "bandwidthTest") for name in gpu_copies.SAMPLES}
        for number in range(1, self._repeats + 1):
            self._progress(f"bandwidthTest, repeat {number} of {self._repeats}")
            found = await self._output("bandwidth_test", ("bandwidthTest", "--csv"), gpu_copies.TIMEOUT_SECONDS)
            if isinstance(found, Absent) and found.reason is Reason.NOT_ENABLED:
                self._skip({n: gpu_copies.copy_kind(n, "nvbandwidth") for n in gpu_copies.TESTCASES}, missing)
                return
            values: Mapping[str, float] | Absent
            try:
                values = found if isinstance(found, Absent) else gpu_copies.parse_bandwidth_test(found.stdout)
            except WireError as error:
                values = Absent(Reason.INVALID_VALUE, str(error))
            for name, kind in kinds.items():
                self._measurements.add(kind, values if isinstance(values, Absent) else values[name])

    async def _wrong_target(self, path: str) -> Absent | None:
        """Return why fio must not open a path, or None. Opening other devices than disks can act on them."""
        found = await self._output("fio_target", ("stat", "-L", "-c", "%F", "--", path), fio.TIMEOUT_SECONDS)
        if isinstance(found, Absent):
            return found
        kind = bounded(found.stdout[:64].decode("ascii", errors="replace").strip(), 40)
        if kind not in ("regular file", "block special file"):
            return Absent(Reason.NOT_SUPPORTED, f"{path} is a {kind}: a file with data or a block device is needed")
        found = await self._output("fio_filesystem", ("stat", "-f", "-c", "%t", "--", path), fio.TIMEOUT_SECONDS)
        if isinstance(found, Absent):
            return found
        filesystem = fio.KERNEL_FILESYSTEMS.get(found.stdout[:64].decode("ascii", errors="replace").strip())
        if filesystem is None:
            return None
        return Absent(Reason.NOT_SUPPORTED, f"{path} is a file of {filesystem}: a file on a disk is needed")

    async def _read_disk(
        self, job: fio.FioJob, path: str, version: str, *, direct: bool
    ) -> fio.FioResult | Absent | None:
        """Run a job; None if the filesystem refuses direct I/O."""
        argv = ("fio", *job.arguments(path, direct=direct))
        found = await self._output(f"fio_{job.name}", argv, fio.TIMEOUT_SECONDS, version, tolerant=True)
        if isinstance(found, Absent):
            return found
        if found.exit_code != 0:
            is_refused = direct and (fio.refuses_direct(found.stdout) or fio.refuses_direct(found.stderr))
            return None if is_refused else failure_of("fio", found)
        try:
            return fio.parse_fio(found.stdout, job)
        except WireError as error:
            return Absent(Reason.INVALID_VALUE, str(error))

    async def _write_rdma(
        self, test: perftest.RdmaTest, peer: str, version: str, server: CommandRunner | None
    ) -> dict[str, float] | Absent:
        serving = None
        if server is not None:
            argv = (test.program, *test.server_arguments())
            command = FixedCommand(
                name=f"{test.program}_server", argv=argv, timeout_seconds=perftest.TIMEOUT_SECONDS, tool_version=version
            )
            serving = asyncio.create_task(server.run(command), name=f"{test.program} server")
        try:
            found = await self._connect(test, peer, version, serving)
            if isinstance(found, Absent) and serving is not None and serving.done():
                return _server_failure(test, serving.result()) or found
            return found if isinstance(found, Absent) else perftest.parse_perftest(found.stdout, test)
        except WireError as error:
            return Absent(Reason.INVALID_VALUE, str(error))
        finally:
            if serving is not None:
                await asyncio.wait({serving}, timeout=SERVER_END_SECONDS)
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    async def _connect(
        self, test: perftest.RdmaTest, peer: str, version: str, serving: "asyncio.Task[CommandOutcome] | None"
    ) -> ExecResult | Absent:
        """Run the client; try again while the server does not listen yet."""
        argv = (test.program, *test.arguments(peer))
        found: ExecResult | Absent = Absent(Reason.NO_DATA)
        for _ in range(CONNECT_ATTEMPTS):
            if serving is not None:
                await asyncio.wait({serving}, timeout=SERVER_START_SECONDS)
            found = await self._output(test.program, argv, perftest.TIMEOUT_SECONDS, version)
            if not isinstance(found, Absent) or "connect" not in found.detail.lower():
                break
        return found

    async def _output(
        self, name: str, argv: tuple[str, ...], seconds: float, version: str = "", *, tolerant: bool = False
    ) -> ExecResult | Absent:
        """Run a command; return its result, or why there is none. `tolerant` permits a failure's exit code."""
        command = FixedCommand(name=name, argv=argv, timeout_seconds=seconds, tool_version=version)
        outcome = await self._runner.run(command)
        if outcome.absent is not None:
            return outcome.absent
        assert outcome.result is not None
        if outcome.result.exit_code != 0 and not tolerant:
            return failure_of(argv[0], outcome.result)
        return outcome.result

    def _skip(self, kinds: Mapping[str, MeasurementKind], absent: Absent) -> None:
        for kind in kinds.values():
            self._measurements.skip(kind, absent)

    def _skip_disk(self, absent: Absent) -> None:
        for job in fio.JOBS:
            self._skip(job.kinds(direct=True), absent)


def _server_failure(test: perftest.RdmaTest, outcome: CommandOutcome) -> Absent | None:
    """Return why the server of a test did not run, or None."""
    absent = outcome.absent
    if absent is None and outcome.result is not None and outcome.result.exit_code != 0:
        absent = failure_of(test.program, outcome.result)
    return None if absent is None else Absent(absent.reason, bounded(f"server on the peer: {absent.detail}", 1024))
