"""Token authentication. Tokens are cached in memory and reloaded within a second of a change."""

import asyncio
import datetime as dt
import hmac
import logging

from gpufleet.model.access import KnownToken, Principal, Secret, digest, token_id
from gpufleet.model.errors import GpufleetError, RegistryError
from gpufleet.ports.registry import Tokens

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Interval between checks for changed tokens, and so the time for which a revoked token may still be accepted."""

_DUMMY_SECRETS = (Secret(bytes(32)),)
"""Secrets compared for an unknown token id, so that it takes as long as a known one."""


class UnauthenticatedError(GpufleetError):
    """The request has no valid token.

    Attributes:
        reason: `no_token`, `bad_token`, `expired_token` or `revoked_token`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


class Credentials:
    """Cache of the tokens accepted by a hub."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._known: dict[str, KnownToken] = {}
        self._changes: int | None = None
        self._last_error = ""

    def load(self) -> int:
        """Reload the tokens if they have changed; return their number. Blocking; raises RegistryError."""
        changes = self._tokens.changes()
        if changes != self._changes:
            self._known = {one.token.id: one for one in self._tokens.known()}
            self._changes = changes
        return len(self._known)

    async def run(self) -> None:
        """Reload changed tokens until cancelled. If the registry is unavailable, the cached tokens stay valid."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await asyncio.to_thread(self.load)
            except RegistryError as error:
                if str(error) != self._last_error:
                    log.warning("cannot load changed tokens: %s", error)
                self._last_error = str(error)
            else:
                self._last_error = ""

    def principal(self, token: str, now: dt.datetime) -> Principal:
        """Return the principal of a token.

        Raises:
            UnauthenticatedError: if the token is unknown, expired or revoked. Expiry and revocation are reported only
                to a client that presents the right secret.
        """
        presented = digest(token)
        known = self._known.get(token_id(token) or "")
        secrets = known.secrets if known else _DUMMY_SECRETS
        matching = [one for one in secrets if hmac.compare_digest(one.digest, presented)]
        if known is None or not matching:
            raise UnauthenticatedError("bad_token", "the token is not known here")
        if known.token.revoked_at is not None:
            raise UnauthenticatedError("revoked_token", "the token was revoked")
        if known.token.expires_at is not None and known.token.expires_at <= now:
            raise UnauthenticatedError("expired_token", "the token has expired")
        until = matching[0].valid_until
        if until is not None and until <= now:
            raise UnauthenticatedError("expired_token", "the token was rotated and its overlap period has ended")
        return Principal(
            id=known.token.id,
            roles=frozenset({known.token.role}),
            cluster=known.token.cluster,
            tenant=known.token.tenant,
        )
