"""Connection to a Kubernetes API server. lightkube reads credentials and TLS settings; requests and limits are ours.

Every request reads, except those of `write_lease`. `upgrade` opens a stream; its bytes are the caller's.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpufleet.delivery.pacing import MAX_RETRY_AFTER_SECONDS
from gpufleet.model.errors import ChannelError, ChannelProblem, ConfigError, KubernetesApiError
from gpufleet.model.text import bounded

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_PAGE_BYTES = 64 << 20
"""Maximum size of a response: a page of 500 objects of the largest usual size."""

MAX_EVENT_BYTES = 4 << 20
"""Maximum size of an event of a watch. etcd stores at most 1.5 MiB for an object."""

TOO_LARGE = "TooLarge"
"""Code of the error for a larger response than permitted. It is none of the API's."""

MAX_ERROR_BYTES = 65_536
MAX_DETAIL = 500
CHUNK_BYTES = 65_536

SWITCHING = 101
"""HTTP status of an upgrade."""

FULL = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""`Accept` for lists of metadata. A server that does not support it answers with whole objects."""

_UNCHECKED = (AttributeError, KeyError, TypeError, ValueError)
"""Errors of lightkube for a kubeconfig, or an answer of an exec plugin, of another structure."""

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/"


class ApiAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of a cluster.

    Attributes:
        kubeconfig: path of a kubeconfig file; empty means the service account of the pod.
        context: context in that file; empty means its current context.
        service_account: folder of the service account.
        timeout_seconds: limit of each step of a request: connect, write, each read.
        request_seconds: limit of a whole request, except watches.
    """

    kubeconfig: str = ""
    context: str = ""
    service_account: Path = SERVICE_ACCOUNT
    timeout_seconds: float = 30.0
    request_seconds: float = 120.0

    @property
    def source(self) -> str:
        """Return the path of the credentials, for messages."""
        return self.kubeconfig or str(self.service_account)

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that lightkube reads once: if they change, the connection is rebuilt."""
        return (Path(self.kubeconfig).expanduser(),) if self.kubeconfig else (self.service_account / "ca.crt",)


class _ApiStatus(msgspec.Struct):
    """Status object of the API, as far as it is needed."""

    message: str = ""
    reason: str = ""
    details: Any = None

    @property
    def retry_after(self) -> float | None:
        seconds = self.details.get("retryAfterSeconds") if isinstance(self.details, dict) else None
        if not isinstance(seconds, (int, float)) or not 0 < seconds <= MAX_RETRY_AFTER_SECONDS:
            return None
        return float(seconds)


class _HttpClient:
    """HTTP client with the number of its present requests. A replaced client is closed after its last request."""

    def __init__(self, http: "httpx2.AsyncClient", files: tuple[object, ...]) -> None:
        self.http = http
        self.files = files
        self.users = 0
        self.is_replaced = False

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator["httpx2.AsyncClient"]:
        """Return the client, and close it at the end if it was replaced and has no other request."""
        self.users += 1
        try:
            yield self.http
        finally:
            self.users -= 1
            if self.is_replaced and not self.users:
                await self.http.aclose()


class _HandshakeTrace:
    """Trace of a request: if it is cancelled during the TLS handshake, its connection is closed.

    httpcore2 2.16 closes it after errors, but not after a cancellation.
    """

    def __init__(self) -> None:
        self._stream: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Handle an event of the connection; the names are those of httpcore."""
        if event == "connection.connect_tcp.complete":
            self._stream = info["return_value"]
        elif event.endswith(".start_tls.failed") and self._stream is not None:  # also of a tunnel through a proxy
            await self._stream.aclose()


