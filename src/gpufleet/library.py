"""The public library: readings of this machine, captured files, and answers of a hub.

`gpufleet` exports the names of this module. Functions load the modules of readers and codecs when they are called.
"""

import asyncio
import concurrent.futures
import contextlib
import datetime as dt
import functools
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote

from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import load
from gpufleet.config.secret_files import parse_token
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import AllocationAnswer, GpuPage, MachineSeriesAnswer, NodePage, SeriesAnswer
from gpufleet.model.api.findings import FindingPage
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.errors import ConfigError, GpufleetError, RecordingError, WireError, WireLimitError
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.view import ViewKind
from gpufleet.web.client import (
    TIMEOUT_SECONDS,
    Query,
    RequestError,
    ResponseError,
    ServerAccess,
    decode_answer,
    get,
    get_pages,
    with_query,
)

__all__ = [
    "ConfigError",
    "Device",
    "GpufleetError",
    "Hub",
    "Reading",
    "RecordingError",
    "RequestError",
    "ResponseError",
    "Snapshot",
    "Watch",
    "WireError",
    "asnapshot",
    "decode",
    "devices",
    "snapshot",
    "vgpus",
    "watch",
]

T = TypeVar("T")

logging.getLogger("gpufleet").addHandler(logging.NullHandler())  # the application decides about messages

MIN_WATCH_SECONDS = 1.0
"""Shortest interval of `watch`."""

OPEN_STATES = ("open", "unknown")
"""States of findings that are not closed."""


def snapshot(*, config: str | os.PathLike[str] | None = None) -> Snapshot:
    """Read this machine once; return the document that `gpufleet snapshot --json` prints.

    Without a driver, `devices` is empty or has the GPUs on the PCI bus, and `readers` has the reason. Takes about a
    second: rates need two passes.

    Args:
        config: configuration file of an agent, which selects the readers. The variables `GPUFLEET_AGENT_*` apply, too.

    Raises:
        ConfigError: if the configuration is invalid.
    """
    return _run(asnapshot(config=config))


async def asnapshot(*, config: str | os.PathLike[str] | None = None) -> Snapshot:
    """Read this machine once. Async form of `snapshot`."""
    from gpufleet.wiring.snapshot import snapshot_once

    return await snapshot_once(_agent_config(config))


def devices(*, config: str | os.PathLike[str] | None = None) -> tuple[Device, ...]:
    """Return the GPUs, MIG devices and vGPU instances of a new `snapshot`; empty without a driver and GPUs."""
    return snapshot(config=config).devices


def vgpus(*, config: str | os.PathLike[str] | None = None) -> tuple[Device, ...]:
    """Return the vGPU instances that this machine hosts, from a new `snapshot`; empty without any."""
    return tuple(device for device in devices(config=config) if device.kind is ViewKind.VGPU)


def watch(every: float = MIN_WATCH_SECONDS, *, config: str | os.PathLike[str] | None = None) -> "Watch":
    """Return repeated snapshots of this machine, for `for` and `async for`.

    Args:
        every: seconds between snapshots, at least 1.
        config: as in `snapshot`.

    Raises:
        GpufleetError: if `every` is too short.
        ConfigError: if the configuration is invalid.
    """
    if not every >= MIN_WATCH_SECONDS:
        raise GpufleetError(f"every={every!r} must be at least {MIN_WATCH_SECONDS:g} second")
    return Watch(_agent_config(config), every)


class Watch:
    """Repeated snapshots of this machine. Each loop starts readers of its own, and stops them at its end.

    A consumer that takes longer than the interval gets the newest snapshot; missed ones are not repeated. With
    `for`, the readers run in a thread.
    """

    def __init__(self, config: AgentConfig, seconds: float) -> None:
        self._config = config
        self._seconds = seconds

    def __iter__(self) -> Generator[Snapshot, None, None]:
        from gpufleet.wiring.local_agent import running_local_agent

        with _LoopThread() as loop:
            agent = running_local_agent(self._config, self._seconds)
            newest = loop.run(agent.__aenter__())
            try:
                for pause in _pauses(self._seconds):
                    time.sleep(pause)
                    yield loop.run(_awaited(newest))
            finally:
                loop.run(agent.__aexit__(None, None, None))

    async def __aiter__(self) -> AsyncGenerator[Snapshot, None]:
        from gpufleet.wiring.local_agent import running_local_agent

        async with running_local_agent(self._config, self._seconds) as newest:
            for pause in _pauses(self._seconds):
                await asyncio.sleep(pause)
                yield await newest()


