"""The hub's door: who asks, and whether it may. Failures are counted, and logged now and then."""

import logging
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from gpufleet.hub.counters import Counters
from gpufleet.hub.credentials import Credentials, UnauthenticatedError
from gpufleet.model.access import LOCAL, Principal
from gpufleet.model.answer import ErrorAnswer
from gpufleet.model.errors import GpufleetError
from gpufleet.model.time import to_datetime
from gpufleet.ports import Clock
from gpufleet.web.hub.access import is_open, refusal
from gpufleet.web.hub.respond import Scope, Send, header, respond

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