class ApiConnection:
    """Connection to an API server.

    Expired credentials: token files are read again and exec plugins run again after a 401, by lightkube. If the
    kubeconfig or the cluster's CA changed, the connection is rebuilt and the request repeated.

    Args:
        access: the credentials; they are read at once.

    Raises:
        ConfigError: if the credentials cannot be read, or lightkube is not installed.
    """

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._client = _load(access)

    @property
    def server(self) -> str:
        """Return the URL of the API server."""
        return str(self._client.http.base_url)

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = FULL, max_bytes: int = MAX_PAGE_BYTES
    ) -> bytes:
        """Return the body of a GET request.

        Raises:
            KubernetesApiError: for any status but 200, a larger body than `max_bytes`, or no answer.
        """
        return await self._request("GET", path, query or {}, accept, b"", max_bytes)

    async def write_lease(self, method: str, path: str, body: bytes) -> bytes:
        """Create (POST) or replace (PUT) a Lease; return it as stored. Nothing else is ever written.

        Raises:
            KubernetesApiError: as `get`; status 409 if another client was faster.
            ValueError: if the path is not that of a Lease.
        """
        if not path.startswith(_LEASES) or "/leases" not in path or method not in ("POST", "PUT"):
            raise ValueError(f"{method} {path} does not write a Lease")
        return await self._request(method, path, {}, FULL, body, MAX_EVENT_BYTES)

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, query: Mapping[str, str], *, accept: str, idle_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch; return its events as lines of JSON.

        The iterator ends when the server ends the stream, or after `idle_seconds` without data.

        Raises:
            KubernetesApiError: for any status but 200, a larger event than `MAX_EVENT_BYTES`, no answer, or a lost
                connection.
        """
        async with self._open("GET", path, query, accept, b"", read_seconds=idle_seconds) as response:
            yield self._lines(response, path)

    async def upgrade(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> "UpgradedConnection":
        """Send a GET request that the server answers with 101; return the connection. The caller closes it.

        Raises:
            KubernetesApiError: for any other status, or no answer.
        """
        async with contextlib.AsyncExitStack() as stack:
            response = await stack.enter_async_context(self._open("GET", path, query, FULL, b"", upgrade=headers))
            return UpgradedConnection(response, stack.pop_all(), self._place(path))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.http.aclose()

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], accept: str, body: bytes, max_bytes: int
    ) -> bytes:
        seconds = self._access.request_seconds
        try:
            async with asyncio.timeout(seconds), self._open(method, path, query, accept, body) as response:
                return await self._read(response, path, max_bytes)
        except TimeoutError:
            raise KubernetesApiError(f"{self._place(path)}: no complete answer in {seconds:g} s") from None

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        accept: str,
        body: bytes,
        *,
        read_seconds: float = 0.0,
        upgrade: Mapping[str, str] | None = None,
    ) -> AsyncIterator["httpx2.Response"]:
        """Send a request; repeat it once with new credentials if these changed."""
        async with contextlib.AsyncExitStack() as stack:
            for is_last in (False, True):
                client = self._client
                try:
                    response = await stack.enter_async_context(
                        self._send(client, method, path, query, accept, body, read_seconds, upgrade)
                    )
                    break
                except KubernetesApiError as error:
                    if is_last or error.status not in (0, 401) or not await self._reload(client):
                        raise
            yield response

    @contextlib.asynccontextmanager
    async def _send(
        self,
        client: _HttpClient,
        method: str,
        path: str,
        query: Mapping[str, str],
        accept: str,
        body: bytes,
        read_seconds: float,
        upgrade: Mapping[str, str] | None,
    ) -> AsyncIterator["httpx2.Response"]:
        import httpx2

        seconds = self._access.timeout_seconds
        headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": "gpufleet"}
        if body:
            headers["Content-Type"] = "application/json"
        headers |= upgrade or {}
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(client.use())
            with self._translated(path):
                response = await stack.enter_async_context(
                    http.stream(
                        method,
                        path,
                        params=dict(query),
                        headers=headers,
                        content=body or None,
                        timeout=httpx2.Timeout(seconds, read=read_seconds or seconds),
                        extensions={"trace": _HandshakeTrace()},
                    )
                )
            is_expected = 200 <= response.status_code < 300 if upgrade is None else response.status_code == SWITCHING
            if not is_expected:
                raise await self._rejection(response, path)
            yield response

    async def _read(self, response: "httpx2.Response", path: str, max_bytes: int) -> bytes:
        data = bytearray()
        with self._translated(path):
            async for chunk in response.aiter_bytes(CHUNK_BYTES):
                data += chunk
                if len(data) > max_bytes:
                    message = f"{self._place(path)}: the response has more than {max_bytes} bytes"
                    raise KubernetesApiError(message, code=TOO_LARGE)
        return bytes(data)

    async def _lines(self, response: "httpx2.Response", path: str) -> AsyncIterator[bytes]:
        import httpx2

        rest = bytearray()
        with self._translated(path), contextlib.suppress(httpx2.ReadTimeout):
            async for chunk in response.aiter_bytes():
                start = 0
                while (end := chunk.find(b"\n", start)) >= 0:
                    rest += chunk[start:end]
                    if line := bytes(rest).strip():
                        yield line
                    rest.clear()
                    start = end + 1
                rest += chunk[start:]
                if len(rest) > MAX_EVENT_BYTES:
                    raise KubernetesApiError(f"{self._place(path)}: an event has more than {MAX_EVENT_BYTES} bytes")

    async def _rejection(self, response: "httpx2.Response", path: str) -> KubernetesApiError:
        """Return the error of a response with an error status."""
        data = bytearray()
        with self._translated(path):
            async for chunk in response.aiter_bytes(CHUNK_BYTES):
                data += chunk
                if len(data) > MAX_ERROR_BYTES:
                    break
        try:
            status = msgspec.json.decode(bytes(data), type=_ApiStatus)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            status = _ApiStatus(message=bytes(data[:MAX_DETAIL]).decode("utf-8", "replace"))
        header = response.headers.get("Retry-After", "")
        retry_after = float(header[:10]) if header.isascii() and header.isdigit() else status.retry_after
        detail = bounded(" ".join(status.message.split()), MAX_DETAIL)
        return KubernetesApiError(
            f"{self._place(path)}: {response.status_code} {detail or bounded(status.reason, MAX_DETAIL)}".strip(),
            status=response.status_code,
            code=bounded(status.reason, 64),
            retry_after=retry_after,
        )

    @contextlib.contextmanager
    def _translated(self, path: str) -> Any:
        """Turn errors of the transport and of exec plugins into `KubernetesApiError`."""
        import httpx2
        import lightkube

        try:
            yield
        except httpx2.TimeoutException:
            raise KubernetesApiError(f"{self._place(path)}: no answer in time") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            detail = bounded(str(error) or type(error).__name__, MAX_DETAIL)
            raise KubernetesApiError(f"{self._place(path)}: {detail}") from None
        except (lightkube.ConfigError, *_UNCHECKED) as error:  # of a token file or an exec plugin
            detail = bounded(f"{type(error).__name__}: {error}", MAX_DETAIL)
            raise KubernetesApiError(f"{self._access.source}: no credentials: {detail}", status=401) from None

    async def _reload(self, used: _HttpClient) -> bool:
        """Rebuild the client if the files of the credentials changed; return whether another client is there."""
        if self._client is not used:
            return True
        if _stamps(self._access) == used.files:
            return False
        try:
            self._client = _load(self._access)
        except ConfigError as error:  # the file is being written
            log.warning("%s; the connection keeps its earlier credentials", error)
            return False
        used.is_replaced = True
        if not used.users:
            await used.http.aclose()
        return True

    def _place(self, path: str) -> str:
        return f"{self.server.rstrip('/')}{path}"


class UpgradedConnection:
    """Connection after an upgrade of the protocol. It keeps its place in the connection pool until it is closed."""

    def __init__(self, response: "httpx2.Response", stack: contextlib.AsyncExitStack, name: str) -> None:
        self._stream: Any = response.extensions["network_stream"]
        self._stack, self._name = stack, name
        self.headers: Mapping[str, str] = dict(response.headers)

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError if the peer is gone."""
        with self._translated():
            await self._stream.write(data)

    async def receive(self, most: int) -> bytes:
        """Receive 1 to `most` bytes, or empty bytes at the end of the stream. Raises ChannelError."""
        with self._translated():
            return bytes(await self._stream.read(most))

    async def close(self) -> None:
        """Close the connection; a second close has no effect."""
        with contextlib.suppress(ChannelError), self._translated():
            await self._stream.aclose()
            await self._stack.aclose()

    @contextlib.contextmanager
    def _translated(self) -> Any:
        import httpcore2

        try:
            yield
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            detail = bounded(str(error) or type(error).__name__, MAX_DETAIL)
            raise ChannelError(f"{self._name}: {detail}", ChannelProblem.ENDED) from None


