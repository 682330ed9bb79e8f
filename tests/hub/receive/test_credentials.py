"""Tokens in memory: what a hub makes of them while the registry changes, or does not answer."""

import asyncio
import datetime as dt
import logging

import pytest

from gpufleet.hub.receive.credentials import Credentials, UnauthenticatedError
from gpufleet.model.access import KnownToken, Role, Secret, Token, digest, write_token
from gpufleet.model.errors import RegistryError
from tests.support.waiting import wait_until_async

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TEXT = write_token("a" * 12, "b" * 43)
KNOWN = KnownToken(Token(id="a" * 12, role=Role.SENDER, created_at=NOW, cluster="x"), (Secret(digest(TEXT)),))


class Kept:
    """Tokens in memory, that can stop answering."""

    def __init__(self, *known: KnownToken) -> None:
        self.tokens = known
        self.number = 0
        self.asked = 0
        self.down = False

    def changes(self) -> int:
        self.asked += 1
        if self.down:
            raise RegistryError("the registry is down")
        return self.number

    def known(self) -> tuple[KnownToken, ...]:
        return self.tokens


def test_a_token_says_who_and_for_what() -> None:
    credentials = Credentials(Kept(KNOWN))
    assert credentials.load() == 1
    principal = credentials.principal(TEXT, NOW)
    assert (principal.id, principal.roles, principal.cluster, principal.tenant) == (
        "a" * 12,
        frozenset({Role.SENDER}),
        "x",
        None,
    )


def test_before_anything_was_read_nobody_is_known() -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        Credentials(Kept(KNOWN)).principal(TEXT, NOW)
    assert caught.value.reason == "bad_token"


def test_tokens_are_read_again_only_when_something_changed() -> None:
    kept = Kept(KNOWN)
    credentials = Credentials(kept)
    credentials.load()
    kept.tokens = ()
    credentials.load()
    assert credentials.principal(TEXT, NOW).id
    kept.number += 1
    assert credentials.load() == 0
    with pytest.raises(UnauthenticatedError):
        credentials.principal(TEXT, NOW)


async def test_tokens_stay_known_while_the_registry_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept(KNOWN)
    credentials = Credentials(kept)
    credentials.load()
    kept.down = True
    looking = asyncio.create_task(credentials.run())

    async def asked_thrice() -> bool:
        return kept.asked >= 4

    await wait_until_async(asked_thrice, what="three looks")
    assert credentials.principal(TEXT, NOW).id
    kept.tokens, kept.number, kept.down = (), 1, False

    async def gone() -> bool:
        try:
            credentials.principal(TEXT, NOW)
        except UnauthenticatedError:
            return True
        return False

    await wait_until_async(gone, what="the change to be seen")
    looking.cancel()
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 1
