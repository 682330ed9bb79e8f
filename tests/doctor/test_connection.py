"""Connection of a node to its hub: each step against a real hub, and its verdict."""

import asyncio
import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.config.agent import AgentConfig, HubClientConfig
from gpufleet.config.tls import TlsConfig
from gpufleet.doctor import CheckVerdict, NodeFacts
from gpufleet.doctor.checks.connection import HUB_CHECKS
from gpufleet.doctor.connection import (
    DeliveryState,
    HubConnection,
    TlsFailure,
    TlsProblem,
    parse_delivery,
    probe_hub,
    stopped_delivery,
)
from gpufleet.model.access import CallerAccess, PostRefusal, Role
from gpufleet.spool import Spool
from tests.security.guarded import Guarded, exchange, guarded
from tests.support.authority import Authority
from tests.support.serving import serving

OK, WARNING, FAILED, UNKNOWN = CheckVerdict.OK, CheckVerdict.WARNING, CheckVerdict.FAILED, CheckVerdict.UNKNOWN
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


class Node(msgspec.Struct):
    """Node that is allowed to connect to a hub over TLS."""

    site: Guarded
    folder: Path
    authority: Authority

    @property
    def tls(self) -> ssl.SSLContext:
        return self.authority.trusting

    async def probe(self, cluster: str = "local", role: Role | None = Role.SENDER, **changed: Any) -> HubConnection:
        token = self.folder / "token"
        token.write_text(self.site.secrets[role] if role else "")
        token.chmod(0o600)
        hub = HubClientConfig(
            url=self.site.hub.url, token_file=str(token) if role else None, ca=str(self.authority.file)
        )
        hub = msgspec.structs.replace(hub, **changed)
        return await asyncio.to_thread(probe_hub, hub, cluster=cluster, now=dt.datetime.now(dt.UTC))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    authority = Authority(tmp_path)
    pair = TlsConfig(certificate=str(tmp_path / "crt"), key=str(tmp_path / "key"))
    authority.issue(tmp_path / "crt", tmp_path / "key")
    async with guarded(tmp_path, pair) as site:
        yield Node(site, tmp_path, authority)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def judge(hub: HubConnection) -> dict[str, CheckVerdict]:
    return {check.name: check.verdict for check in (one(NodeFacts(hub=hub)) for one in HUB_CHECKS)}


async def test_good_connection_passes_every_step(node: Node) -> None:
    hub = await node.probe()
    assert judge(hub) == {
        "hub_name": OK,
        "hub_tcp": OK,
        "hub_tls": OK,
        "hub_token": OK,
        "hub_cluster": OK,
        "hub_clock": OK,
        "hub_delivery": UNKNOWN,
    }
    senders = await asyncio.to_thread(
        exchange, node.site.hub.port, "GET", "/v1/senders", bearer(node.site.secrets[Role.ADMIN]), None, node.tls
    )
    assert senders.document == [], "nothing was posted"


