"""Access that a hub and a relay report to the caller of `GET /v1/access`."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpufleet.config.hub import HubConfig, RelayConfig
from gpufleet.model.access import PostRefusal, Principal, Role
from gpufleet.web.hub.callers import describe_access
from gpufleet.wiring.relay import running_relay
from tests.support.processes import get_json
from tests.web.hub.site import running_site


@pytest.mark.parametrize(
    ("role", "bound", "cluster", "refusal"),
    [
        (Role.SENDER, "a", "a", None),
        (Role.SENDER, "a", None, None),
        (Role.SENDER, "a", "b", PostRefusal.OTHER_CLUSTER),
        (Role.SENDER, "c", "b", PostRefusal.OTHER_CLUSTER),
        (Role.SENDER, "c", None, PostRefusal.FOREIGN_CLUSTER),
        (Role.TENANT, None, "a", PostRefusal.NOT_A_SENDER),
        (Role.ADMIN, None, "c", PostRefusal.NOT_A_SENDER),
    ],
)
def test_refusal_follows_role_binding_and_served_clusters(
    role: Role, bound: str | None, cluster: str | None, refusal: PostRefusal | None
) -> None:
    access = describe_access(Principal(id="x", roles=frozenset({role}), cluster=bound), cluster, ("a", "b"))
    assert (access.id, access.roles, access.cluster, access.refusal) == ("x", (role,), bound, refusal)


async def test_hub_and_relay_report_whether_a_cluster_is_served(tmp_path: Path) -> None:
    async def refusal(url: str, query: str) -> Any:
        return (await asyncio.to_thread(get_json, f"{url}/v1/access{query}"))["refusal"]

    relay_config = HubConfig(
        listen="127.0.0.1:0", state=str(tmp_path / "relay"), relay=RelayConfig(to="http://127.0.0.1:1")
    )
    async with running_site(tmp_path) as site, running_relay(relay_config) as relay:
        for url in (site.hub.url, relay.url):
            assert await refusal(url, "?cluster=local") is None
            assert await refusal(url, "") is None
            assert await refusal(url, "?cluster=unknown%2Fone") == "foreign_cluster"


@pytest.mark.parametrize("path", ["/v1/access?clutser=x", "/v1/access?cluster=a&cluster=b", "/v1/senders?cluster=a"])
async def test_hub_and_relay_reject_unknown_and_repeated_parameters(tmp_path: Path, path: str) -> None:
    relay_config = HubConfig(
        listen="127.0.0.1:0", state=str(tmp_path / "relay"), relay=RelayConfig(to="http://127.0.0.1:1")
    )
    async with running_site(tmp_path) as site, running_relay(relay_config) as relay, aiohttp.ClientSession() as client:
        for url in (site.hub.url, relay.url):
            async with client.get(url + path) as answer:
                error = await answer.json()
                assert (answer.status, error["error"]) == (400, "bad_request")
                assert error["field"] in ("clutser", "cluster")
