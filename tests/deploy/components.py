"""Components of the chart, run with the credentials of their service account, and their checks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from gpufleet.config.agent import ENV_PREFIX as AGENT_PREFIX
from gpufleet.config.agent import AgentConfig
from gpufleet.config.cluster import ENV_PREFIX as CLUSTER_PREFIX
from gpufleet.config.cluster import ClusterAgentConfig
from gpufleet.config.load import load
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict, Owner
from gpufleet.model.kubernetes import ChainEnd, CopyState
from gpufleet.runtime import SystemClock
from gpufleet.wiring.agent import running_agent
from gpufleet.wiring.cluster import running_cluster_agent
from gpufleet.wiring.kubernetes import make_enrichment
from tests.deploy.site import CHAINS, GUEST, Site
from tests.holders.kubevirt.objects import NODE
from tests.support.helm import environment_of
from tests.support.kube_roles import InstalledRoles
from tests.support.processes import get_json

OK, FAILED, PENDING = "ok", "failed", "pending"

Checks = dict[str, str]
"""Name of a check of a component to its result."""

Component = Callable[[InstalledRoles, Site], AbstractAsyncContextManager[Callable[[], Awaitable[Checks]]]]
"""Runs a component with its credentials, and gives its checks."""


@contextlib.asynccontextmanager
async def running_collector(installed: InstalledRoles, _: Site) -> AsyncIterator[Callable[[], Awaitable[Checks]]]:
    environment = without_hub(environment_of(installed.pod))
    own = {"LISTEN": "127.0.0.1:0", "STATE": str(installed.folder), "API__KUBECONFIG": str(installed.kubeconfig)}
    environment |= {f"{CLUSTER_PREFIX}{key}": value for key, value in own.items()}
    config = load(ClusterAgentConfig, file=None, env_prefix=CLUSTER_PREFIX, env=environment, flags={})
    async with running_cluster_agent(config) as running, aiohttp.ClientSession() as session:

        async def checks() -> Checks:
            async with session.get(f"{running.url}/v1/snapshot") as answer:
                return collector_checks(await answer.json())

        yield checks


def collector_checks(document: Mapping[str, Any]) -> Checks:
    """Return the checks of a collector's snapshot: its copies, its identity, its lease and the owners of pods."""
    status = document["status"]
    states = {CopyState.SYNCED: OK, CopyState.STARTING: PENDING}
    found = {one["resource"]: states.get(CopyState(one["state"]), FAILED) for one in status["copies"]}
    found["identity"] = PENDING if not status["server_version"] else OK if status["system_uid"] else FAILED
    found["lease"] = OK if status["is_leader"] else FAILED if status["election_error"] else PENDING
    ends = {ChainEnd.TOP: OK, ChainEnd.NOT_READ: PENDING}
    pods = {one["name"]: one for one in document["pods"] if one["name"] in CHAINS}
    for name, one in pods.items():
        found[f"owners of {name}"] = ends.get(ChainEnd(one.get("chain_end", ChainEnd.NOT_READ)), FAILED)
    found["walks"] = PENDING if status["queued_walks"] or (found["pods"] == OK and len(pods) < len(CHAINS)) else OK
    return found


@contextlib.asynccontextmanager
async def running_node_agent(installed: InstalledRoles, _: Site) -> AsyncIterator[Callable[[], Awaitable[Checks]]]:
    async with running_agent(agent_config(installed)) as running:

        async def checks() -> Checks:
            return agent_checks(await asyncio.to_thread(get_json, f"{running.url}/v1/snapshot"))

        yield checks


@contextlib.asynccontextmanager
async def running_enrichment(installed: InstalledRoles, site: Site) -> AsyncIterator[Callable[[], Awaitable[Checks]]]:
    """Run an agent, and besides it the enrichment of holdings, which its kubelet would report."""
    enrichment = make_enrichment(agent_config(installed).kubernetes, SystemClock())
    holdings = {name: holding_of(name, uid) for name, uid in site.pods.items()}
    async with running_node_agent(installed, site) as agent:
        task = asyncio.create_task(enrichment.run(lambda: NODE))

        async def checks() -> Checks:
            enrichment.update(holdings.values())
            owners = {name: enrichment.complete(one).holder.owners for name, one in holdings.items()}
            return await agent() | enrichment_checks(enrichment.capability, owners)

        try:
            yield checks
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def holding_of(name: str, uid: str) -> Holding:
    holder = Holder(kind=HolderKind.POD, id=uid, name=name)
    return Holding(view=f"gpu/{name}", holder=holder, since=1, methods=(), verdict=HoldingVerdict.DECLARED_ONLY)


def enrichment_checks(capability: str, owners: Mapping[str, Sequence[Owner]]) -> Checks:
    """Return the checks of an enrichment: its copy of the pods, and their owners if the copy is current."""
    states = {"available": OK, "partial": OK, "not_permitted": FAILED}
    found = {"pods": states.get(capability.partition(":")[0], PENDING)}
    for name, chain in CHAINS.items() if found["pods"] == OK else ():
        is_unread = any(f"{kind} (forbidden)" in capability for kind in chain)
        found[f"owners of {name}"] = FAILED if is_unread else OK if owners[name] else PENDING
    return found


def agent_config(installed: InstalledRoles) -> AgentConfig:
    environment = without_hub(environment_of(installed.pod))
    own = {
        "LISTEN": "127.0.0.1:0",
        "STATE": str(installed.folder),
        "READERS__HOST__K8S_NODE_NAME": NODE,
        "READERS__NVML__ENABLED": "false",
        "KUBEVIRT__KUBECONFIG": str(installed.kubeconfig),
        "KUBERNETES__KUBECONFIG": str(installed.kubeconfig),
    }
    environment |= {f"{AGENT_PREFIX}{key}": value for key, value in own.items()}
    return load(AgentConfig, file=None, env_prefix=AGENT_PREFIX, env=environment, flags={})


def agent_checks(document: Mapping[str, Any]) -> Checks:
    """Return the checks of an agent's snapshot: its virtual machines, and the connection to the guest."""
    is_failing = document["capabilities"].get("guests", "").startswith("failing")
    guests = {one["name"]: one["state"] for one in document["guests"]}
    return {
        "machines": FAILED if is_failing else OK if guests else PENDING,
        "guest": FAILED if guests.get(GUEST) == "not_permitted" else OK,
    }


def without_hub(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if "_HUB__" not in name}
