"""Authentication of requests, and the table of roles that may use each route.

A route without a row is forbidden to every role; a test compares the table with the routes. Failures are counted, and
logged at a limited rate. The files of the web page (`web/page/`) are public and bypass the table.
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
"""Path of batches."""

WRITE = "/api/v1/write"
"""Path of Prometheus remote write."""

METRICS, LOGS = "/v1/metrics", "/v1/logs"
"""Paths of OTLP."""

QUERY = "/v1/query"
"""Path of SQL statements."""

CALLER = "/v1/access"
"""Path of the description of the caller's own access."""

BENCHMARKS = "/v1/benchmarks"
"""Path of benchmark captures."""

OPEN: frozenset[Role] = frozenset()
"""Routes that need neither role nor token."""

_SENDER = frozenset({Role.SENDER})
_READS_ALL = frozenset({Role.OPERATOR, Role.ADMIN})
_READS_OWN = _READS_ALL | {Role.TENANT}
_OPERATES = frozenset({Role.OPERATOR, Role.ADMIN})
_ADMIN = frozenset({Role.ADMIN})
_ANY = frozenset(Role)

ACCESS: Mapping[tuple[str, str], frozenset[Role]] = {
    ("POST", BATCHES): _SENDER,  # only for its own cluster
    ("POST", WRITE): _SENDER,  # only for its own cluster
    ("POST", METRICS): _SENDER,
    ("POST", LOGS): _SENDER,
    ("POST", BENCHMARKS): _SENDER,  # only for its own cluster
    ("GET", BENCHMARKS): _READS_ALL,
    ("GET", "/v1/benchmarks/{capture_id}"): _READS_ALL,  # with raw outputs of commands
    ("GET", "/v1/allocations"): _READS_OWN,  # a tenant's own; others are 404
    ("GET", "/v1/allocations/{allocation_id}"): _READS_OWN,
    ("GET", "/v1/allocations/{allocation_id}/metrics"): _READS_OWN,
    ("GET", "/v1/allocations/{allocation_id}/series"): _READS_OWN,
    ("PUT", "/v1/allocations/{allocation_id}"): _ADMIN,
    ("DELETE", "/v1/allocations/{allocation_id}"): _ADMIN,
    ("GET", "/v1/clusters"): _READS_ALL,
    ("GET", "/v1/clusters/{cluster_id}"): _READS_ALL,
    ("GET", "/v1/clusters/{cluster_id}/contract"): _READS_ALL,
    ("PUT", "/v1/clusters/{cluster_id}"): _ADMIN,
    ("DELETE", "/v1/clusters/{cluster_id}"): _ADMIN,
    ("GET", "/v1/machines"): _READS_ALL,
    ("GET", "/v1/machines/{machine_id}"): _READS_ALL,
    ("GET", "/v1/machines/{machine_id}/processes"): _READS_ALL,  # of all tenants on the machine
    ("GET", "/v1/machines/{machine_id}/series"): _READS_ALL,  # of all tenants on the machine
    ("GET", "/v1/machines/{machine_id}/probe/changes"): _READS_ALL,
    ("DELETE", "/v1/machines/{machine_id}"): _ADMIN,
    ("GET", "/v1/fleet"): _READS_ALL,
    ("GET", "/v1/nodes"): _READS_ALL,
    ("GET", "/v1/nodes/gpus"): _READS_ALL,  # with the holders of all tenants
    ("GET", "/v1/gpus"): _READS_ALL,
    ("GET", "/v1/gpus/{gpu_id}"): _READS_ALL,
    ("GET", "/v1/gpus/changes"): _READS_ALL,
    ("GET", "/v1/gpus/pools"): _READS_ALL,
    ("GET", "/v1/holders"): _READS_ALL,  # of all tenants
    ("GET", "/v1/events"): _READS_OWN,  # of a tenant: its own devices during its allocations
    ("GET", "/v1/usage"): _READS_OWN,  # of a tenant: its own allocations
    ("GET", "/v1/findings"): _READS_OWN,  # of a tenant: its own allocations
    ("GET", "/v1/findings/{finding_id}"): _READS_OWN,  # others are 404
    ("PUT", "/v1/findings/{finding_id}/acknowledgement"): _OPERATES,
    ("DELETE", "/v1/findings/{finding_id}/acknowledgement"): _OPERATES,
    ("GET", "/v1/silences"): _READS_ALL,
    ("POST", "/v1/silences"): _OPERATES,
    ("DELETE", "/v1/silences/{silence_id}"): _OPERATES,
    ("GET", "/v1/updates"): _READS_OWN,  # of a tenant: marks of its own allocations
    ("GET", "/v1/senders"): _READS_ALL,
    ("GET", CALLER): _ANY,  # about the caller's own token
    ("GET", "/v1/audit"): _ADMIN,
    ("GET", QUERY): _ADMIN,
    ("POST", QUERY): _ADMIN,  # readings of all tenants
    ("GET", "/"): OPEN,  # links only, nothing about the fleet
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): _READS_ALL,
    ("GET", "/metrics"): _READS_ALL,
    ("GET", "/openapi.json"): _ANY,
    ("GET", "/openapi"): _ANY,
    ("GET", "/openapi/openapi.json"): _ANY,
    ("GET", "/openapi/{path}"): _ANY,
}
"""Roles by method and path; a principal needs one of them."""


