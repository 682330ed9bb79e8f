"""Credentials: tokens stay in memory and follow the registry."""

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


class FakeRegistry:
    """Tokens in memory, with a switch for an outage."""

    def __init__(self, *known: KnownToken) -> None:
        self.tokens = known
        self.number = 0
        self.queries = 0
        self.down = False

    def changes(self) -> int:
        self.queries += 1
        if self.down:
            raise RegistryError("the registry is down")
        return self.number

    def known(self) -> tuple[KnownToken, ...]:
        return self.tokens


def test_principal_of_a_token_has_its_roles_and_cluster() -> None:
    credentials = Credentials(FakeRegistry(KNOWN))
    assert credentials.load() == 1
    principal = credentials.principal(TEXT, NOW)
    assert (principal.id, principal.roles, principal.cluster, principal.tenant) == (
        "a" * 12,
        frozenset({Role.SENDER}),
        "x",
        None,
    )


def test_no_token_is_valid_before_the_first_load() -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        Credentials(FakeRegistry(KNOWN)).principal(TEXT, NOW)
    assert caught.value.reason == "bad_token"


def test_tokens_are_loaded_again_only_after_a_change() -> None:
    registry = FakeRegistry(KNOWN)
    credentials = Credentials(registry)
    credentials.load()
    registry.tokens = ()
    credentials.load()
    assert credentials.principal(TEXT, NOW).id
    registry.number += 1
    assert credentials.load() == 0
    with pytest.raises(UnauthenticatedError):
        credentials.principal(TEXT, NOW)


async def test_tokens_stay_known_while_the_registry_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = FakeRegistry(KNOWN)
    credentials = Credentials(registry)
    credentials.load()
    registry.down = True
    refreshing = asyncio.create_task(credentials.run())

    async def queried_thrice() -> bool:
        return registry.queries >= 4

    await wait_until_async(queried_thrice, what="three queries")
    assert credentials.principal(TEXT, NOW).id
    registry.tokens, registry.number, registry.down = (), 1, False

    async def gone() -> bool:
        try:
            credentials.principal(TEXT, NOW)
        except UnauthenticatedError:
            return True
        return False

    await wait_until_async(gone, what="the token to expire")
    refreshing.cancel()
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