def _stamps(access: ApiAccess) -> tuple[object, ...]:
    """Return what changes when the files of the credentials are replaced."""
    stamps: list[object] = []
    for path in access.files:
        try:
            stat = path.stat()
            stamps.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _load(access: ApiAccess) -> _HttpClient:
    """Build a client from the credentials."""
    try:
        import httpx2
        import lightkube
        import yaml
        from lightkube.config.client_adapter import ConnectionParams
        from lightkube.config.models import User
    except ImportError:
        raise ConfigError(access.source, "", "lightkube is not installed: install gpufleet[kubernetes]") from None
    stamps = _stamps(access)
    try:
        if access.kubeconfig:
            config = lightkube.KubeConfig.from_file(access.kubeconfig).get(access.context or None)
        elif "KUBERNETES_SERVICE_HOST" in os.environ and "KUBERNETES_SERVICE_PORT" in os.environ:
            config = lightkube.KubeConfig.from_service_account(access.service_account).get()
        else:
            reason = "this process does not run in a pod (KUBERNETES_SERVICE_HOST is not set): set `kubeconfig`"
            raise ConfigError(access.source, "", reason)
        assert config is not None  # only with another default
        config = config._replace(user=config.user or User())
        http = httpx2.AsyncClient(
            **ConnectionParams(timeout=httpx2.Timeout(access.timeout_seconds)).httpx_params(config)
        )
    except (
        lightkube.ConfigError,
        msgspec.MsgspecError,
        yaml.YAMLError,
        OSError,
        *_UNCHECKED,
    ) as error:
        detail = bounded(f"{type(error).__name__}: {error}", MAX_DETAIL)
        raise ConfigError(access.source, "", f"no usable credentials of a cluster: {detail}") from None
    return _HttpClient(http, stamps)
