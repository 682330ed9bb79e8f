"""Who stands behind a token. The tokens are kept in memory, and read again within a second of a change."""

import asyncio
import datetime as dt
import hmac
import logging

from gpufleet.model.access import KnownToken, Principal, Secret, digest, token_id
from gpufleet.model.errors import GpufleetError, RegistryError
from gpufleet.ports.registry import Tokens

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between looks at whether tokens have changed: how long a revoked one may still be taken."""

_NOBODY = (Secret(bytes(32)),)
"""What an unknown id is compared with, so that it takes as long as a known one."""


class UnauthenticatedError(GpufleetError):
    """Nobody who is known stands behind a request.

    Attributes:
        reason: `no_token`, `bad_token`, `expired_token` or `revoked_token`.
    """

    def __init__(self, reason: str, words: str) -> None:
        self.reason = reason
        super().__init__(words)


class Credentials:
    """The tokens that a hub takes."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._known: dict[str, KnownToken] = {}
        self._changes: int | None = None
        self._trouble = ""

    def load(self) -> int:
        """Read the tokens again if they have changed; return how many there are. Blocking; raises RegistryError."""
        changes = self._tokens.changes()
        if changes != self._changes:
            self._known = {one.token.id: one for one in self._tokens.known()}
            self._changes = changes
        return len(self._known)

    async def run(self) -> None:
        """Look for changes until cancelled. While the registry does not answer, what was last read stays in force."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.load)
            except RegistryError as error:
                if str(error) != self._trouble:
                    log.warning("changes of tokens are not seen: %s", error)
                self._trouble = str(error)
            else:
                self._trouble = ""

    def principal(self, token: str, now: dt.datetime) -> Principal:
        """Return who presents the token.

        Raises:
            UnauthenticatedError: if it is unknown, has expired or was revoked. Only who holds the right secret is
                told which.
        """
        presented = digest(token)
        known = self._known.get(token_id(token) or "")
        secrets = known.secrets if known else _NOBODY
        matching = [one for one in secrets if hmac.compare_digest(one.digest, presented)]
        if known is None or not matching:
            raise UnauthenticatedError("bad_token", "the token is not known here")
        if known.token.revoked_at is not None:
            raise UnauthenticatedError("revoked_token", "the token was revoked")
        if known.token.expires_at is not None and known.token.expires_at <= now:
            raise UnauthenticatedError("expired_token", "the token has expired")
        until = matching[0].valid_until
        if until is not None and until <= now:
            raise UnauthenticatedError("expired_token", "the token was rotated, and the overlap is over")
        return Principal(
            id=known.token.id,
            roles=frozenset({known.token.role}),
            cluster=known.token.cluster,
            tenant=known.token.tenant,
        )
