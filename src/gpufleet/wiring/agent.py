"""Construction of the agent from its configuration."""

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpufleet.agent.agent import Agent
from gpufleet.agent.collect.release import ReleaseFolder
from gpufleet.agent.events.event_file import event_file
from gpufleet.config.agent import AgentConfig, parse_listen
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.machine import Machine
from gpufleet.ports.clock import Clock
from gpufleet.runtime import SystemClock
from gpufleet.wiring.connections import token_reader
from gpufleet.wiring.exports import make_exports
from gpufleet.wiring.guests import make_guests
from gpufleet.wiring.holders import make_holders
from gpufleet.wiring.probe import make_probe, probe_intervals
from gpufleet.wiring.readers import RELEASABLE_READERS, capabilities, has_binding, lane_overrides, make_readers
from gpufleet.wiring.running import CONNECTIONS, STOP_SECONDS, RunningDaemon
from gpufleet.wiring.snapshot import intervals

if TYPE_CHECKING:
    from gpufleet.delivery.outbox import Delivery
    from gpufleet.wiring.kubevirt import Kubevirt


@contextlib.asynccontextmanager
async def running_agent(config: AgentConfig) -> AsyncIterator[RunningDaemon]:
    """Run an agent while the context is open. Leaving the context stops it within a few seconds.

    Raises:
        ConfigError: if a token, headers file or CA file cannot be read.
        GpufleetError: if it cannot listen, or its certificate cannot be loaded.
        SpoolError: if a hub is configured and the spool cannot be opened.
    """
    # Imported here: a single snapshot does not load the server.
    from gpufleet.web.agent import AgentApp
    from gpufleet.web.server import serve
    from gpufleet.web.tls import ServerTls

    clock = SystemClock()
    name = config.node or socket.gethostname()
    host, port = parse_listen(config.listen)
    tls = ServerTls.of(config.tls)
    token = token_reader(config.token_file)
    async with contextlib.AsyncExitStack() as stack:
        readers = [*make_readers(config.readers, clock), *make_probe(config, clock)]
        folder = config.folder
        boot = _boot_id()
        kubevirt = _kubevirt(config, clock, stack)
        agent = Agent(
            readers,
            intervals=intervals(config),
            machine=Machine(name=name),
            name=config.node,
            clock=clock,
            pages=AgentPages(
                config.metrics.dialect_names,
                holder_labels=config.metrics.holder_labels,
                dcgm_pod_labels=config.metrics.dcgm_pod_labels,
            ),
            delivery=await _delivery(config, name, clock, stack),
            capabilities=capabilities(config.readers, binding=has_binding()),
            keeper=event_file(folder / "events.json"),
            boot=boot,
            release=ReleaseFolder(folder, clock.now_ns),
            releasable=RELEASABLE_READERS & {reader.name for reader, _ in readers},
            guests=make_guests(config, folder, clock, kubevirt),
            holders=make_holders(config, clock, boot=boot, vmis=kubevirt.copy if kubevirt is not None else None),
            paces={
                **lane_overrides(config.readers, intervals(config)),
                "probe": probe_intervals(intervals(config)),
            },
            exports=make_exports(config, name, clock),
        )
        bound = await stack.enter_async_context(
            serve(AgentApp(agent, token), host, port, connections=CONNECTIONS, stop_seconds=STOP_SECONDS, tls=tls)
        )
        task = asyncio.create_task(agent.run(), name="agent")
        try:
            yield RunningDaemon(host=host, port=bound, secure=tls is not None, task=task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _kubevirt(config: AgentConfig, clock: Clock, stack: contextlib.AsyncExitStack) -> "Kubevirt | None":
    if not config.kubevirt.enabled:
        return None
    from gpufleet.wiring.kubevirt import open_kubevirt  # loads the client of the Kubernetes API only if used

    return open_kubevirt(config, clock, stack)


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


async def _delivery(
    config: AgentConfig, sender: str, clock: Clock, stack: contextlib.AsyncExitStack
) -> "Delivery | None":
    if config.hub.url is None:
        return None
    # Imported here: an agent without a hub does not load the HTTP client.
    from gpufleet.wiring.delivery import open_delivery

    return await open_delivery(
        config.hub,
        config.spool,
        folder=config.folder,
        cluster=config.cluster,
        sender=sender,
        client="gpufleet-agent",
        config_hash=hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16],
        clock=clock,
        stack=stack,
    )
