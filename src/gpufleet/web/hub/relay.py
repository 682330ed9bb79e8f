"""The HTTP edge of a relay: it takes batches as a hub does, and answers for nothing but itself.

Relays that post to one another in a circle.

Each would take what comes back for a repetition, as it holds it, and so would the one before: all would forget it.
"""

import re

import msgspec

from gpufleet import __version__
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import UnauthenticatedError
from gpufleet.hub.receive.limits import Pressure
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.relay.forwarding import Forwarder
from gpufleet.hub.relay.senders import Relayed
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.ports.clock import Clock
from gpufleet.web.hub.access import BATCHES, Door, ForbiddenError, turn_away
from gpufleet.web.hub.http import Methods, Receive, Scope, Send, as_get, header, respond
from gpufleet.web.hub.ingest import BatchEndpoint
from gpufleet.web.hub.selfmetrics import CONTENT_TYPE

RELAYS_KEPT = 64
"""Relays before this one that are remembered."""

_HEADER = b"gpufleet-relay"
_NAME = re.compile(r"[0-9a-f]{32}")


class Circle:
    """What one relay knows of those before it, since it started."""

    def __init__(self, name: str) -> None:
        """Take the relay's own name: the epoch of its log."""
        self._name = name
        self._before: set[str] = set()

    def names(self) -> str:
        """Return the header by which the next hub can tell that it is in a circle."""
        return ",".join((self._name, *sorted(self._before)))

    def closes(self, scope: Scope) -> bool:
        """Remember who posts, and tell whether that came from this relay itself."""
        named = {name for value in header(scope, _HEADER) for name in _NAME.findall(value)}
        if self._name in named:
            return True
        if len(self._before | named) <= RELAYS_KEPT:
            self._before |= named
        return False


ROUTES = ("/healthz", "/readyz", "/metrics", "/v1/senders")
"""What is answered beside batches."""

METHODS = Methods([("POST", BATCHES), *(("GET", path) for path in ROUTES)])

_ENCODER = msgspec.json.Encoder()


class RelayStatus:
    """How the relay is doing, read when asked."""

    def __init__(
        self, *, counters: Counters, wal: Wal, forwarder: Forwarder, pressure: Pressure, relayed: Relayed, clock: Clock
    ) -> None:
        self.counters = counters
        self.wal = wal
        self.forwarder = forwarder
        self.pressure = pressure
        self.relayed = relayed
        self.clock = clock

    def page(self) -> bytes:
        """Return the Prometheus page."""
        page = Page()
        counters, wal, forwarder = self.counters, self.wal, self.forwarder
        for name, words, count in (
            ("received_bodies_total", "Bodies of batches that arrived whole", counters.received_bodies),
            ("received_bytes_total", "Bytes of those bodies", counters.received_bytes),
            ("accepted_batches_total", "Batches acknowledged as new", counters.accepted),
            ("duplicate_batches_total", "Batches acknowledged that were held already", counters.duplicates),
            ("forwarded_batches_total", "Batches that the next hub has taken", forwarder.forwarded),
            ("refused_batches_total", "Batches that the next hub will never take, set aside", forwarder.refused),
            ("renumbered_batches_total", "Batches passed on under an epoch made for them", forwarder.renumbered),
            ("forward_failures_total", "Posts of a batch that are made again", forwarder.failures),
            ("wal_lost_batches_total", "Acknowledged batches that the disk damaged or lost", wal.lost),
        ):
            _single(page, name, "counter", words, count)
        oldest = wal.oldest_received_at
        lag = 0.0 if oldest is None else max(0, self.clock.now_ns() - oldest) / 1e9
        for name, words, value in (
            ("wal_records", "Acknowledged batches that the next hub does not have yet", wal.waiting_records),
            ("wal_bytes", "Bytes of those batches on disk", wal.waiting_bytes),
            (
                "held_batches",
                "Batches that the next hub does not take yet though it takes others",
                len(forwarder.held),
            ),
            ("pending_bytes", "Bytes of bodies being received or made durable", self.pressure.held),
            ("forward_lag_seconds", "Age of the oldest batch that the next hub does not have", lag),
            ("forward_failures_in_a_row", "0 while the next hub takes batches", forwarder.failures_in_a_row),
        ):
            _single(page, name, "gauge", words, value)
        page.declare("gpufleet_relay_rejected_batches_total", "counter", "Batches refused, by reason")
        for reason, number in sorted(counters.rejected.items()):
            page.add("gpufleet_relay_rejected_batches_total", labelled({"reason": reason}), number)
        page.declare(
            "gpufleet_relay_task_defects_total", "counter", "Times that a task was ended by a defect and begun again"
        )
        for task, number in sorted(counters.task_defects.items()):
            page.add("gpufleet_relay_task_defects_total", labelled({"task": task}), number)
        page.declare("gpufleet_relay_build_info", "gauge", "Version of gpufleet; always 1")
        page.add("gpufleet_relay_build_info", labelled({"version": __version__}), 1)
        return page.encode()


class RelayApp:
    """The ASGI application of a relay."""

    def __init__(
        self, *, door: Door, endpoint: BatchEndpoint, status: RelayStatus, next_hub: str, circle: Circle
    ) -> None:
        self._door = door
        self._endpoint = endpoint
        self._status = status
        self._next_hub = next_hub
        self._circle = circle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        scope = as_get(scope)
        try:
            principal = self._door.admit(scope)
            if scope["path"] == BATCHES:
                self._door.check("POST", BATCHES, principal, scope)
            elif scope["path"] in ROUTES:
                self._door.check("GET", scope["path"], principal, scope)
        except UnauthenticatedError as error:
            await turn_away(send, error)
            return
        except ForbiddenError as error:
            answer = ErrorAnswer(error="forbidden", detail=str(error))
            await respond(send, 403, answer, [(b"connection", b"close")])
            return
        if await METHODS.answered(scope, send):
            return
        if scope["path"] == BATCHES and self._circle.closes(scope):
            words = f"this relay posts to itself: {self._next_hub}, its relay.to, is itself or a relay that leads back"
            self._status.counters.rejected["relay_loop"] += 1
            await respond(send, 508, ErrorAnswer(error="relay_loop", detail=words), [(b"connection", b"close")])
        elif scope["path"] == BATCHES:
            await self._endpoint(scope, receive, send, principal.cluster)
        else:
            await self._answer(scope, send)

    async def _answer(self, scope: Scope, send: Send) -> None:
        if scope["path"] not in ROUTES:
            where = f"ask {self._next_hub} or the hub behind it"
            words = f"this is a relay, and answers {BATCHES}, {', '.join(ROUTES)} alone: {where}"
            await respond(send, 404, ErrorAnswer(error="not_found", detail=words))
        elif scope["path"] == "/metrics":
            await _send(send, 200, CONTENT_TYPE, self._status.page())
        elif scope["path"] == "/v1/senders":
            senders = self._status.relayed.records(self._status.clock.now_ns())
            await _send(send, 200, "application/json", _ENCODER.encode(senders))
        elif scope["path"] == "/readyz" and self._status.forwarder.failures_in_a_row:
            words = f"batches wait in the log: {self._status.forwarder.last_error}"
            await respond(send, 503, ErrorAnswer(error="degraded", detail=words))
        else:
            word = "ready" if scope["path"] == "/readyz" else "ok"
            await _send(send, 200, "application/json", _ENCODER.encode({"status": word}))


async def _send(send: Send, status: int, content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _single(page: Page, name: str, kind: str, words: str, value: float) -> None:
    page.declare(f"gpufleet_relay_{name}", kind, words)
    page.add(f"gpufleet_relay_{name}", "", value)
