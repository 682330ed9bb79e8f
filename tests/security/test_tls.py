"""TLS of hub and agent: delivery, and replacement of certificates and tokens at runtime."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.config.agent import AgentConfig, HubClientConfig, LanesConfig, NvmlConfig, ReadersConfig
from gpufleet.config.tls import TlsConfig
from gpufleet.model.access import Role
from gpufleet.model.errors import GpufleetError
from gpufleet.web.tls import ServerTls
from gpufleet.wiring.agent import running_agent
from gpufleet.wiring.running import RunningDaemon
from tests.security.guarded import Guarded, exchange, guarded
from tests.support.authority import Authority, put_in_place
from tests.support.waiting import PATIENCE, wait_until_async


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(tmp_path: Path, authority: Authority) -> TlsConfig:
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    authority.issue(certificate, key)
    return TlsConfig(certificate=str(certificate), key=str(key))


async def presented_certificate(port: int) -> str:
    """Return the certificate that a listener presents, without checking it."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=10 * PATIENCE)


async def healthy(port: int, authority: Authority) -> bool:
    reply = await asyncio.to_thread(exchange, port, "GET", "/healthz", {}, None, authority.trusting)
    return reply.status == 200


@contextlib.asynccontextmanager
async def agent_of(folder: Path, site: Guarded, **changes: object) -> AsyncIterator[RunningDaemon]:
    token_file = folder / "sender.token"
    if not token_file.exists():
        token_file.write_text(site.secrets[Role.SENDER] + "\n")
    hub: dict[str, object] = {"url": site.hub.url, "token_file": str(token_file), "heartbeat_seconds": 1.0}
    own = {name: changes.pop(name) for name in ("listen", "token_file", "tls") if name in changes}
    config = AgentConfig(
        listen="127.0.0.1:0",
        state=str(folder),
        node="n1",
        readers=ReadersConfig(nvml=NvmlConfig(enabled=False)),
        lanes=LanesConfig(fast=1.0, slow=5.0),
        hub=HubClientConfig(**{**hub, **changes}),  # type: ignore[arg-type]  # test values
        **own,  # type: ignore[arg-type]
    )
    async with running_agent(config) as agent:
        yield agent
        assert not agent.task.done(), "the agent did not stay up"


async def arrives(site: Guarded, more: int = 1) -> None:
    """Wait until more batches than now are in the store."""
    expected = len(site.store.seqs) + more

    async def stored() -> bool:
        return len(site.store.seqs) >= expected

    await wait_until_async(stored, seconds=40, what="a batch to be stored")


async def refusals(site: Guarded, what: str) -> float:
    page = (await asyncio.to_thread(_metrics, site)).decode()
    lines = [line for line in page.splitlines() if line.startswith(what)]
    return float(lines[0].split()[-1]) if lines else 0.0


def _metrics(site: Guarded) -> bytes:
    headers = {"Authorization": f"Bearer {site.secrets[Role.OPERATOR]}"}
    return exchange(site.hub.port, "GET", "/metrics", headers, None).body


async def test_agent_delivers_over_tls_with_its_token(tmp_path: Path, authority: Authority, pair: TlsConfig) -> None:
    async with guarded(tmp_path, pair) as site, agent_of(tmp_path, site, ca=str(authority.file)):
        assert site.hub.url.startswith("https://")
        await arrives(site)
    assert site.store.writes[0][1][0].batch.sender == "n1"


async def test_hub_of_another_authority_receives_nothing(tmp_path: Path, pair: TlsConfig) -> None:
    other = Authority(tmp_path, "other")
    async with guarded(tmp_path, pair) as site, agent_of(tmp_path, site, ca=str(other.file)) as agent:

        async def failed() -> bool:
            page = (await asyncio.to_thread(exchange, agent.port, "GET", "/metrics", {}, None)).body.decode()
            lines = [one for one in page.splitlines() if one.startswith("gpufleet_push_failures_total")]
            return bool(lines) and float(lines[0].split()[-1]) > 0

        await wait_until_async(failed, what="the agent to fail")
        assert site.store.seqs == []


