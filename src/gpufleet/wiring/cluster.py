"""Construction of the cluster collector from its configuration."""

import asyncio
import contextlib
import functools
import hashlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpufleet.cluster.collector import ClusterCollector
from gpufleet.cluster.owners import PodOwners
from gpufleet.config.agent import parse_listen
from gpufleet.config.cluster import ClusterAgentConfig, CollectConfig
from gpufleet.exporters.cluster_page import render_cluster_page
from gpufleet.exporters.exposition import PageFormat
from gpufleet.holders.kubernetes.connection import SERVICE_ACCOUNT, ApiConnection
from gpufleet.holders.kubernetes.identity import ApiIdentity
from gpufleet.holders.kubernetes.lease import LeaderElection
from gpufleet.holders.kubernetes.listing import Convert
from gpufleet.holders.kubernetes.mirror import ResourceMirror
from gpufleet.holders.kubernetes.owners import OwnerWalk
from gpufleet.holders.kubernetes.parse.dynamic_resources import parse_claim, parse_slice
from gpufleet.holders.kubernetes.parse.nodes import NODE_LABELS, parse_node
from gpufleet.holders.kubernetes.parse.pods import NO_LABELS, POD_LABELS, PodSelection, parse_pod
from gpufleet.holders.kubernetes.parse.virtual_machines import VMI_ANNOTATIONS, VMI_LABELS, VmiSelection, parse_vmi
from gpufleet.holders.kubernetes.resources import (
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VIRTUAL_MACHINE_INSTANCES,
    ApiResource,
)
from gpufleet.model.errors import ConfigError
from gpufleet.model.stored.kubernetes import ClusterObject, ObjectKind
from gpufleet.ports.clock import Clock
from gpufleet.ports.cluster import ResourceCopy
from gpufleet.runtime import SystemClock
from gpufleet.wiring.connections import token_reader
from gpufleet.wiring.kubernetes import allow_list, api_access
from gpufleet.wiring.running import CONNECTIONS, STOP_SECONDS, RunningDaemon

if TYPE_CHECKING:
    from gpufleet.delivery.outbox import Delivery


@contextlib.asynccontextmanager
async def running_cluster_agent(config: ClusterAgentConfig) -> AsyncIterator[RunningDaemon]:
    """Run a cluster collector while the context is open. Leaving the context stops it within a few seconds.

    Raises:
        ConfigError: if the credentials of the API server, a token or a CA file cannot be read, or the namespace of the
            Lease is unknown.
        GpufleetError: if it cannot listen, or its certificate cannot be loaded.
        SpoolError: if a hub is configured and the spool cannot be opened.
    """
    # Imported here: reading a configuration does not load the server.
    from gpufleet.web.cluster_app import ClusterApp
    from gpufleet.web.server import serve
    from gpufleet.web.tls import ServerTls

    clock = SystemClock()
    host, port = parse_listen(config.listen)
    tls = ServerTls.of(config.tls)
    token = token_reader(config.token_file)
    async with contextlib.AsyncExitStack() as stack:
        connection = ApiConnection(api_access(config.api))
        stack.push_async_callback(connection.close)
        collector = ClusterCollector(
            make_copies(config.collect, connection, clock),
            owners=PodOwners(OwnerWalk(connection, clock), clock) if config.collect.owners else None,
            election=make_election(config, connection, clock),
            identity=ApiIdentity(connection),
            delivery=await _delivery(config, clock, stack),
            clock=clock,
            cluster=config.cluster or "",
            replica=config.replica,
        )

        def page(syntax: PageFormat) -> bytes:
            outbox = collector.delivery.outbox if collector.delivery is not None else None
            return render_cluster_page(
                collector.status(),
                outbox.stats if outbox is not None else None,
                outbox.queue_stats() if outbox is not None else None,
                now_ns=clock.now_ns(),
                syntax=syntax,
            )

        app = ClusterApp(collector, page, token)
        bound = await stack.enter_async_context(
            serve(app, host, port, connections=CONNECTIONS, stop_seconds=STOP_SECONDS, tls=tls)
        )
        task = asyncio.create_task(collector.run(), name="cluster collector")
        try:
            yield RunningDaemon(host=host, port=bound, secure=tls is not None, task=task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def collected_resources(collect: CollectConfig) -> dict[ObjectKind, tuple[ApiResource, Convert[Any]]]:
    """Return the collected resources, each with its parser."""
    pods = PodSelection(
        labels=allow_list(POD_LABELS, collect.pod_labels), annotations=allow_list(NO_LABELS, collect.pod_annotations)
    )
    vmis = VmiSelection(
        labels=allow_list(VMI_LABELS, collect.vmi_labels),
        annotations=allow_list(VMI_ANNOTATIONS, collect.vmi_annotations),
    )
    found: dict[ObjectKind, tuple[ApiResource, Convert[Any]]] = {
        ObjectKind.NODE: (NODES, functools.partial(parse_node, labels=allow_list(NODE_LABELS, collect.node_labels)))
    }
    if collect.pods:
        found[ObjectKind.POD] = PODS, functools.partial(parse_pod, selection=pods)
    if collect.resource_slices:
        found[ObjectKind.SLICE] = RESOURCE_SLICES, parse_slice
    if collect.resource_claims:
        found[ObjectKind.CLAIM] = RESOURCE_CLAIMS, parse_claim
    if collect.virtual_machines:
        found[ObjectKind.VMI] = VIRTUAL_MACHINE_INSTANCES, functools.partial(parse_vmi, selection=vmis)
    return found


def make_copies(
    collect: CollectConfig, connection: ApiConnection, clock: Clock
) -> dict[ObjectKind, ResourceCopy[ClusterObject]]:
    """Return the copies of the collected resources."""
    return {
        kind: ResourceMirror(connection, resource, convert, clock)
        for kind, (resource, convert) in collected_resources(collect).items()
    }


def make_election(config: ClusterAgentConfig, connection: ApiConnection, clock: Clock) -> LeaderElection | None:
    """Return the leader election, or None if it is not enabled.

    Raises:
        ConfigError: if the namespace of the Lease is unknown.
    """
    if not config.lease.enabled:
        return None
    # The random part keeps two replicas with the same name, by a wrong configuration, from leading together.
    identity = f"{config.replica}_{secrets.token_hex(4)}"
    return LeaderElection(connection, lease_namespace(config), config.lease.name, identity, clock)


def lease_namespace(config: ClusterAgentConfig, service_account: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace of the Lease: as configured, or that of this pod.

    Raises:
        ConfigError: if it is not configured and this process does not run in a pod.
    """
    if config.lease.namespace is not None:
        return config.lease.namespace
    file = service_account / "namespace"
    try:
        namespace = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        namespace = ""
    if not namespace:
        reason = "must be set outside a pod; with a single replica, set lease.enabled = false instead"
        raise ConfigError("configuration", "lease.namespace", reason)
    return namespace


async def _delivery(config: ClusterAgentConfig, clock: Clock, stack: contextlib.AsyncExitStack) -> "Delivery | None":
    if config.hub.url is None or config.cluster is None:
        return None
    from gpufleet.wiring.delivery import open_delivery

    return await open_delivery(
        config.hub,
        config.spool,
        folder=config.folder,
        cluster=config.cluster,
        sender=config.replica,
        client="gpufleet-cluster-agent",
        config_hash=hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16],
        clock=clock,
        stack=stack,
    )
