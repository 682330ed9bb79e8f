"""Read-only disk workloads of fio: jobs, arguments, and the parser of its JSON output. Pure.

Every job has `--readonly` and `--allow_file_create=0`: fio then refuses to write, to create and to extend a file. It
opens its target with O_RDONLY.
"""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.probe.measurements import TARGET, MeasurementKind
from gpufleet.probe.records import Better, MeasuredUnit

RUNTIME_SECONDS = 3
"""Time limit of a job, by fio."""

TIMEOUT_SECONDS = 30.0
"""Time limit of the process. A job beyond it is ended."""

IO_MEBIBYTES = 1024
"""Maximum data that a job reads."""

MAX_JSON = 1 << 20

KERNEL_FILESYSTEMS = {
    "9fa0": "proc",
    "62656572": "sysfs",
    "62656570": "configfs",
    "64626720": "debugfs",
    "74726163": "tracefs",
    "de5e81e4": "efivarfs",
}
"""Magic number to name of filesystems without a disk (statfs(2)). Reading a file there can act on a device."""

_PATH = re.compile(r"/[A-Za-z0-9_./@+,=-]{1,1024}", re.ASCII)


class FioJob(msgspec.Struct, frozen=True):
    """Job: `rw` is read or randread, `block` its block size, `depth` its number of concurrent requests."""

    name: str
    rw: str
    block: str
    engine: str
    depth: int

    def arguments(self, path: str, *, direct: bool) -> tuple[str, ...]:
        """Return the arguments of fio for a file or block device."""
        return (
            "--readonly",
            "--allow_file_create=0",
            f"--name={self.name}",
            f"--filename={path}",
            f"--rw={self.rw}",
            f"--bs={self.block}",
            f"--ioengine={self.engine}",
            f"--iodepth={self.depth}",
            f"--direct={int(direct)}",
            f"--runtime={RUNTIME_SECONDS}",
            f"--io_size={IO_MEBIBYTES}m",
            "--randrepeat=1",
            "--thread",
            "--output-format=json",
        )

    def kinds(self, *, direct: bool) -> dict[str, MeasurementKind]:
        """Return the measurements of the job by field of `FioResult`."""
        arguments = self.arguments(TARGET, direct=direct)

        def kind(suffix: str, text: str, unit: MeasuredUnit, better: Better) -> MeasurementKind:
            name, shown = f"fio_{self.name}_{suffix}", f"{text}, {self.rw} of {self.block} blocks, depth {self.depth}"
            return MeasurementKind(name=name, help=shown, unit=unit, better=better, tool="fio", arguments=arguments)

        rate = {"iops": kind("iops", "requests", MeasuredUnit.OPERATIONS_PER_SECOND, Better.HIGHER)}
        if self.rw == "read":
            rate = {"bandwidth": kind("bandwidth", "bandwidth", MeasuredUnit.BYTES_PER_SECOND, Better.HIGHER)}
        return {
            **rate,
            "latency": kind("latency", "mean completion latency", MeasuredUnit.SECONDS, Better.LOWER),
            "latency_p99": kind("latency_p99", "99th percentile of latency", MeasuredUnit.SECONDS, Better.LOWER),
        }


JOBS = (
    FioJob("read_1m", "read", "1m", "libaio", 8),
    FioJob("randread_4k_1", "randread", "4k", "psync", 1),
    FioJob("randread_4k_32", "randread", "4k", "libaio", 32),
)


class FioResult(msgspec.Struct, frozen=True):
    """Values of one run: bytes and requests per second, latencies in seconds."""

    bandwidth: float
    iops: float
    latency: float
    latency_p99: float


class _Latency(msgspec.Struct):
    mean: float
    percentile: dict[str, float] = {}


class _Read(msgspec.Struct):
    io_bytes: int
    bw_bytes: float
    iops: float
    clat_ns: _Latency


class _Written(msgspec.Struct):
    io_bytes: int


class _Job(msgspec.Struct):
    jobname: str
    error: int
    read: _Read
    write: _Written
    trim: _Written


class _FioOutput(msgspec.Struct):
    version: str = msgspec.field(name="fio version")
    jobs: list[_Job]


_decoder = msgspec.json.Decoder(_FioOutput)


def check_path(path: str) -> None:
    """Check a target of fio.

    Raises:
        WireError: if it is not an absolute path of plain characters. fio splits names at colons.
    """
    if _PATH.fullmatch(path) is None:
        raise WireError("fio", "the path must be absolute, and have letters, digits and . _ / @ + , = - only")


def parse_fio(content: bytes, job: FioJob) -> FioResult:
    """Parse the output of one job. Messages may precede the JSON.

    Raises:
        WireError: if the output is not that of the job, the job failed, wrote or read nothing.
    """
    start = 0 if content.startswith(b"{") else content.find(b"\n{") + 1
    if len(content) > MAX_JSON or (start == 0 and not content.startswith(b"{")):
        raise WireError("fio", "the output has no JSON, or too much")
    try:
        output = _decoder.decode(content[start:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("fio", f"not the JSON of a job: {error}"[:300]) from error
    if len(output.jobs) != 1 or output.jobs[0].jobname != job.name:
        raise WireError("fio", f"the output is not that of the job {job.name}")
    done = output.jobs[0]
    if done.error:
        raise WireError("fio", f"the job failed with error {done.error}")
    if done.write.io_bytes or done.trim.io_bytes:
        raise WireError("fio", "the job wrote data")
    if done.read.io_bytes <= 0:
        raise WireError("fio", "the job read no data")
    if (p99 := done.read.clat_ns.percentile.get("99.000000")) is None:
        raise WireError("fio", "the output has no 99th percentile")
    return FioResult(done.read.bw_bytes, done.read.iops, done.read.clat_ns.mean / 1e9, p99 / 1e9)


def refuses_direct(content: bytes) -> bool:
    """Return whether a failed output shows that the filesystem does not support direct I/O (error EINVAL)."""
    return b"error=Invalid argument" in content[-65536:]
