"""Who may use which route: one table. Pure.

A route that has no row is refused, whoever asks: a test holds the table and the routes together.

The hub's door: who asks, and whether it may. Failures are counted, and logged now and then.
"""

import logging
from collections.abc import Mapping
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import Credentials, UnauthenticatedError
from gpufleet.model.access import LOCAL, Principal, Role
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import GpufleetError
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.web.hub.http import Scope, Send, header, respond

BATCHES = "/v1/batches"
"""Where batches are posted."""

WRITE = "/api/v1/write"
"""Where remote write posts."""

METRICS, LOGS = "/v1/metrics", "/v1/logs"
"""Where OTLP is posted."""

QUERY = "/v1/query"
"""Where SQL is posted."""

OPEN: frozenset[Role] = frozenset()
"""No role is needed, and no token."""

_SENDER = frozenset({Role.SENDER})
_READS_ALL = frozenset({Role.OPERATOR, Role.ADMIN})
_READS_OWN = _READS_ALL | {Role.TENANT}
_ADMIN = frozenset({Role.ADMIN})
_ANY = frozenset(Role)

ACCESS: Mapping[tuple[str, str], frozenset[Role]] = {
    ("POST", BATCHES): _SENDER,  # of its own cluster
    ("POST", WRITE): _SENDER,  # of its own cluster
    ("POST", METRICS): _SENDER,
    ("POST", LOGS): _SENDER,
    ("GET", "/v1/allocations"): _READS_OWN,  # a tenant sees its own, and of others not even that they are
    ("GET", "/v1/allocations/{allocation_id}"): _READS_OWN,
    ("GET", "/v1/allocations/{allocation_id}/metrics"): _READS_OWN,
    ("GET", "/v1/allocations/{allocation_id}/series"): _READS_OWN,
    ("PUT", "/v1/allocations/{allocation_id}"): _ADMIN,
    ("DELETE", "/v1/allocations/{allocation_id}"): _ADMIN,
    ("GET", "/v1/clusters"): _READS_ALL,
    ("GET", "/v1/clusters/{cluster_id}"): _READS_ALL,
    ("PUT", "/v1/clusters/{cluster_id}"): _ADMIN,
    ("DELETE", "/v1/clusters/{cluster_id}"): _ADMIN,
    ("GET", "/v1/machines"): _READS_ALL,
    ("GET", "/v1/machines/{machine_id}"): _READS_ALL,
    ("GET", "/v1/machines/{machine_id}/processes"): _READS_ALL,  # every tenant's on the machine
    ("DELETE", "/v1/machines/{machine_id}"): _ADMIN,
    ("GET", "/v1/fleet"): _READS_ALL,
    ("GET", "/v1/nodes"): _READS_ALL,
    ("GET", "/v1/gpus"): _READS_ALL,
    ("GET", "/v1/gpus/{gpu_id}"): _READS_ALL,
    ("GET", "/v1/gpus/changes"): _READS_ALL,
    ("GET", "/v1/gpus/pools"): _READS_ALL,
    ("GET", "/v1/events"): _READS_OWN,  # of a tenant's own devices, in its own time
    ("GET", "/v1/usage"): _READS_OWN,  # of a tenant's own allocations
    ("GET", "/v1/senders"): _READS_ALL,
    ("GET", "/v1/audit"): _ADMIN,
    ("GET", QUERY): _ADMIN,
    ("POST", QUERY): _ADMIN,  # every tenant's readings
    ("GET", "/"): OPEN,  # links, and nothing about the fleet
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): _READS_ALL,
    ("GET", "/metrics"): _READS_ALL,
    ("GET", "/openapi.json"): _ANY,
    ("GET", "/openapi"): _ANY,
    ("GET", "/openapi/openapi.json"): _ANY,
    ("GET", "/openapi/{path}"): _ANY,
}
"""Method and path to the roles of which one is needed."""


def is_open(method: str, path: str) -> bool:
    """Whether this very path needs no token."""
    return ACCESS.get((method, path)) is OPEN


def refusal(method: str, route: str, principal: Principal) -> str | None:
    """Return why the principal may not use the route, or None if it may."""
    roles = ACCESS.get((method, route))
    if roles is None:
        return f"{method} {route} is open to nobody"
    if roles is OPEN or roles & principal.roles:
        return None
    return f"it takes a token of the role {' or '.join(sorted(roles))}"


log = logging.getLogger(__name__)

LOG_SECONDS = 10.0
"""At most one line about failures in this time: they must not fill the disk."""

NOBODY = Principal(id="nobody", roles=frozenset())
"""Who asks for what is open, without showing a token."""


class ForbiddenError(GpufleetError):
    """Who asks is known, and may not."""


class Door:
    """Lets requests in, or does not."""

    def __init__(self, credentials: Credentials | None, *, counters: Counters, clock: Clock) -> None:
        """Take the tokens; None means that everybody may do everything."""
        self._credentials = credentials
        self._counters = counters
        self._clock = clock
        self._next_line = clock.monotonic()
        self._unlogged = 0

    def admit(self, scope: Scope) -> Principal:
        """Return who asks. Raises UnauthenticatedError."""
        if self._credentials is None:
            return LOCAL
        if is_open(scope["method"], scope["path"]):
            return NOBODY
        try:
            return self._credentials.principal(_token(scope), to_datetime(self._clock.now_ns()))
        except UnauthenticatedError as error:
            self._counters.unauthenticated[error.reason] += 1
            self._log(scope, str(error))
            raise

    def check(self, method: str, route: str, principal: Principal, scope: Scope) -> None:
        """Refuse what the principal may not do. Raises ForbiddenError."""
        reason = refusal(method, route, principal)
        if reason is not None:
            self._counters.forbidden += 1
            self._log(scope, f"token {principal.id}: {reason}")
            raise ForbiddenError(reason)

    def guard(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        """Check a request that the framework has found a route for, before anything of it is read."""
        scope: Scope = connection.scope  # type: ignore[assignment]  # its own name for the same ASGI type
        self.check(scope["method"], scope["path_template"], scope["auth"], scope)

    def _log(self, scope: Scope, words: str) -> None:
        now = self._clock.monotonic()
        if now < self._next_line:
            self._unlogged += 1
            return
        client = scope.get("client")
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        where = f"{scope['method']} {scope['path'][:200]!r} from {client[0] if client else 'an unknown address'}"
        log.warning("refused: %s: %s%s", where, words, more)
        self._next_line, self._unlogged = now + LOG_SECONDS, 0


async def turn_away(send: Send, error: UnauthenticatedError) -> None:
    """Answer 401."""
    challenge = 'Bearer realm="gpufleet"'
    if error.reason != "no_token":
        challenge += f', error="invalid_token", error_description="{error}"'
    headers = [(b"www-authenticate", challenge.encode()), (b"connection", b"close")]
    await respond(send, 401, ErrorAnswer(error=error.reason, detail=str(error)), headers)


def _token(scope: Scope) -> str:
    values = header(scope, b"authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise UnauthenticatedError("no_token", "this hub asks for a token: Authorization: Bearer gpf_...")
    return token.strip()
