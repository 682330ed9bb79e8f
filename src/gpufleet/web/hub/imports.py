"""Ingestion endpoint for data of other systems; the steps common to all formats.

- Cluster: a sender token determines it. Without a token, or with one that is not bound to a cluster, `?cluster=` names
  it. It may be omitted if the hub serves one cluster.
- `?sender=` distinguishes writers of a cluster, such as the two of a redundant pair.
- `?pod_labels=workload`: the labels `pod` and `namespace` are those of the pods that hold devices
  (`honor_labels: true`), not those of the exporter.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from gpufleet.hub.imports.receiver import BacklogPendingError, ImportReceiver
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.writers import ImportWriter
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ingest import ForeignClusterError, TooManySendersError
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.machines import TooManyMachinesError
from gpufleet.model.errors import RegistryError, SpoolError, StoreError, WireError, WireLimitError
from gpufleet.web.hub.http import (
    BoundedBody,
    ClientDisconnectedError,
    Headers,
    Receive,
    RequestRejectedError,
    Scope,
    Send,
)
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS
from gpufleet.web.query_string import ParameterError, parse_query_string

MAX_NAME = 128

PARAMETERS = ("cluster", "sender", "pod_labels")
"""Query parameters of the import paths."""

ReadBody = Callable[[bytes, ImportWriter], ImportedRequest]
"""Function that decodes and maps the body of a request; runs on a thread."""

ImportResponse = tuple[int, Headers, bytes]
"""Status, headers and body."""


class ImportFormat(Protocol):
    """Format of imported data.

    Attributes:
        max_body_bytes: limit on a request body.
        reader: reader name of the imported samples.
        unnamed_writer: name of a writer without `?sender=`.
        merge_window_ns: samples of a subject within this interval are merged.
    """

    max_body_bytes: int
    reader: str
    unnamed_writer: str
    merge_window_ns: int

    def reading(self, scope: Scope) -> ReadBody:
        """Return the function for a body with these headers. Raises RequestRejectedError."""
        ...

    def answer(self, scope: Scope, written: ImportedRequest) -> ImportResponse:
        """Return the response to a durable request."""
        ...

    def refusal(self, scope: Scope, refused: RequestRejectedError) -> ImportResponse:
        """Return the response to a rejected request, with a status at which clients of the format retry, or do not."""
        ...


class ImportEndpoint:
    """Ingestion endpoint of one format."""

    def __init__(
        self,
        form: ImportFormat,
        *,
        receiver: ImportReceiver,
        served: Callable[[], Sequence[str]],
        pressure: ByteBudget,
        counters: Counters,
        ingest_clock: IngestClock,
        body_timeout_seconds: float,
    ) -> None:
        self._form = form
        self._receiver = receiver
        self._served = served
        self._pressure = pressure
        self._counters = counters
        self._ingest_clock = ingest_clock
        self._timeout = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send, bound_to: str | None = None) -> None:
        """Answer a request; `bound_to` is the cluster that the token is bound to, or None."""
        form = self._form
        body = BoundedBody(self._pressure, form.max_body_bytes)
        try:
            read = form.reading(scope)
            cluster, writer = resolve_writer(scope, bound_to, self._served(), form.unnamed_writer)
            content = await body.read_whole(scope, receive, self._timeout)
            self._counters.received_bodies += 1
            self._counters.received_bytes += len(content)
            with rejecting_errors():
                written = await self._receiver.receive(
                    cluster,
                    f"{form.reader}/{writer}",
                    lambda writer: read(content, writer),
                    merge_window_ns=form.merge_window_ns,
                )
        except ClientDisconnectedError:
            self._counters.rejected["client_gone"] += 1
            return
        except RequestRejectedError as refused:
            self._counters.rejected[refused.answer.error] += 1
            if refused.status == 503:
                self._ingest_clock.note_rejected()
            status, headers, content = form.refusal(scope, refused)
            await _send(send, (status, headers + _connection_headers(refused.status, status), content))
            return
        finally:
            body.close()
        self._ingest_clock.note_accepted()
        await _send(send, form.answer(scope, written))


@contextlib.contextmanager
def rejecting_errors() -> Iterator[None]:
    """Convert errors of the receiver to RequestRejectedError."""
    try:
        yield
    except WireLimitError as error:
        raise RequestRejectedError(413, "too_large", str(error), error.field) from error
    except WireError as error:
        raise RequestRejectedError(400, "bad_request", str(error), error.field) from error
    except ForeignClusterError as error:
        raise RequestRejectedError(403, "foreign_cluster", str(error), "cluster") from error
    except TooManySendersError as error:
        raise RequestRejectedError(403, "too_many_senders", str(error), error.field) from error
    except TooManyMachinesError as error:
        raise RequestRejectedError(403, "too_many_machines", str(error), "machines") from error
    except BacklogPendingError as error:
        raise RequestRejectedError(503, "catching_up", str(error)) from error
    except SpoolError as error:
        raise RequestRejectedError(503, "log_full", str(error)) from error
    except (StoreError, RegistryError) as error:
        raise RequestRejectedError(503, "degraded", str(error)) from error


def parameters(scope: Scope) -> dict[str, str]:
    """Parse the query string. A misspelt `cluster` must not write into another cluster, so only known names pass.

    Raises:
        RequestRejectedError: if a parameter is unknown or repeated.
    """
    try:
        found = parse_query_string(scope["query_string"], scope["path"], dict.fromkeys(PARAMETERS, False))
    except ParameterError as error:
        raise RequestRejectedError(400, "bad_request", error.reason, error.field) from error
    return {name: value for name, (value,) in found.items()}


def resolve_writer(scope: Scope, bound_to: str | None, served: Sequence[str], unnamed: str) -> tuple[str, str]:
    """Return the cluster of a request and the name of its writer; `unnamed` is the default.

    Raises:
        RequestRejectedError: if the cluster is missing or not permitted, or the name is invalid.
    """
    query = parameters(scope)
    cluster, writer = query.get("cluster", ""), query.get("sender", unnamed)
    if not 0 < len(writer) <= MAX_NAME or not writer.isprintable():
        raise RequestRejectedError(400, "bad_request", f"must have 1 to {MAX_NAME} printable characters", "sender")
    if bound_to is not None:
        if cluster not in ("", bound_to):
            detail = f"the token is bound to cluster {bound_to!r}, and the URL names {cluster[:MAX_NAME]!r}"
            raise RequestRejectedError(403, "other_cluster", detail, "cluster")
        return bound_to, writer
    if not cluster and len(served) != 1:
        detail = f"this hub serves {len(served)} clusters: set ?cluster=ID"
        raise RequestRejectedError(400, "bad_request", detail, "cluster")
    return cluster or served[0], writer


def has_workload_pod_labels(scope: Scope) -> bool:
    """Return whether `?pod_labels=workload` is set: `pod` and `namespace` are those of the workload.

    Raises:
        RequestRejectedError: if the value is unknown.
    """
    value = parameters(scope).get("pod_labels", "exported")
    if value not in ("exported", "workload"):
        raise RequestRejectedError(400, "bad_request", "pod_labels must be exported or workload", "pod_labels")
    return value == "workload"


def _connection_headers(status: int, answered: int) -> Headers:
    """Return `Retry-After`, and `Connection: close` if the rest of the body is not read."""
    headers: Headers = []
    if answered == 503:
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    if status in (408, 413, 503):
        headers.append((b"connection", b"close"))
    return headers


async def _send(send: Send, answer: ImportResponse) -> None:
    status, headers, body = answer
    if status != 204:
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