async def test_each_wrong_setting_fails_its_own_step(node: Node, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    port = node.site.hub.port
    for changed, name, cause in (
        ({"url": f"https://hub.invalid:{port}"}, "hub_name", None),
        ({"url": "https://127.0.0.1:1"}, "hub_tcp", None),
        ({"ca": str(other.file)}, "hub_tls", TlsProblem.CHAIN),
        ({"ca": str(tmp_path / "none")}, "hub_tls", TlsProblem.CA_FILE),
        ({"url": f"https://localhost:{port}"}, "hub_tls", TlsProblem.NAME),
        ({"token_file": str(tmp_path / "none")}, "hub_token", None),
    ):
        hub = await node.probe("local", Role.SENDER, **changed)
        verdicts = judge(hub)
        assert verdicts[name] is FAILED, (name, hub)
        assert [one for one, verdict in verdicts.items() if verdict is FAILED] == [name], hub
        if cause is not None:
            assert isinstance(hub.tls, TlsFailure)
            assert hub.tls.problem is cause


async def test_expired_certificate_and_plain_http_are_recognised(node: Node, tmp_path: Path) -> None:
    node.authority.issue(tmp_path / "crt2", tmp_path / "key2", dt.datetime.now(dt.UTC) - dt.timedelta(days=1))
    pair = TlsConfig(certificate=str(tmp_path / "crt2"), key=str(tmp_path / "key2"))
    async with guarded(tmp_path / "expired", pair) as site:
        hub = await node.probe(url=site.hub.url)
    assert isinstance(hub.tls, TlsFailure)
    assert hub.tls.problem is TlsProblem.TIME
    with serving(lambda: b"") as address:
        hub = await node.probe(url=f"https://{address}")
        assert isinstance(hub.tls, TlsFailure)
        assert hub.tls.problem is TlsProblem.PROTOCOL
        hub = await node.probe(role=None, url=f"http://{address}")
    assert judge(hub)["hub_token"] is FAILED, "another server responds"


async def test_url_of_the_web_page_is_no_hub(node: Node) -> None:
    hub = await node.probe(url=f"{node.site.hub.url}/ui/")
    assert [name for name, verdict in judge(hub).items() if verdict is FAILED] == ["hub_token"]


async def test_token_and_cluster_are_judged_by_the_hub(node: Node) -> None:
    for role, cluster, refusal, failed in (
        (Role.OPERATOR, "local", PostRefusal.NOT_A_SENDER, "hub_token"),
        (Role.SENDER, "other", PostRefusal.OTHER_CLUSTER, "hub_cluster"),
        (Role.SENDER, "local", None, ""),
    ):
        hub = await node.probe(cluster, role)
        assert isinstance(hub.answer, CallerAccess)
        assert hub.answer.refusal is refusal
        assert [name for name, verdict in judge(hub).items() if verdict is FAILED] == [failed][: bool(failed)]
    assert judge(await node.probe(role=None))["hub_token"] is FAILED


async def test_token_that_others_can_read_fails(node: Node, tmp_path: Path) -> None:
    hub = await node.probe()
    assert judge(msgspec.structs.replace(hub, token_mode=0o640))["hub_token"] is OK
    assert judge(msgspec.structs.replace(hub, token_mode=0o644))["hub_token"] is FAILED


async def test_clock_difference_is_reported(node: Node) -> None:
    hub = await node.probe()
    for ahead, verdict in ((1.0, OK), (-30.0, WARNING), (30.0, WARNING), (None, UNKNOWN)):
        assert judge(msgspec.structs.replace(hub, clock_ahead=ahead))["hub_clock"] is verdict


def test_port_without_an_answer_is_bounded_by_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hub = HubClientConfig(url=f"https://127.0.0.1:{listening.getsockname()[1]}", timeout_seconds=1.0)
        found = probe_hub(hub, cluster="local", now=NOW)
    assert isinstance(found.tls, str)
    assert judge(found)["hub_tls"] is FAILED


PAGE = """# HELP gpufleet_spool_records Batches queued in the spool
gpufleet_spool_records{node="a b"} 3
gpufleet_spool_bytes{node="a b"} 2048
gpufleet_push_failures_total{node="a b"} 1
gpufleet_push_last_success_timestamp_seconds{node="a b"} 1780272000.5
"""


def test_delivery_is_read_from_the_page_of_the_agent() -> None:
    found = parse_delivery(PAGE)
    assert isinstance(found, DeliveryState)
    assert (found.records, found.bytes, found.failures) == (3, 2048, 1)
    assert found.last_success == dt.datetime(2026, 6, 1, 0, 0, 0, 500_000, tzinfo=dt.UTC)
    assert isinstance(parse_delivery("up 1\n"), str)


def test_agent_without_an_open_spool_still_pushes() -> None:
    found = parse_delivery("".join(line for line in PAGE.splitlines(keepends=True) if "spool" not in line))
    assert isinstance(found, DeliveryState)
    assert (found.records, found.bytes, found.failures) == (None, None, 1)


@pytest.mark.parametrize(
    ("delivery", "verdict"),
    [
        (DeliveryState(records=0, bytes=0, last_success=NOW), OK),
        (DeliveryState(records=2, bytes=9, last_success=NOW - dt.timedelta(seconds=80)), OK),
        (DeliveryState(records=2, bytes=9, last_success=NOW - dt.timedelta(seconds=100)), FAILED),
        (DeliveryState(records=200, bytes=9, last_success=NOW), WARNING),
        (DeliveryState(records=2, bytes=9, failures=3), FAILED),
        (DeliveryState(records=None, bytes=None, failures=3), FAILED),
        (DeliveryState(records=None, bytes=None, last_success=NOW), WARNING),
        (DeliveryState(records=1, bytes=9), UNKNOWN),
        (DeliveryState(records=0, bytes=0, agent_error="stopped"), UNKNOWN),
        (DeliveryState(records=4, bytes=9, agent_error="stopped"), WARNING),
        ("not permitted", UNKNOWN),
    ],
)
def test_delivery_verdicts(delivery: DeliveryState | str, verdict: CheckVerdict) -> None:
    hub = HubConnection(url="https://hub:8470", at=NOW, delivery=delivery)
    assert judge(hub)["hub_delivery"] is verdict


def test_backlog_of_a_stopped_agent_is_read_from_its_spool(tmp_path: Path) -> None:
    config = AgentConfig(state=str(tmp_path))
    assert stopped_delivery(config, "stopped") == DeliveryState(records=0, bytes=0, agent_error="stopped")
    spool = Spool.open(config.folder / "spool", max_bytes=1 << 20, max_age_seconds=3600)
    spool.append(b"abc")
    spool.append(b"defg")
    spool.sync()
    spool.close()
    assert stopped_delivery(config, "stopped") == DeliveryState(records=2, bytes=7, agent_error="stopped")


def test_node_without_a_hub_needs_no_check() -> None:
    hub = probe_hub(HubClientConfig(), cluster="local", now=NOW)
    assert set(judge(hub).values()) == {CheckVerdict.NOT_APPLICABLE}
