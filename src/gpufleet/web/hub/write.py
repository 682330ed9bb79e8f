"""`POST /api/v1/write`: Prometheus remote write 1.0 and 2.0, as a bare ASGI callable.

    204   durable. 2.0: how many samples were written stands in X-Prometheus-Remote-Write-Samples-Written
    400 bad_request                   never sent again
    403 foreign_cluster, other_cluster, too_many_senders
    405, 408 slow_body, 413 too_large, 415 bad_content_type
    503 overloaded, log_full, not_yet, degraded   with Retry-After: sent again

Whose it is, the token says: a cluster's sender token posts for that cluster alone. Where there is no token, or it is
bound to none, `?cluster=` names it; it may be left out where the hub serves one cluster. `?sender=` tells writers of
one cluster apart, such as the two of a pair.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import parse_qs

from gpufleet.hub.counters import Counters
from gpufleet.hub.imported.series import READER, read_request
from gpufleet.hub.imported.writes import NotYetError, Writer, Writes
from gpufleet.hub.imported.written import Written
from gpufleet.hub.ingest import ForeignClusterError, TooManySendersError
from gpufleet.hub.liveness.listening import Listening
from gpufleet.hub.pressure import Pressure
from gpufleet.model.answer import ErrorAnswer
from gpufleet.model.errors import RegistryError, SpoolError, StoreError, WireError, WireLimitError
from gpufleet.web.hub.body import Body, GoneError, RefusedError
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS
from gpufleet.web.hub.respond import Headers, Receive, Scope, Send, header, respond

VERSION_2 = "io.prometheus.write.v2.Request"
PROTOS = {"prometheus.WriteRequest": 1, VERSION_2: 2, "": 1}
MAX_BODY_BYTES = 16 << 20
MAX_NAME = 128
UNNAMED_WRITER = "prometheus"


class WriteEndpoint:
    """The endpoint."""

    def __init__(
        self,
        *,
        writes: Writes,
        served: Callable[[], Sequence[str]],
        pressure: Pressure,
        counters: Counters,
        listening: Listening,
        body_timeout_seconds: float,
    ) -> None:
        self._writes = writes
        self._served = served
        self._pressure = pressure
        self._counters = counters
        self._listening = listening
        self._timeout = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send, bound_to: str | None = None) -> None:
        """Answer one request; `bound_to` is the only cluster that who asks may write for, if there is one."""
        body = Body(self._pressure, MAX_BODY_BYTES)
        try:
            version = _version(scope)
            cluster, writer = whose(scope, bound_to, self._served(), UNNAMED_WRITER)
            content = await body.read_whole(scope, receive, self._timeout)
            self._counters.received_bodies += 1
            self._counters.received_bytes += len(content)
            written = await self._take(content, version, cluster, f"{READER}/{writer}")
        except GoneError:
            self._counters.rejected["client_gone"] += 1
            return
        except RefusedError as refused:
            self._counters.rejected[refused.answer.error] += 1
            if refused.status == 503:
                self._listening.turned_away()
            await _refuse(send, refused.status, refused.answer)
            return
        finally:
            body.close()
        self._listening.took()
        counts = {"samples": written.taken, "histograms": 0, "exemplars": 0} if version == 2 else {}
        headers = [(f"x-prometheus-remote-write-{what}-written".encode(), b"%d" % n) for what, n in counts.items()]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _take(self, content: bytes, version: int, cluster: str, writer: str) -> Written:
        def read(writer: Writer) -> Written:
            decode = writer.decoder.decode_2 if version == 2 else writer.decoder.decode_1
            return read_request(decode(content))

        with explained():
            return await self._writes.take(cluster, writer, read)


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


def whose(scope: Scope, bound_to: str | None, served: Sequence[str], unnamed: str) -> tuple[str, str]:
    """Return the cluster that a request is of, and the name of its writer, `unnamed` unless it says one.

    Raises:
        RefusedError: if that cannot be told, or is not for who asks.
    """
    asked = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=16)
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


def _version(scope: Scope) -> int:
    if scope["method"] != "POST":
        raise RefusedError(405, "method_not_allowed", "samples are posted")
    content_type, _, parameters = next(iter(header(scope, b"content-type")), "").partition(";")
    if content_type.strip().lower() != "application/x-protobuf":
        words = f"{content_type[:MAX_NAME]!r}: remote write is application/x-protobuf"
        raise RefusedError(415, "bad_content_type", words, "Content-Type")
    proto = next((text.strip()[6:] for text in parameters.split(";") if text.strip().startswith("proto=")), "")
    if proto not in PROTOS:
        raise RefusedError(415, "bad_content_type", f"{proto[:MAX_NAME]!r}: not known here", "Content-Type")
    encoding = next(iter(header(scope, b"content-encoding")), "snappy").lower()
    if encoding != "snappy":
        raise RefusedError(415, "bad_content_type", "remote write is compressed with snappy", "Content-Encoding")
    return PROTOS[proto]


async def _refuse(send: Send, status: int, answer: ErrorAnswer) -> None:
    more: Headers = []
    if status == 503:
        more.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    if status in (408, 413, 503):
        more.append((b"connection", b"close"))
    await respond(send, status, answer, more)
