"""ASGI application of a relay, which accepts batches and reports its own state; and detection of relay loops.

In a loop, each relay would acknowledge a returning batch as a duplicate, because it still holds it. The relay before
would then delete its copy, and in the end all copies would be lost.
"""

import re
from collections.abc import Container, Mapping

import msgspec

from gpufleet import __version__
from gpufleet.exporters.exposition import MetricsPage, format_labels
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import UnauthenticatedError
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.relay.forwarding import RelayForwarder
from gpufleet.hub.relay.senders import RelaySenders
from gpufleet.model.access import Principal
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.ports.clock import Clock
from gpufleet.web.hub.access import BATCHES, CALLER, Authenticator, ForbiddenError, respond_unauthenticated
from gpufleet.web.hub.callers import describe_access
from gpufleet.web.hub.http import PathMethods, Receive, Scope, Send, as_get, header, respond
from gpufleet.web.hub.ingest import BatchEndpoint
from gpufleet.web.hub.selfmetrics import CONTENT_TYPE
from gpufleet.web.query_string import ParameterError, parse_query_string

MAX_RELAYS = 64
"""Maximum number of preceding relays that are stored."""

_HEADER = b"gpufleet-relay"
_NAME = re.compile(r"[0-9a-f]{32}")


class LoopDetector:
    """Names of the relays before this one, collected since its start."""

    def __init__(self, name: str) -> None:
        """Set the relay's own name, the epoch of its log."""
        self._name = name
        self._before: set[str] = set()

    def header_value(self) -> str:
        """Return the header from which the next relay can detect a loop."""
        return ",".join((self._name, *sorted(self._before)))

    def is_loop(self, scope: Scope) -> bool:
        """Record the relays that a request passed; return whether this relay is among them."""
        named = {name for value in header(scope, _HEADER) for name in _NAME.findall(value)}
        if self._name in named:
            return True
        if len(self._before | named) <= MAX_RELAYS:
            self._before |= named
        return False


ROUTES = ("/healthz", "/readyz", "/metrics", "/v1/senders", CALLER)
"""Paths other than batches."""

PARAMETERS: Mapping[str, Mapping[str, bool]] = {"/v1/senders": {}, CALLER: {"cluster": False}}
"""Query parameters of the API's paths, and whether each may be repeated; other paths ignore theirs."""

METHODS = PathMethods([("POST", BATCHES), *(("GET", path) for path in ROUTES)])

_ENCODER = msgspec.json.Encoder()


class RelayStatus:
    """State of a relay, read on access."""

    def __init__(
        self,
        *,
        counters: Counters,
        wal: Wal,
        forwarder: RelayForwarder,
        pressure: ByteBudget,
        relay_senders: RelaySenders,
        clock: Clock,
    ) -> None:
        self.counters = counters
        self.wal = wal
        self.forwarder = forwarder
        self.pressure = pressure
        self.relay_senders = relay_senders
        self.clock = clock

    def page(self) -> bytes:
        """Return the metrics page."""
        page = MetricsPage()
        counters, wal, forwarder = self.counters, self.wal, self.forwarder
        for name, text, count in (
            ("received_bodies_total", "Complete bodies received", counters.received_bodies),
            ("received_bytes_total", "Bytes of complete bodies received", counters.received_bytes),
            ("accepted_batches_total", "New batches acknowledged", counters.accepted),
            ("duplicate_batches_total", "Duplicate batches acknowledged", counters.duplicates),
            ("forwarded_batches_total", "Batches accepted by the next hub", forwarder.forwarded),
            ("refused_batches_total", "Batches rejected permanently by the next hub and set aside", forwarder.refused),
            (
                "renumbered_batches_total",
                "Batches forwarded under a new epoch because of an epoch conflict",
                forwarder.renumbered,
            ),
            ("forward_failures_total", "Failed posts that are retried", forwarder.failures),
            ("wal_lost_batches_total", "Acknowledged batches lost or damaged on disk", wal.lost),
        ):
            _single(page, name, "counter", text, count)
        oldest = wal.oldest_received_at
        lag = 0.0 if oldest is None else max(0, self.clock.now_ns() - oldest) / 1e9
        for name, text, value in (
            ("wal_records", "Acknowledged batches not yet accepted by the next hub", wal.waiting_records),
            ("wal_bytes", "Bytes on disk of batches not yet accepted by the next hub", wal.waiting_bytes),
            (
                "held_batches",
                "Batches rejected temporarily by the next hub while it accepts others",
                len(forwarder.held),
            ),
            ("pending_bytes", "Bytes of bodies being received or written to the log", self.pressure.held),
            ("forward_lag_seconds", "Age of the oldest batch not yet accepted by the next hub", lag),
            (
                "consecutive_forward_failures",
                "Failed posts since the next hub last accepted a batch",
                forwarder.consecutive_failures,
            ),
        ):
            _single(page, name, "gauge", text, value)
        page.declare("gpufleet_relay_rejected_batches_total", "counter", "Batches rejected, by reason")
        for reason, number in sorted(counters.rejected.items()):
            page.add("gpufleet_relay_rejected_batches_total", format_labels({"reason": reason}), number)
        page.declare("gpufleet_relay_task_restarts_total", "counter", "Restarts of crashed tasks")
        for task, number in sorted(counters.task_restarts.items()):
            page.add("gpufleet_relay_task_restarts_total", format_labels({"task": task}), number)
        page.declare("gpufleet_relay_build_info", "gauge", "Version of gpufleet; always 1")
        page.add("gpufleet_relay_build_info", format_labels({"version": __version__}), 1)
        return page.encode()


