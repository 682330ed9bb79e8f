"""`gpufleet up`: hub and agent on this host in one process, to try everything at once."""

import asyncio
import contextlib
import logging
import os
import sys
from typing import Annotated, Any

import msgspec
import typer

from gpufleet.cli.daemon import run_until_stopped
from gpufleet.cli.fetch import get, send
from gpufleet.cli.logs import set_up_logs
from gpufleet.cli.options import CommandError
from gpufleet.config.agent import ENV_PREFIX as AGENT_PREFIX
from gpufleet.config.agent import AgentConfig
from gpufleet.config.hub import ENV_PREFIX as HUB_PREFIX
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import load
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.errors import ConfigError
from gpufleet.model.time import to_datetime

log = logging.getLogger(__name__)

ALLOCATION = "this-host"
"""The allocation that is put for this host, so that there is an answer to look at."""

ALWAYS = to_datetime(0)
"""Whoever runs this owns the host already: what was measured a moment ago is theirs."""

FIRST_REPORT_SECONDS = 60.0


def up(
    state: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where everything is kept.")] = None,
    hub_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The hub answers here [default: 127.0.0.1:8470].")
    ] = None,
    agent_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The agent answers here [default: 127.0.0.1:9470].")
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run hub and agent on this host, with the embedded store. Ctrl-C stops both."""
    hub = load(
        HubConfig,
        file=None,
        env_prefix=HUB_PREFIX,
        env=os.environ,
        flags={"listen": hub_listen, "state": state, "log_level": log_level},
    )
    agent = load(
        AgentConfig,
        file=None,
        env_prefix=AGENT_PREFIX,
        env=os.environ,
        flags={"listen": agent_listen, "state": state, "log_level": log_level},
    )
    for daemon, prefix in ((hub, HUB_PREFIX), (agent, AGENT_PREFIX)):
        if daemon.tls.is_on:
            raise ConfigError(
                prefix, "tls", "`gpufleet up` is for a first look: run `gpufleet hub` and `gpufleet agent`"
            )
    if hub.auth != "none" or agent.token_file is not None:
        raise ConfigError(HUB_PREFIX, "auth", "`gpufleet up` knows no tokens: run `gpufleet hub` and `gpufleet agent`")
    set_up_logs(log_level)
    run_until_stopped(lambda stop: run_both(hub, agent, stop))


async def run_both(hub: HubConfig, agent: AgentConfig, stop: asyncio.Event) -> None:
    """Run both until `stop` is set, or one of them fails; say where to look once there is something to see."""
    from gpufleet.wiring.agent import running_agent
    from gpufleet.wiring.hub import running_hub

    async with running_hub(hub) as running, contextlib.AsyncExitStack() as stack:
        pushing = msgspec.structs.replace(agent, hub=msgspec.structs.replace(agent.hub, url=running.url))
        reading = await stack.enter_async_context(running_agent(pushing))
        say(f"gpufleet is up: hub at {running.url}, agent at {reading.url}. Waiting for the first report ...")
        stopping = asyncio.create_task(stop.wait())
        greeting = asyncio.create_task(greet(running.url, reading.url))
        await asyncio.wait({running.task, reading.task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, greeting):
            task.cancel()
        say("Stopping.")
        with contextlib.suppress(asyncio.CancelledError):
            await greeting
        for daemon in (running.task, reading.task):
            if daemon.done():
                daemon.result()


async def greet(hub: str, agent: str) -> None:
    """Wait for the first report, put an allocation for this host, and say where to look."""
    try:
        machine = await asyncio.wait_for(this_machine(hub, agent), FIRST_REPORT_SECONDS)
        spec = AllocationSpec(
            kind=AllocationKind.BARE_METAL,
            target=Target(cluster=machine["cluster"], machine=machine["id"]),
            valid_from=ALWAYS,
        )
        await asyncio.to_thread(
            send, hub, f"/v1/allocations/{ALLOCATION}", method="PUT", body=msgspec.json.encode(spec)
        )
    except TimeoutError:
        log.warning("the hub has had no report of this host for %g s: see the messages above", FIRST_REPORT_SECONDS)
        return
    except CommandError as error:
        log.warning("nothing to show: %s", error)
        return
    command = sys.argv[0]
    say(
        f"""
  this host, as Prometheus sees it    {agent}/metrics
  this host, as one document          {agent}/v1/snapshot
  every node the hub knows            {hub}/v1/nodes
  what this allocation's owner sees   {hub}/v1/allocations/{ALLOCATION}/metrics
  the whole API                       {hub}/openapi.json

  in another terminal:  {command} snapshot
                        {command} why {ALLOCATION} --hub {hub}
                        {command} query nodes --hub {hub}

Ctrl-C stops."""
    )


async def this_machine(hub: str, agent: str) -> dict[str, Any]:
    """Return the hub's record of the agent's machine, as soon as the hub has one."""
    while True:
        snapshot = msgspec.json.decode(await asyncio.to_thread(get, agent, "/v1/snapshot"))
        page: dict[str, Any] = msgspec.json.decode(await asyncio.to_thread(get, hub, "/v1/nodes"))
        for node in page["items"]:
            record: dict[str, Any] = node["machine"]
            if record["machine"]["name"] == snapshot["node"]["name"]:
                return record
        await asyncio.sleep(0.2)


def say(words: str) -> None:
    """Print at once, also into a pipe."""
    print(words, flush=True)
