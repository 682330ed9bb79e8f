"""`gpufleet hub`: run a hub until told to stop."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.errors import CommandError
from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import load

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The hub's configuration (TOML).")
]
ListenOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where to answer; 127.0.0.1:8470 unless told.")
]
StateOption = Annotated[str | None, typer.Option(metavar="DIR", help="Folder of the log, registry and store.")]
StoreOption = Annotated[
    str | None, typer.Option(metavar="DSN", help="chdb:///FOLDER, or clickhouse://HOST/DATABASE; embedded unless told.")
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure-listen", help="Listen beyond loopback: this build has neither TLS nor tokens.")
]


def hub(
    config: ConfigOption = None,
    listen: ListenOption = None,
    state: StateOption = None,
    store: StoreOption = None,
    insecure_listen: InsecureOption = False,
) -> None:
    """Run a hub: take batches, keep them, answer from them."""
    flags = {"listen": listen, "state": state, "store": store, "insecure_listen": insecure_listen or None}
    in_force = load(HubConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags=flags)
    configure_logging(in_force.log_level)
    run_loop(_serve(in_force))


async def _serve(config: HubConfig) -> None:
    from gpufleet.wiring.hub import running_hub

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running_hub(config) as running:
        print(f"gpufleet hub answers at {running.url}")
        print(f"  nodes    {running.url}/v1/nodes")
        print(f"  API      {running.url}/openapi.json")
        print(f"  metrics  {running.url}/metrics")
        print(f"  state    {config.folder}, store {shown(config.store_dsn)}", flush=True)
        await _until(stop, running.task)
        print("gpufleet hub is stopping", flush=True)
