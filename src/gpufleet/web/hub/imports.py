"""Taking what other projects post: the steps that are the same in every format, as a bare ASGI callable.

Whose it is, the token says: a cluster's sender token posts for that cluster alone. Where there is no token, or it is
bound to none, `?cluster=` names it; it may be left out where the hub serves one cluster. `?sender=` tells writers of
one cluster apart, such as the two of a pair. `?pod_labels=workload` says that labels `pod` and `namespace` are those of
the pods that hold devices (`honor_labels: true`), and not of the exporter's own.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol
from urllib.parse import parse_qs

from gpufleet.hub.imports.receiver import NotYetError, Writes
from gpufleet.hub.imports.request import Written
from gpufleet.hub.imports.writers import Writer
from gpufleet.hub.liveness.uptime import Listening
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ingest import ForeignClusterError, TooManySendersError
from gpufleet.hub.receive.limits import Pressure
from gpufleet.model.errors import RegistryError, SpoolError, StoreError, WireError, WireLimitError
from gpufleet.web.hub.http import Body, GoneError, Headers, Receive, RefusedError, Scope, Send
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS

MAX_NAME = 128
MAX_PARAMETERS = 16

Read = Callable[[bytes, Writer], Written]
"""Reads the body of a request; runs on a thread."""

Answer = tuple[int, Headers, bytes]
"""Status, headers and body."""


class Format(Protocol):
    """What differs between formats.

    Attributes:
        max_body_bytes: of one request.
        reader: name of what is imported so, as a reader's.
        unnamed_writer: who posts without `?sender=`.
        together_ns: instants of one subject that are no further apart are one.
    """

    max_body_bytes: int
    reader: str
    unnamed_writer: str
    together_ns: int

    def reading(self, scope: Scope) -> Read:
        """Return what reads the body that these headers announce. Raises RefusedError."""
        ...

    def answer(self, scope: Scope, written: Written) -> Answer:
        """Say that it is durable."""
        ...

    def refusal(self, scope: Scope, refused: RefusedError) -> Answer:
        """Say why nothing was taken, by a status at which its clients do what is meant: send it again, or not."""
        ...


class ImportEndpoint:
    """The endpoint of one format."""

    def __init__(
        self,
        form: Format,
        *,
        writes: Writes,
        served: Callable[[], Sequence[str]],
        pressure: Pressure,
        counters: Counters,
        listening: Listening,
        body_timeout_seconds: float,
    ) -> None:
        self._form = form
        self._writes = writes
        self._served = served
        self._pressure = pressure
        self._counters = counters
        self._listening = listening
        self._timeout = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send, bound_to: str | None = None) -> None:
        """Answer one request; `bound_to` is the only cluster that who asks may write for, if there is one."""
        form = self._form
        body = Body(self._pressure, form.max_body_bytes)
        try:
            read = form.reading(scope)
            cluster, writer = whose(scope, bound_to, self._served(), form.unnamed_writer)
            content = await body.read_whole(scope, receive, self._timeout)
            self._counters.received_bodies += 1
            self._counters.received_bytes += len(content)
            with explained():
                written = await self._writes.take(
                    cluster,
                    f"{form.reader}/{writer}",
                    lambda writer: read(content, writer),
                    together_ns=form.together_ns,
                )
        except GoneError:
            self._counters.rejected["client_gone"] += 1
            return
        except RefusedError as refused:
            self._counters.rejected[refused.answer.error] += 1
            if refused.status == 503:
                self._listening.turned_away()
            status, headers, words = form.refusal(scope, refused)
            await _send(send, (status, headers + _manners(refused.status, status), words))
            return
        finally:
            body.close()
        self._listening.took()
        await _send(send, form.answer(scope, written))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn what taking a request raises into the answer that refuses it."""
    try:
        yield
    except WireLimitError as error:
        raise RefusedError(413, "too_large", str(error), error.field) from error
    except WireError as error:
        raise RefusedError(400, "bad_request", str(error), error.field) from error
    except ForeignClusterError as error:
        raise RefusedError(403, "foreign_cluster", str(error), "cluster") from error
    except TooManySendersError as error:
        raise RefusedError(403, "too_many_senders", str(error), error.field) from error
    except NotYetError as error:
        raise RefusedError(503, "not_yet", str(error)) from error
    except SpoolError as error:
        raise RefusedError(503, "log_full", str(error)) from error
    except (StoreError, RegistryError) as error:
        raise RefusedError(503, "degraded", str(error)) from error


def parameters(scope: Scope) -> dict[str, list[str]]:
    """Return what stands behind the `?` of an address.

    Raises:
        RefusedError: if that is too much.
    """
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise RefusedError(400, "bad_request", f"more than {MAX_PARAMETERS} parameters in the address") from error


def whose(scope: Scope, bound_to: str | None, served: Sequence[str], unnamed: str) -> tuple[str, str]:
    """Return the cluster that a request is of, and the name of its writer, `unnamed` unless it says one.

    Raises:
        RefusedError: if that cannot be told, or is not for who asks.
    """
    asked = parameters(scope)
    cluster, writer = asked.get("cluster", [""])[-1], asked.get("sender", [unnamed])[-1]
    if not 0 < len(writer) <= MAX_NAME or not writer.isprintable():
        raise RefusedError(400, "bad_request", f"a sender's name has 1 to {MAX_NAME} characters", "sender")
    if bound_to is not None:
        if cluster not in ("", bound_to):
            words = f"the token writes for cluster {bound_to!r}, and the address says {cluster[:MAX_NAME]!r}"
            raise RefusedError(403, "other_cluster", words, "cluster")
        return bound_to, writer
    if not cluster and len(served) != 1:
        words = f"which cluster is it? ?cluster=ID says it where a hub serves {len(served)} of them"
        raise RefusedError(400, "bad_request", words, "cluster")
    return cluster or served[0], writer


def has_plain_pods(scope: Scope) -> bool:
    """Tell whether the writer says that `pod` and `namespace` are a workload's.

    Raises:
        RefusedError: if it says what there is not.
    """
    said = parameters(scope).get("pod_labels", ["exported"])[-1]
    if said not in ("exported", "workload"):
        raise RefusedError(400, "bad_request", "pod_labels is exported or workload", "pod_labels")
    return said == "workload"


def _manners(status: int, answered: int) -> Headers:
    """Return when to come again, and whether what is left of the body is waited for."""
    headers: Headers = []
    if answered == 503:
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    if status in (408, 413, 503):
        headers.append((b"connection", b"close"))
    return headers


async def _send(send: Send, answer: Answer) -> None:
    status, headers, body = answer
    if status != 204:
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
