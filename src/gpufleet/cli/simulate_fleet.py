"""`gpufleet simulate fleet`: a made-up fleet that sends to a real hub."""

import asyncio
import datetime as dt
import enum
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.daemon import run_until_stopped
from gpufleet.cli.fetch import Access, send
from gpufleet.cli.options import HUB_URL, CaOption, CommandError, HubUrl, Json
from gpufleet.config.hub_url import check_hub_url
from gpufleet.config.load import ImpossibleValueError
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.time import to_ns

if TYPE_CHECKING:
    from gpufleet.simulate.fleet.fleet import Fleet
    from gpufleet.simulate.fleet.posting import Manner, Way
    from gpufleet.simulate.fleet.run import Run, Summary


class Road(enum.StrEnum):
    """How a cluster of the fleet sends."""

    AGENTS = "agents"  # each node by itself
    BUNDLES = "bundles"  # one sender of bundles, as a relay is
    REMOTE_WRITE = "remote-write"  # a Prometheus that scrapes dcgm-exporter
    OTLP = "otlp"  # an OpenTelemetry Collector


EARLIEST, LATEST = dt.datetime(1971, 1, 1, tzinfo=dt.UTC), dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
"""Where a fleet's time may begin: batches count nanoseconds since 1970, in 63 bits."""

PROGRESS_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
"""A post that takes longer has no answer."""


def simulate_fleet(
    hub: HubUrl = HUB_URL,
    clusters: Annotated[int, typer.Option(min=1, max=1000, help="How many clusters.")] = 3,
    nodes: Annotated[int, typer.Option(min=1, max=200_000, help="Nodes of each cluster.")] = 40,
    gpus: Annotated[int, typer.Option(min=1, max=16, help="GPUs of each node.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The same seed is the same fleet.")] = 0,
    prefix: Annotated[str, typer.Option(help="What the clusters are called, before their number.")] = "sim",
    faults: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAULTS", help="What goes wrong, such as silent-cluster@+5m/10m:c2; `list` explains them."
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=1, max=600, help="Seconds between the looks of an agent.")] = 10.0,
    duration: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Stop after so much of the fleet's time [default: Ctrl-C].")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One look at every node, then end.")] = False,
    patience: Annotated[
        str,
        typer.Option(metavar="SPAN", help="At the end wait so long for a hub that takes nothing, then end with 1."),
    ] = "2m",
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Where the fleet's time begins, RFC 3339 [default: now].")
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0.01, max=1e6, help="Seconds of the fleet's time to a second, as fast as it gets.")
    ] = 1.0,
    road: Annotated[Road, typer.Option(help="How a cluster sends.", case_sensitive=False)] = Road.AGENTS,
    register: Annotated[
        bool, typer.Option(help="Register the clusters first, with the GPUs that they should have.")
    ] = True,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="GPUFLEET_TOKEN_FILE",
            help="Show the token in this file; {cluster} in it stands for each cluster's id.",
        ),
    ] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Show this token to register the clusters.")
    ] = None,
    ca: CaOption = None,
    json: Json = False,
) -> None:
    """Send what a fleet of so many clusters would send, to a hub or relay. Ctrl-C stops."""
    from gpufleet.simulate.fleet.agents import Timing
    from gpufleet.simulate.fleet.faults import FaultError, parse_faults, parse_span
    from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
    from gpufleet.simulate.fleet.posting import ALONE, BUNDLED, IN_ORDER
    from gpufleet.simulate.fleet.run import Run

    if faults == ["list"]:
        _list_faults()
        return
    try:
        began = _instant(start) if start else time.time_ns()
        schedule = tuple(fault for text in faults or () for fault in parse_faults(text, began))
        seconds = float(parse_span(duration)) if duration else None
        patience_seconds = float(parse_span(patience))
    except FaultError as error:
        raise typer.BadParameter(str(error)) from None
    outside = [fault for fault in schedule if fault.cluster > clusters or fault.node > nodes or fault.gpu >= gpus]
    if outside:
        one = outside[0]
        raise typer.BadParameter(f"{one.kind}: there is no c{one.cluster}/n{one.node}/g{one.gpu} in this fleet")
    fleet = Fleet(FleetSpec(seed=seed, clusters=clusters, nodes=nodes, gpus=gpus, prefix=prefix, faults=schedule))
    timing = Timing(start=began, interval=interval, at_once=once)
    if register:
        _register(fleet, hub, Access(admin_token_file, ca))
    seconds = interval if once else seconds
    run = Run(fleet, timing, speed=speed, seconds=seconds, patience_seconds=patience_seconds)
    manner = {Road.AGENTS: ALONE, Road.BUNDLES: BUNDLED}.get(road, IN_ORDER)
    ways = {cluster: _way(road, hub, cluster, token_file, ca) for cluster in fleet.cluster_ids()}
    run_until_stopped(lambda stop: _run(run, ways, manner, stop, hub))
    summary = run.summary
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(summary) + b"\n")
    else:
        print(_words(summary, hub))
    if summary.refused or summary.waiting:
        raise CommandError(f"{summary.waiting + summary.refused} batches were not taken: {summary.error or 'stopped'}")