def is_open(method: str, path: str) -> bool:
    """Return whether exactly this path needs no token."""
    return ACCESS.get((method, path)) is OPEN


def denial_reason(method: str, route: str, principal: Principal) -> str | None:
    """Return why the principal may not use the route, or None if it may."""
    roles = ACCESS.get((method, route))
    if roles is None:
        return f"{method} {route} is not open to any role"
    if roles is OPEN or roles & principal.roles:
        return None
    return f"this needs a token of the role {' or '.join(sorted(roles))}"


log = logging.getLogger(__name__)

LOG_SECONDS = 10.0
"""Minimum interval between log lines about failures, so that clients cannot fill the disk."""

ANONYMOUS = Principal(id="anonymous", roles=frozenset())
"""Principal of requests for open paths, which need no token."""


class ForbiddenError(GpufleetError):
    """The principal's roles do not allow the request."""


class Authenticator:
    """Authentication and authorisation of requests."""

    def __init__(self, credentials: Credentials | None, *, counters: Counters, clock: Clock) -> None:
        """Set the tokens; None disables authentication, and every client may do everything."""
        self._credentials = credentials
        self._counters = counters
        self._clock = clock
        self._next_line = clock.monotonic()
        self._unlogged = 0

    def authenticate(self, scope: Scope) -> Principal:
        """Return the principal of a request. Raises UnauthenticatedError."""
        if self._credentials is None:
            return LOCAL
        if is_open(scope["method"], scope["path"]):
            return ANONYMOUS
        try:
            return self._credentials.principal(_token(scope), to_datetime(self._clock.now_ns()))
        except UnauthenticatedError as error:
            self._counters.unauthenticated[error.reason] += 1
            self._log(scope, str(error))
            raise

    def check(self, method: str, route: str, principal: Principal, scope: Scope) -> None:
        """Raise ForbiddenError if the principal may not use the route."""
        reason = denial_reason(method, route, principal)
        if reason is not None:
            self._counters.forbidden += 1
            self._log(scope, f"token {principal.id}: {reason}")
            raise ForbiddenError(reason)

    def guard(self, connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        """Check a routed request before its body is read; a guard of Litestar."""
        scope: Scope = connection.scope  # type: ignore[assignment]  # Litestar's name for the same ASGI type
        self.check(scope["method"], scope["path_template"], scope["auth"], scope)

    def _log(self, scope: Scope, detail: str) -> None:
        now = self._clock.monotonic()
        if now < self._next_line:
            self._unlogged += 1
            return
        client = scope.get("client")
        more = f" ({self._unlogged} more since the previous message)" if self._unlogged else ""
        where = f"{scope['method']} {scope['path'][:200]!r} from {client[0] if client else 'an unknown address'}"
        log.warning("rejected: %s: %s%s", where, detail, more)
        self._next_line, self._unlogged = now + LOG_SECONDS, 0


async def respond_unauthenticated(send: Send, error: UnauthenticatedError) -> None:
    """Respond with 401."""
    challenge = 'Bearer realm="gpufleet"'
    if error.reason != "no_token":
        challenge += f', error="invalid_token", error_description="{error}"'
    headers = [(b"www-authenticate", challenge.encode()), (b"connection", b"close")]
    await respond(send, 401, ErrorAnswer(error=error.reason, detail=str(error)), headers)


def _token(scope: Scope) -> str:
    values = header(scope, b"authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise UnauthenticatedError("no_token", "this hub requires a token: send Authorization: Bearer gpf_...")
    return token.strip()
