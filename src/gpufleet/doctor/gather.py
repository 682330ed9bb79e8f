"""Collection of node facts from kernel files, passes of the host reader, and permissions of this process."""

import importlib.util
import posixpath
import re

from gpufleet.doctor.access import LocalAccess
from gpufleet.doctor.facts import BRIDGE_CLASS, NodeFacts
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ReaderError, WireError
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.reading import Round, Value
from gpufleet.ports.channel import FetchPlan, FetchResult, Files
from gpufleet.ports.clock import Clock
from gpufleet.readers.host import HostReader
from gpufleet.readers.host.parse.storage import hidepid_option, parse_mountinfo
from gpufleet.readers.host.plan import KubernetesNode

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
    "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/nvidia/lib64", "/usr/local/lib",
)  # fmt: skip
"""Default folders of the loader, and folders where container runtimes put the driver's files."""

MAX_LINKS = 5
"""Most links followed from a library to its file; Debian's alternatives need three."""

MOUNTINFO = "/proc/self/mountinfo"
LOADER_CACHE = "/etc/ld.so.cache"
SWITCH_CLASS = f"0x{BRIDGE_CLASS:04x}00"
KERNEL_LOG = "/dev/kmsg"

PACKAGES = {
    "agent": (
        "pynvml",
        "aiohttp",
        "h11",
        "uvicorn",
        "httptools",
        "zstandard",
        "cramjam",
        "opentelemetry.proto",
        "yaml",
    ),
    "hub": (
        *("litestar", "uvicorn", "httptools", "aiohttp", "h11", "zstandard", "cramjam", "opentelemetry.proto"),
        *("clickhouse_connect", "chdb", "numpy", "pyarrow", "sqlalchemy", "yaml"),
    ),
    "kubernetes": ("grpc", "lightkube", "wsproto", "yaml"),
}
"""Extra to its packages, by import name."""

_CACHED = re.compile(rb"(/[\x21-\x7e]{1,200}/libnvidia-ml\.so\.1)\0")
_VERSION = re.compile(r"libnvidia-ml\.so\.([0-9]{2,4}\.[0-9]+(?:\.[0-9]+)?)")


async def gather_facts(
    files: Files, access: LocalAccess, clock: Clock, state_folder: str, node: KubernetesNode | None = None
) -> NodeFacts:
    """Collect all facts; a fact that cannot be collected is None.

    Args:
        files: files of this machine.
        access: permissions of this process.
        clock: clock of this machine.
        state_folder: folder of the agent's spool.
        node: sources of this machine's name in Kubernetes.
    """
    reader = HostReader(files, clock, node)
    slow, static = await _read_lane(reader, Lane.SLOW), await _read_lane(reader, Lane.STATIC)
    plan = FetchPlan(
        files=(
            LOADER_CACHE, MOUNTINFO, "/proc/pressure/cpu", "/proc/2/stat", "/proc/1/stat",
            "/sys/bus/pci/devices/*/class",
        ),
        links=("/dev/nvidia*", *(f"{folder}/{LIBRARY}" for folder in LIBRARY_FOLDERS)),
        max_file_bytes=8 << 20,
    )  # fmt: skip
    fetched = await files.fetch(plan)
    values = static.samples[0].values if isinstance(static, Round) else {}
    return NodeFacts(
        inventory=slow.inventory if isinstance(slow, Round) else None,
        switch_drivers=await _switch_drivers(files, fetched, slow),
        driver_version=values.get("host_nvidia_kernel_driver_version"),
        libraries=await _libraries(files, fetched),
        device_nodes=_device_nodes(fetched, access),
        services=_services(slow),
        processes_hidden=_processes_hidden(fetched),
        pressure=_read_error(fetched, "/proc/pressure/cpu"),
        kernel_log=access.opens(KERNEL_LOG),
        machine=static.machine if isinstance(static, Round) else None,
        system_uuid=values.get("host_system_uuid"),
        container=values.get("host_container"),
        clock_ns=clock.now_ns(),
        clock_synchronized=access.clock_synchronized(),
        state_folder=state_folder,
        state_folder_error=access.folder(state_folder),
        state_folder_free=access.free_bytes(state_folder),
        missing_packages={extra: _missing_packages(packages) for extra, packages in PACKAGES.items()},
        errors=tuple(
            message
            for answer in (slow, static)
            for message in (answer.errors if isinstance(answer, Round) else (answer,))
        ),
    )