def decode(path: str | os.PathLike[str], *, skip_damage: bool = False) -> Iterator[Snapshot]:
    """Yield the snapshots in a file that `gpufleet decode` reads.

    A recording yields each frame, oldest first, with bounded memory. Frames of several machines at one time follow each
    other. Any other format yields one snapshot per machine. An incomplete frame at the end of a recording, as after
    `kill -9`, is no damage. Errors are raised during iteration.

    Args:
        path: the file.
        skip_damage: skip the damaged parts of a recording instead of raising.

    Raises:
        RecordingError: at a damaged part of a recording; `offset` is its position.
        WireError: if the format is unknown, or the content is invalid in its format.
        GpufleetError: if the file cannot be read, or a required package is not installed.
    """
    with _file_errors(path), Path(path).open("rb") as stream:
        from gpufleet.recording.format import MAGIC

        is_recording = stream.read(len(MAGIC)) == MAGIC
        stream.seek(0)
        yield from _frames(stream, skip_damage=skip_damage) if is_recording else _capture(stream, Path(path))


def _frames(stream: BinaryIO, *, skip_damage: bool) -> Iterator[Snapshot]:
    from gpufleet.recording.reader import DamagedBytes, RecordingReader

    reader = RecordingReader(stream)
    for frame in reader.frames():
        try:
            if isinstance(frame, DamagedBytes):
                raise RecordingError(frame.offset, f"damaged up to byte {frame.end}")
            found = reader.snapshot(frame)
        except RecordingError:
            if not skip_damage:
                raise
        else:
            yield found


def _capture(stream: BinaryIO, path: Path) -> Iterator[Snapshot]:
    from gpufleet.decoding import decode as decode_capture
    from gpufleet.decoding.format import MAX_BYTES, CapturedInput

    content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise WireLimitError("", f"{path} has more than {MAX_BYTES} bytes")
    source = CapturedInput(content=content, name=path.name, at=os.fstat(stream.fileno()).st_mtime_ns)
    yield from decode_capture(source)[1].snapshots


