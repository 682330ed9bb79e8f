"""Hub with token authentication, and an HTTP client for it."""

import asyncio
import contextlib
import datetime as dt
import http.client
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.config.hub import FindingsConfig, FlushConfig, HubConfig, IngestConfig
from gpufleet.config.tls import TlsConfig
from gpufleet.hub.receive.credentials import POLL_SECONDS
from gpufleet.model.access import Role, Token
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SqlFindings
from gpufleet.registry.tokens import SqlTokens
from gpufleet.wiring.hub import RunningHub, running_hub
from tests.fakes.store import MemoryStore
from tests.support.waiting import PATIENCE, wait_until_async


class MovedClock:
    """System clock that a test can move forward."""

    def __init__(self) -> None:
        self.ahead = dt.timedelta(0)

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC) + self.ahead

    def now_ns(self) -> int:
        return time.time_ns() + int(self.ahead.total_seconds() * 1e9)

    def monotonic(self) -> float:
        return time.monotonic()


class Reply(msgspec.Struct, frozen=True):
    """HTTP response, except its `Date` header."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> str:
        error: str = self.document["error"]
        return error


class Guarded:
    """Running hub with an in-memory store, and a token of each role for cluster `local` and tenant `acme`."""

    def __init__(
        self, hub: RunningHub, store: MemoryStore, tokens: SqlTokens, findings: SqlFindings, clock: MovedClock
    ) -> None:
        self.hub = hub
        self.store = store
        self.tokens = tokens
        self.findings = findings
        self.clock = clock
        self.secrets: dict[Role, str] = {}

    async def make(self, role: Role, **more: Any) -> tuple[Token, str]:
        """Create a token and wait until the hub accepts it."""
        token, secret = self.tokens.create(role, self.clock.now(), **more)

        async def known() -> bool:
            return (await self.request("/openapi.json", secret)).status == 200

        await wait_until_async(known, what="the hub to accept the token")
        return token, secret

    async def request(
        self,
        path: str,
        token: str | None = None,
        method: str = "GET",
        document: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        """Send a request, with a token if given."""
        sent_headers = dict(headers or {})
        if token is not None:
            sent_headers["Authorization"] = f"Bearer {token}"
        if document is not None:
            body = msgspec.json.encode(document)
            sent_headers["Content-Type"] = "application/json"
        return await asyncio.to_thread(exchange, self.hub.port, method, path, sent_headers, body)

    async def post(self, batch: bytes, token: str | None) -> Reply:
        """Post a batch."""
        return await self.request("/v1/batches", token, "POST", headers={"Content-Type": CONTENT_TYPE}, body=batch)

    async def until_refused(self, token: str) -> Reply:
        """Wait until the hub refuses a token."""
        reply = await self.request("/openapi.json", token)

        async def refused() -> bool:
            nonlocal reply
            reply = await self.request("/openapi.json", token)
            return reply.status == 401

        await wait_until_async(refused, seconds=10 * POLL_SECONDS, what="the hub to refuse the token")
        return reply


def exchange(
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None,
    tls: ssl.SSLContext | None = None,
) -> Reply:
    """Send one request over its own connection."""
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=20 * PATIENCE, context=tls)
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=20 * PATIENCE)
    )
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        response_headers = {name.lower(): value for name, value in answer.getheaders() if name.lower() != "date"}
        return Reply(answer.status, response_headers, answer.read())


@contextlib.asynccontextmanager
async def guarded(
    folder: Path, tls: TlsConfig | None = None, ingest: IngestConfig | None = None
) -> AsyncIterator[Guarded]:
    """Run a hub. A token of each role is created before it starts.

    The rules are not evaluated: an evaluation closes stored findings that it does not track.
    """
    config = HubConfig(
        listen="127.0.0.1:0",
        state=str(folder),
        auth="tokens",
        tls=tls or TlsConfig(),
        ingest=ingest or IngestConfig(),
        flush=FlushConfig(interval_seconds=0.1),
        findings=FindingsConfig(enabled=False),
    )
    config.folder.mkdir(parents=True, exist_ok=True)
    database = Database.open(config.registry_dsn)
    database.migrate()
    tokens, clock, store = SqlTokens(database), MovedClock(), MemoryStore()
    secrets = {
        Role.SENDER: tokens.create(Role.SENDER, clock.now(), cluster="local")[1],
        Role.TENANT: tokens.create(Role.TENANT, clock.now(), tenant="acme")[1],
        Role.OPERATOR: tokens.create(Role.OPERATOR, clock.now())[1],
        Role.ADMIN: tokens.create(Role.ADMIN, clock.now())[1],
    }
    try:
        async with running_hub(config, store=lambda _: store, clock=clock) as hub:
            site = Guarded(hub, store, tokens, SqlFindings(database), clock)
            site.secrets.update(secrets)
            yield site
            if tls is None:
                assert (await site.request("/healthz")).status == 200, "the hub did not stay up"
            assert not hub.task.done()
    finally:
        database.close()