def _instant(text: str) -> int:
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-11-21T08:00:00Z", param_hint="--start") from None
    at = at if at.tzinfo else at.replace(tzinfo=dt.UTC)
    if not EARLIEST <= at < LATEST:
        words = f"{text!r} must lie between {EARLIEST.year} and {LATEST.year}"
        raise typer.BadParameter(words, param_hint="--start")
    return to_ns(at)


def _list_faults() -> None:
    from gpufleet.simulate.fleet.faults import FAULTS, FORM

    print(f"{FORM}, with commas between several.\nAFTER and LASTS are spans such as 30s, 5m, 2h.\n")
    for kind, row in FAULTS.items():
        lasts = f"lasts {row.lasts:.0f} s" if row.lasts else "at an instant"
        span = f"{row.least:.0f} to {row.most:.0f}, {row.default:g} unless said"
        amount = f"; AMOUNT: {row.amount} ({span})" if row.amount else ""
        print(f"{kind} (of a {row.level.name.lower()}; {lasts}{amount})\n  {row.happens}\n  hub: {row.expected}")


def _register(fleet: "Fleet", hub: str, access: Access) -> None:
    """Tell the hub which clusters come, and how many GPUs each has."""
    for cluster in range(1, fleet.spec.clusters + 1):
        spec = ClusterSpec(environment="simulated", expected=fleet.expected(cluster))
        path = f"/v1/clusters/{quote(fleet.cluster_id(cluster), safe='')}"
        send(hub, path, access, method="PUT", body=msgspec.json.encode(spec))


async def _run(run: "Run", ways: "dict[str, Way]", manner: "Manner", stop: asyncio.Event, hub: str) -> None:
    tasks = [asyncio.create_task(_tell(run, hub)), asyncio.create_task(_stop(run, stop))]
    try:
        await run.run(ways, manner)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stop(run: "Run", stop: asyncio.Event) -> None:
    await stop.wait()
    run.stop()


def _way(road: Road, hub: str, cluster: str, token_file: str | None, ca: Path | None) -> "Way":
    from gpufleet.simulate.fleet.posting import CONNECTIONS
    from gpufleet.wiring.sending import hub_client
    from gpufleet.wiring.simulated import otlp_way, remote_write_way

    token = token_file.replace("{cluster}", cluster) if token_file else None
    authorities = str(ca) if ca else None
    try:
        check_hub_url("--hub", hub, shows_token=token is not None)
    except ImpossibleValueError as error:
        raise typer.BadParameter(str(error)) from None
    if road is Road.REMOTE_WRITE:
        return remote_write_way(hub, cluster, token, authorities)
    if road is Road.OTLP:
        return otlp_way(hub, cluster, token, authorities)
    return hub_client(
        hub,
        name="gpufleet-simulate",
        timeout_seconds=TIMEOUT_SECONDS,
        token_file=token,
        ca=authorities,
        connections=CONNECTIONS,
    )


async def _tell(run: "Run", hub: str) -> None:
    """Say on stderr how far it is."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        print(_words(run.summary, hub), file=sys.stderr, flush=True)


def _words(summary: "Summary", hub: str) -> str:
    late = f", {summary.behind_seconds:.0f} s behind at worst" if summary.behind_seconds >= 1 else ""
    silent = f"; {hub} has taken nothing for {summary.silent_seconds:.0f} s" if summary.silent_seconds >= 1 else ""
    error = f"; what came of it last: {summary.error}" if summary.error else ""
    return (
        f"{dt.timedelta(seconds=int(summary.simulated_seconds))}  {summary.nodes} nodes, {summary.gpus} GPUs: "
        f"{summary.made} batches, {summary.acknowledged} acknowledged, {summary.waiting} wait, "
        f"{summary.refused} refused, {summary.again} again, {summary.dropped} dropped{late}{silent}{error}"
    )