class RelayApp:
    """ASGI application of a relay."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        endpoint: BatchEndpoint,
        status: RelayStatus,
        next_hub: str,
        loop_detector: LoopDetector,
        clusters: Container[str],
    ) -> None:
        """Set the parts; `clusters` are those that this relay serves."""
        self._clusters = clusters
        self._authenticator = authenticator
        self._endpoint = endpoint
        self._status = status
        self._next_hub = next_hub
        self._loop_detector = loop_detector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        scope = as_get(scope)
        try:
            principal = self._authenticator.authenticate(scope)
            if scope["path"] == BATCHES:
                self._authenticator.check("POST", BATCHES, principal, scope)
            elif scope["path"] in ROUTES:
                self._authenticator.check("GET", scope["path"], principal, scope)
        except UnauthenticatedError as error:
            await respond_unauthenticated(send, error)
            return
        except ForbiddenError as error:
            answer = ErrorAnswer(error="forbidden", detail=str(error))
            await respond(send, 403, answer, [(b"connection", b"close")])
            return
        if await METHODS.respond_if_unsupported(scope, send):
            return
        if scope["path"] == BATCHES and self._loop_detector.is_loop(scope):
            detail = f"relay loop: relay.to ({self._next_hub}) leads back to this relay"
            self._status.counters.rejected["relay_loop"] += 1
            await respond(send, 508, ErrorAnswer(error="relay_loop", detail=detail), [(b"connection", b"close")])
        elif scope["path"] == BATCHES:
            await self._endpoint(scope, receive, send, principal.cluster)
        else:
            await self._answer(scope, send, principal)

    async def _answer(self, scope: Scope, send: Send, principal: Principal) -> None:
        query: dict[str, list[str]] = {}
        if scope["path"] in PARAMETERS:
            try:
                query = parse_query_string(scope["query_string"], scope["path"], PARAMETERS[scope["path"]])
            except ParameterError as error:
                await respond(send, 400, ErrorAnswer(error="bad_request", detail=str(error), field=error.field))
                return
        if scope["path"] not in ROUTES:
            where = f"query {self._next_hub} or the hub behind it"
            detail = f"this is a relay, which serves only {BATCHES}, {', '.join(ROUTES)}: {where}"
            await respond(send, 404, ErrorAnswer(error="not_found", detail=detail))
        elif scope["path"] == "/metrics":
            await _send(send, 200, CONTENT_TYPE, self._status.page())
        elif scope["path"] == "/v1/senders":
            senders = self._status.relay_senders.records(self._status.clock.now_ns())
            await _send(send, 200, "application/json", _ENCODER.encode(senders))
        elif scope["path"] == CALLER:
            cluster = query.get("cluster", [None])[0]
            await respond(send, 200, describe_access(principal, cluster, self._clusters))
        elif scope["path"] == "/readyz" and self._status.forwarder.consecutive_failures:
            detail = f"batches are queued in the log: {self._status.forwarder.last_error}"
            await respond(send, 503, ErrorAnswer(error="degraded", detail=detail))
        else:
            status = "ready" if scope["path"] == "/readyz" else "ok"
            await _send(send, 200, "application/json", _ENCODER.encode({"status": status}))


async def _send(send: Send, status: int, content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _single(page: MetricsPage, name: str, kind: str, text: str, value: float) -> None:
    page.declare(f"gpufleet_relay_{name}", kind, text)
    page.add(f"gpufleet_relay_{name}", "", value)