async def test_noise_at_a_tls_port_ends_only_its_connection(
    tmp_path: Path, authority: Authority, pair: TlsConfig
) -> None:
    async with guarded(tmp_path, pair) as site, agent_of(tmp_path, site, ca=str(authority.file), tls=pair) as agent:
        for port in (site.hub.port, agent.port):
            for noise in (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\x00" * 600, b""):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(noise)
                writer.write_eof()
                with contextlib.suppress(ConnectionError):
                    assert b"HTTP/1.1 200" not in await asyncio.wait_for(reader.read(), 10)
                writer.close()
            assert await healthy(port, authority)
        await arrives(site)


def test_old_protocols_are_refused(pair: TlsConfig) -> None:
    server_tls = ServerTls.of(pair)
    assert server_tls
    assert server_tls.context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_replaced_certificates_are_loaded_while_running(
    tmp_path: Path, authority: Authority, pair: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert pair.certificate
    assert pair.key
    async with guarded(tmp_path, pair) as site, agent_of(tmp_path, site, ca=str(authority.file), tls=pair) as agent:
        await arrives(site)
        ports = (site.hub.port, agent.port)
        before = [await presented_certificate(port) for port in ports]
        assert before[0] == before[1]
        # invalid key and certificate: the loaded pair stays in use
        put_in_place(Path(pair.key), b"no key")
        put_in_place(Path(pair.certificate), b"no certificate")

        async def failed() -> bool:
            return sum(one.levelname == "ERROR" and "certificate" in one.getMessage() for one in caplog.records) >= 2

        await wait_until_async(failed, what="both daemons to log the invalid files")
        assert [await presented_certificate(port) for port in ports] == before
        authority.issue(Path(pair.certificate), Path(pair.key))

        async def changed() -> bool:
            return all([await presented_certificate(port) not in before for port in ports])

        await wait_until_async(changed, what="the new certificate")
        for port in ports:
            assert await healthy(port, authority)
        await arrives(site)


async def test_replaced_token_file_is_read_by_a_running_agent(tmp_path: Path) -> None:
    async with guarded(tmp_path) as site:
        put_in_place(tmp_path / "sender.token", b"gpf_" + b"a" * 12 + b"_" + b"a" * 43)
        async with agent_of(tmp_path, site):

            async def refused() -> bool:
                return await refusals(site, 'gpufleet_hub_unauthenticated_requests_total{reason="bad_token"}') >= 1

            await wait_until_async(refused, what="the hub to refuse the agent")
            put_in_place(tmp_path / "sender.token", b"")  # without a token nothing is sent
            put_in_place(tmp_path / "sender.token", site.secrets[Role.SENDER].encode())
            await arrives(site)
        assert min(site.store.seqs) == 1, "the refused batches were queued"


async def test_agent_api_requires_its_token(tmp_path: Path) -> None:
    own = tmp_path / "own.token"
    own.write_text("a-token-of-any-shape\n")
    async with guarded(tmp_path) as site, agent_of(tmp_path, site, token_file=str(own)) as agent:

        async def status(path: str, token: str | None, method: str = "GET") -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return (await asyncio.to_thread(exchange, agent.port, method, path, headers, None)).status

        for path in ("/", "/metrics", "/v1/snapshot", "/nothing"):
            assert [await status(path, token) for token in (None, "wrong", "")] == [401, 401, 401], path
            assert await status(path, None, "HEAD") == 401
            assert await status(path, "a-token-of-any-shape") == (404 if path == "/nothing" else 200)
        assert await status("/healthz", None) == 200
        put_in_place(own, b"another")
        assert await status("/metrics", "a-token-of-any-shape") == 401
        assert await status("/metrics", "another") == 200
        own.unlink()
        assert await status("/metrics", "another") == 503  # closed, not open
        assert await status("/healthz", None) == 200


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_invalid_certificate_fails_the_start(tmp_path: Path, pair: TlsConfig, content: bytes) -> None:
    assert pair.certificate
    Path(pair.certificate).write_bytes(content)
    with pytest.raises(GpufleetError, match=r"server\.crt"):
        ServerTls.of(pair)


def test_missing_or_mismatched_key_fails_the_start(tmp_path: Path, pair: TlsConfig, authority: Authority) -> None:
    assert pair.certificate
    assert pair.key
    with pytest.raises(GpufleetError, match="No such file"):
        ServerTls(pair.certificate, str(tmp_path / "none"))
    authority.issue(tmp_path / "other.crt", tmp_path / "other.key")
    with pytest.raises(GpufleetError, match="KEY_VALUES_MISMATCH"):
        ServerTls(pair.certificate, str(tmp_path / "other.key"))