async def _read_lane(reader: HostReader, lane: Lane) -> Round | str:
    """Read a lane, or return the message of the failure."""
    try:
        return await reader.read(lane)
    except ReaderError as error:
        return str(error)


async def _switch_drivers(files: Files, fetched: FetchResult, slow: Round | str) -> tuple[str, ...] | None:
    if not isinstance(slow, Round) or slow.inventory is None:
        return None
    folders = [
        path.removesuffix("/class")
        for path, content in fetched.files.items()
        if path.endswith("/class") and content.strip() == SWITCH_CLASS.encode()
    ]
    if not folders:
        return ()
    answer = await files.fetch(
        FetchPlan(
            files=tuple(f"{path}/vendor" for path in folders), links=tuple(f"{path}/drive[r]" for path in folders)
        )
    )
    nvidia = f"0x{NVIDIA_VENDOR:04x}".encode()
    return tuple(
        answer.links.get(f"{path}/driver", "").rpartition("/")[2]
        for path in folders
        if answer.files.get(f"{path}/vendor", b"").strip() == nvidia
    )


async def _libraries(files: Files, fetched: FetchResult) -> dict[str, str]:
    """Return the libraries found, with the version in the file name behind each link."""
    links = dict(fetched.links)
    # Reading an existing path that is not a link fails with EINVAL.
    plain = [path for path, name in fetched.errors.items() if name == "EINVAL" and path.endswith(LIBRARY)]
    cached = [match.decode("ascii") for match in _CACHED.findall(fetched.files.get(LOADER_CACHE, b""))]
    unseen = tuple(path for path in dict.fromkeys(cached) if path not in links and path not in plain)
    if unseen:
        answer = await files.fetch(FetchPlan(links=unseen))
        links.update(answer.links)
        plain += [path for path, name in answer.errors.items() if name == "EINVAL"]
    found = {path: await _version(files, path, text) for path, text in links.items() if path.endswith("/" + LIBRARY)}
    found.update(dict.fromkeys(plain, ""))
    # If /lib is a link to /usr/lib, each library is found twice.
    return {path: version for path, version in found.items() if f"/usr{path}" not in found}


async def _version(files: Files, path: str, link: str) -> str:
    """Follow the links of a library until a name contains the version; empty if none does."""
    for _ in range(MAX_LINKS):
        match = _VERSION.search(link)
        if match is not None:
            return match[1]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        link = (await files.fetch(FetchPlan(links=(path,)))).links.get(path, "")
        if not link:
            break
    return ""


def _device_nodes(fetched: FetchResult, access: LocalAccess) -> dict[str, str]:
    # Each /dev/nvidia* is fetched as a link: an existing path is listed as a link, or fails with EINVAL.
    paths = [path for path in (*fetched.links, *fetched.errors) if re.fullmatch(r"/dev/nvidia(ctl|-uvm|[0-9]+)", path)]
    return {path: access.read_write(path) for path in sorted(paths)}


def _services(slow: Round | str) -> dict[str, Value | Absent] | None:
    if not isinstance(slow, Round):
        return None
    return {item.labels[0]: item.value for item in slow.samples[0].dims if item.metric == "host_service_state"}


def _processes_hidden(fetched: FetchResult) -> str | None:
    if b"(kthreadd)" in fetched.files.get("/proc/2/stat", b""):
        return ""
    try:
        option = hidepid_option(parse_mountinfo(fetched.files.get(MOUNTINFO, b""), MOUNTINFO))
    except WireError:
        return None
    if MOUNTINFO not in fetched.files:
        return None
    if option:
        return f"/proc is mounted with {option}"
    return "this process is in a PID namespace of its own"


def _read_error(fetched: FetchResult, path: str) -> str:
    return "" if path in fetched.files else fetched.errors.get(path, "ENOENT")


def _missing_packages(packages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in packages if not _is_importable(name))


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing too
        return False