class Hub:
    """Main reads of a hub's API. Methods whose name starts with `a` are async forms.

    A list is read whole, page by page. Async forms send the same requests in a thread.

    Every method raises:
        ResponseError: if the hub responds with an error; `status` is the HTTP status.
        RequestError: if there is no response, or not one of a gpufleet hub.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca: str | os.PathLike[str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Take the hub's URL. Nothing is sent yet.

        Args:
            url: root URL, such as `https://hub:8470`.
            token: token to send; only over HTTPS, or within this machine.
            ca: PEM file of trusted authorities; None means those of the system.
            timeout_seconds: longest wait for the connection, and for each part of a response.

        Raises:
            ConfigError: if the token has characters that no token has.
        """
        self._url = url
        self._timeout_seconds = timeout_seconds
        sends = None
        if token is not None:
            checked = parse_token("Hub", "token", token.encode(errors="surrogatepass"))
            sends = functools.partial(str, checked)
        self._access = ServerAccess(sends, None if ca is None else Path(ca))

    def __repr__(self) -> str:
        return f"Hub({self._url!r})"

    def fleet(self) -> FleetAnswer:
        """Return the freshness and completeness of all clusters, and the number of GPUs reporting."""
        return self._get("/v1/fleet", FleetAnswer)

    def clusters(self) -> tuple[ClusterRecord, ...]:
        """Return the clusters."""
        return self._get("/v1/clusters", tuple[ClusterRecord, ...])

    def nodes(self, *, cluster: str | None = None) -> NodePage:
        """Return the nodes, of one cluster if given, and the coverage of their clusters."""
        return self._pages("/v1/nodes", {"cluster": cluster}, NodePage)

    def gpus(self, *, cluster: str | None = None, machine: str | None = None) -> GpuPage:
        """Return the GPUs, MIG devices and vGPU instances, of one cluster or machine (id or name) if given."""
        return self._pages("/v1/gpus", {"cluster": cluster, "machine": machine}, GpuPage)

    def allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations that the token may see, closed ones included."""
        return self._get("/v1/allocations", tuple[Allocation, ...])

    def allocation(self, id: str) -> AllocationAnswer:  # noqa: A002 - the API's name
        """Return the newest readings of an allocation, with their source."""
        return self._get(f"/v1/allocations/{quote(id, safe='')}/metrics", AllocationAnswer)

    def series(
        self,
        id: str,  # noqa: A002
        metric: str,
        *,
        start: dt.datetime | None = None,
        end: dt.datetime | None = None,
        step: str | None = None,
    ) -> SeriesAnswer:
        """Return past values of an allocation.

        Args:
            id: the allocation.
            metric: catalogue name, such as `gpu_power_watts`.
            start: with a time zone; None means one hour before the end.
            end: with a time zone; None means now.
            step: such as `15s` or `6h`; None means 60 s.
        """
        query = {"metric": metric, "start": _instant(start), "end": _instant(end), "step": step}
        return self._get(with_query(f"/v1/allocations/{quote(id, safe='')}/series", query), SeriesAnswer)

    def machine_series(
        self,
        id: str,  # noqa: A002
        metric: str,
        *,
        views: Iterable[str] = (),
        start: dt.datetime | None = None,
        end: dt.datetime | None = None,
        step: str | None = None,
    ) -> MachineSeriesAnswer:
        """Return past values of a machine and its devices, of all tenants. Needs the role operator or admin.

        Args:
            id: id of the machine, or a name that only this machine has.
            metric, start, end, step: as in `series`.
            views: keys of devices, such as `gpu/GPU-…`; empty for all devices.
        """
        query = {
            "metric": metric,
            "view": tuple(views),
            "start": _instant(start),
            "end": _instant(end),
            "step": step,
        }
        return self._get(with_query(f"/v1/machines/{quote(id, safe='')}/series", query), MachineSeriesAnswer)

    def findings(self, *, cluster: str | None = None, states: Iterable[str] = OPEN_STATES) -> FindingPage:
        """Return findings, newest opening first, and whether the rules are evaluated now.

        Args:
            cluster: only of this cluster.
            states: any of `open`, `unknown`, `acknowledged` and `closed`.
        """
        return self._pages("/v1/findings", {"cluster": cluster, "state": tuple(states)}, FindingPage)

    async def afleet(self) -> FleetAnswer:
        """Async form of `fleet`."""
        return await asyncio.to_thread(self.fleet)

    async def aclusters(self) -> tuple[ClusterRecord, ...]:
        """Async form of `clusters`."""
        return await asyncio.to_thread(self.clusters)

    async def anodes(self, *, cluster: str | None = None) -> NodePage:
        """Async form of `nodes`."""
        return await asyncio.to_thread(self.nodes, cluster=cluster)

    async def agpus(self, *, cluster: str | None = None, machine: str | None = None) -> GpuPage:
        """Async form of `gpus`."""
        return await asyncio.to_thread(self.gpus, cluster=cluster, machine=machine)

    async def aallocations(self) -> tuple[Allocation, ...]:
        """Async form of `allocations`."""
        return await asyncio.to_thread(self.allocations)

    async def aallocation(self, id: str) -> AllocationAnswer:  # noqa: A002
        """Async form of `allocation`."""
        return await asyncio.to_thread(self.allocation, id)

    async def aseries(
        self,
        id: str,  # noqa: A002
        metric: str,
        *,
        start: dt.datetime | None = None,
        end: dt.datetime | None = None,
        step: str | None = None,
    ) -> SeriesAnswer:
        """Async form of `series`."""
        return await asyncio.to_thread(self.series, id, metric, start=start, end=end, step=step)

    async def amachine_series(
        self,
        id: str,  # noqa: A002
        metric: str,
        *,
        views: Iterable[str] = (),
        start: dt.datetime | None = None,
        end: dt.datetime | None = None,
        step: str | None = None,
    ) -> MachineSeriesAnswer:
        """Async form of `machine_series`."""
        return await asyncio.to_thread(self.machine_series, id, metric, views=views, start=start, end=end, step=step)

    async def afindings(self, *, cluster: str | None = None, states: Iterable[str] = OPEN_STATES) -> FindingPage:
        """Async form of `findings`."""
        return await asyncio.to_thread(self.findings, cluster=cluster, states=states)

    def _get(self, path: str, answer_type: type[T]) -> T:
        body = get(self._url, path, self._access, timeout_seconds=self._timeout_seconds)
        return decode_answer(body, answer_type, self._url)

    def _pages(self, path: str, query: Query, page_type: type[T]) -> T:
        body = get_pages(self._url, path, query, self._access, timeout_seconds=self._timeout_seconds)
        return decode_answer(body, page_type, self._url)


class _LoopThread:
    """Event loop in a thread, for synchronous callers."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gpufleet watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. An interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _awaited(newest: Callable[[], Any]) -> Snapshot:
    found: Snapshot = await newest()
    return found


def _pauses(seconds: float) -> Iterator[float]:
    """Yield the seconds to wait before each snapshot. Intervals that have passed are left out."""
    due = time.monotonic()
    while True:
        now = time.monotonic()
        yield max(0.0, due - now)
        due += seconds * max(1.0, (time.monotonic() - due) // seconds)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop runs, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _agent_config(file: str | os.PathLike[str] | None) -> AgentConfig:
    path = None if file is None else Path(file)
    return load(AgentConfig, file=path, env_prefix=ENV_PREFIX, env=os.environ, flags={})


def _instant(at: dt.datetime | None) -> str | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise GpufleetError(f"{at.isoformat()} has no time zone: use dt.datetime.now(dt.UTC), for example")
    return at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


@contextlib.contextmanager
def _file_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise errors of a file, and missing packages of its format, as GpufleetError."""
    try:
        yield
    except OSError as error:
        raise GpufleetError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except ModuleNotFoundError as error:
        raise GpufleetError(f"{error.name} is not installed: install gpufleet[agent], [hub] or [top]") from error
