"""`gpufleet up`: runs hub and agent on this host in one process, to try gpufleet."""

import asyncio
import contextlib
import logging
import sys
from typing import Annotated, Any

import msgspec
import typer

from gpufleet.cli.daemon import run_until_stopped, wait_until_stopped
from gpufleet.cli.fetch import get, send
from gpufleet.cli.logs import set_up_logs
from gpufleet.cli.options import CommandError
from gpufleet.cli.startup import load_daemon
from gpufleet.config.agent import ENV_PREFIX as AGENT_PREFIX
from gpufleet.config.agent import AgentConfig
from gpufleet.config.hub import ENV_PREFIX as HUB_PREFIX
from gpufleet.config.hub import HubConfig
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.errors import ConfigError
from gpufleet.model.time import to_datetime
from gpufleet.wiring.validation import check_agent, check_hub

log = logging.getLogger(__name__)

ALLOCATION = "this-host"
"""Id of the example allocation that is registered for this host."""

ALLOCATION_START = to_datetime(0)
"""Start of the example allocation: it includes all earlier readings of this host."""

FIRST_REPORT_SECONDS = 60.0


def up(
    state: Annotated[str | None, typer.Option(metavar="FOLDER", help="State folder of hub and agent.")] = None,
    hub_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the hub [default: 127.0.0.1:8470].")
    ] = None,
    agent_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the agent [default: 127.0.0.1:9470].")
    ] = None,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")
    ] = "warning",
) -> None:
    """Run hub and agent on this host with the embedded store. Ctrl-C stops both."""
    hub = load_daemon(
        HubConfig,
        check_hub,
        file=None,
        env_prefix=HUB_PREFIX,
        flags={"listen": hub_listen, "state": state, "log_level": log_level},
        named={"listen": "--hub-listen"},
    )
    agent = load_daemon(
        AgentConfig,
        check_agent,
        file=None,
        env_prefix=AGENT_PREFIX,
        flags={"listen": agent_listen, "state": state, "log_level": log_level},
        named={"listen": "--agent-listen"},
    )
    for daemon, prefix in ((hub, HUB_PREFIX), (agent, AGENT_PREFIX)):
        if daemon.tls.is_on:
            raise ConfigError(prefix, "tls", "not supported by `gpufleet up`: run `gpufleet hub` and `gpufleet agent`")
    if hub.auth != "none" or agent.token_file is not None:
        raise ConfigError(
            HUB_PREFIX, "auth", "tokens are not supported by `gpufleet up`: run `gpufleet hub` and `gpufleet agent`"
        )
    set_up_logs(log_level)
    run_until_stopped(lambda stop: run_both(hub, agent, stop))


async def run_both(hub: HubConfig, agent: AgentConfig, stop: asyncio.Event) -> None:
    """Run hub and agent until `stop` is set or one of them fails, and show the first steps."""
    from gpufleet.wiring.agent import running_agent
    from gpufleet.wiring.hub import running_hub

    async with running_hub(hub) as running, contextlib.AsyncExitStack() as stack:
        pushing = msgspec.structs.replace(agent, hub=msgspec.structs.replace(agent.hub, url=running.url))
        reading = await stack.enter_async_context(running_agent(pushing))
        print_now(f"gpufleet is up: hub at {running.url}, agent at {reading.url}. Waiting for the first report...")
        guide = asyncio.create_task(show_first_steps(running.url, reading.url))
        await wait_until_stopped(stop, running.task, reading.task)
        guide.cancel()
        print_now("Stopping.")
        with contextlib.suppress(asyncio.CancelledError):
            await guide
        for daemon in (running.task, reading.task):
            if daemon.done():
                daemon.result()


async def show_first_steps(hub: str, agent: str) -> None:
    """Wait for the first report, register the example allocation, and print URLs and commands to try."""
    try:
        machine = await asyncio.wait_for(this_machine(hub, agent), FIRST_REPORT_SECONDS)
        spec = AllocationSpec(
            kind=AllocationKind.BARE_METAL,
            target=Target(cluster=machine["cluster"], machine=machine["id"]),
            valid_from=ALLOCATION_START,
        )
        await asyncio.to_thread(
            send, hub, f"/v1/allocations/{ALLOCATION}", method="PUT", body=msgspec.json.encode(spec)
        )
    except TimeoutError:
        log.warning("the hub has received no report of this host within %g s: see above", FIRST_REPORT_SECONDS)
        return
    except CommandError as error:
        log.warning("cannot register the example allocation: %s", error)
        return
    command = sys.argv[0]
    print_now(
        f"""
  web page of this host               {hub}/ui/#/nodes/{machine["id"]}
  web page of the fleet               {hub}/ui/
  Prometheus metrics of this host     {agent}/metrics
  snapshot of this host               {agent}/v1/snapshot
  nodes of the hub                    {hub}/v1/nodes
  readings of an allocation           {hub}/v1/allocations/{ALLOCATION}/metrics
  description of the API              {hub}/openapi.json

  in another terminal:  {command} snapshot
                        {command} why {ALLOCATION} --hub {hub}
                        {command} query nodes --hub {hub}

Ctrl-C stops."""
    )


async def this_machine(hub: str, agent: str) -> dict[str, Any]:
    """Wait for the hub's record of the agent's machine."""
    while True:
        snapshot = msgspec.json.decode(await asyncio.to_thread(get, agent, "/v1/snapshot"))
        page: dict[str, Any] = msgspec.json.decode(await asyncio.to_thread(get, hub, "/v1/nodes"))
        for node in page["items"]:
            record: dict[str, Any] = node["machine"]
            if record["machine"]["name"] == snapshot["node"]["name"]:
                return record
        await asyncio.sleep(0.2)


def print_now(text: str) -> None:
    """Print and flush, because stdout may be a pipe."""
    print(text, flush=True)
