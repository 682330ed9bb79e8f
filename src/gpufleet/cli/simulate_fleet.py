"""`gpufleet simulate fleet`: sends the data of a simulated fleet to a hub."""

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
from gpufleet.cli.options import HUB_URL, TIME, CaOption, CommandError, HubUrl, Json, OptionError
from gpufleet.cli.output import write_json
from gpufleet.cli.times import parse_time
from gpufleet.config.load import InvalidValueError
from gpufleet.config.urls import check_hub_url
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.time import to_ns

if TYPE_CHECKING:
    from gpufleet.simulate.fleet.fleet import Fleet
    from gpufleet.simulate.fleet.posting import BatchClient, SendMode
    from gpufleet.simulate.fleet.run import FleetRun, RunSummary


class SenderKind(enum.StrEnum):
    """Protocol and senders of a simulated cluster."""

    AGENTS = "agents"  # a sender per node
    BUNDLES = "bundles"  # one sender of bundles, like a relay
    REMOTE_WRITE = "remote-write"  # Prometheus with dcgm-exporter
    OTLP = "otlp"  # an OpenTelemetry Collector


EARLIEST, LATEST = dt.datetime(1971, 1, 1, tzinfo=dt.UTC), dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
"""Limits of the start time: batches have nanoseconds since 1970 in 63 bits."""

PROGRESS_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
"""Timeout of a post."""


def simulate_fleet(
    hub: HubUrl = HUB_URL,
    clusters: Annotated[int, typer.Option(min=1, max=1000, help="Number of clusters.")] = 3,
    nodes: Annotated[int, typer.Option(min=1, max=200_000, help="Nodes per cluster.")] = 40,
    gpus: Annotated[int, typer.Option(min=1, max=16, help="GPUs per node.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; a seed always gives the same fleet.")] = 0,
    prefix: Annotated[str, typer.Option(help="Prefix of cluster names.")] = "sim",
    faults: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAULTS", help="Simulated faults, for example cluster-off@+5m/10m:c2; `list` describes all."
        ),
    ] = None,
    incidents: Annotated[
        bool, typer.Option(help="Simulate an XID, throttling, memory error or lost GPU from time to time.")
    ] = True,
    interval: Annotated[float, typer.Option(min=1, max=600, help="Collection interval of an agent in seconds.")] = 10.0,
    duration: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Simulated duration of the run [default: until Ctrl-C].")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Send one collection pass of each node, then exit.")] = False,
    give_up_after: Annotated[
        str,
        typer.Option(metavar="SPAN", help="After the run, exit with 1 if the hub accepts nothing for this time."),
    ] = "2m",
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Simulated start time: {TIME} [default: now].")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.01, max=1e6, help="Maximum simulated seconds per second.")] = 1.0,
    via: Annotated[
        SenderKind, typer.Option(help="Senders and protocol of a cluster.", case_sensitive=False)
    ] = SenderKind.AGENTS,
    register: Annotated[bool, typer.Option(help="Register the clusters with their expected GPUs first.")] = True,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="GPUFLEET_TOKEN_FILE",
            help="File with the token to send; {cluster} in the name is replaced with the cluster's id.",
        ),
    ] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the admin token for registering clusters.")
    ] = None,
    ca: CaOption = None,
    json: Json = False,
) -> None:
    """Send the data of a simulated fleet to a hub or relay. Ctrl-C stops."""
    from gpufleet.simulate.fleet.agents import AgentTiming
    from gpufleet.simulate.fleet.faults import FaultError, parse_faults, parse_span
    from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
    from gpufleet.simulate.fleet.incidents import make_incidents
    from gpufleet.simulate.fleet.posting import BUNDLED, ORDERED, SEPARATE
    from gpufleet.simulate.fleet.run import FleetRun

    if faults == ["list"]:
        _list_faults()
        return
    try:
        began = start_instant(start) if start else time.time_ns()
        schedule = tuple(fault for text in faults or () for fault in parse_faults(text, began))
        seconds = float(parse_span(duration)) if duration else None
        give_up_seconds = float(parse_span(give_up_after))
    except FaultError as error:
        raise typer.BadParameter(str(error)) from None
    outside = [fault for fault in schedule if fault.cluster > clusters or fault.node > nodes or fault.gpu >= gpus]
    if outside:
        one = outside[0]
        raise typer.BadParameter(f"{one.kind}: the fleet has no c{one.cluster}/n{one.node}/g{one.gpu}")
    if incidents:
        schedule += tuple(make_incidents(seed, clusters, nodes, gpus, began))
    fleet = Fleet(FleetSpec(seed=seed, clusters=clusters, nodes=nodes, gpus=gpus, prefix=prefix, faults=schedule))
    timing = AgentTiming(start=began, interval=interval, at_once=once)
    if register:
        _register(fleet, hub, Access(admin_token_file, ca))
    seconds = interval if once else seconds
    run = FleetRun(fleet, timing, speed=speed, seconds=seconds, give_up_seconds=give_up_seconds)
    mode = {SenderKind.AGENTS: SEPARATE, SenderKind.BUNDLES: BUNDLED}.get(via, ORDERED)
    clients = {cluster: _client(via, hub, cluster, token_file, ca) for cluster in fleet.cluster_ids()}
    run_until_stopped(lambda stop: _run(run, clients, mode, stop, hub))
    summary = run.summary
    if json:
        write_json(msgspec.json.encode(summary))
    else:
        print(_summary_text(summary, hub))
    if summary.rejected or summary.waiting:
        raise CommandError(
            f"{summary.waiting + summary.rejected} batches were not accepted: {summary.error or 'stopped'}"
        )


def start_instant(text: str) -> int:
    """Return the value of `--start` in nanoseconds since 1970. Raises OptionError."""
    at = parse_time("--start", text, dt.datetime.now(dt.UTC))
    if not EARLIEST <= at < LATEST:
        problem = f"{text!r} must be between {EARLIEST.year} and {LATEST.year}"
        raise OptionError("--start", problem)
    return to_ns(at)


def _list_faults() -> None:
    from gpufleet.simulate.fleet.faults import FORM
    from gpufleet.simulate.fleet.rule_faults import faults_by_family

    print(f"{FORM}, comma-separated.\nAFTER and LASTS are durations such as 30s, 5m or 2h.")
    for family, rows in faults_by_family().items():
        print(f"\n{family.upper()}")
        for kind, row in rows.items():
            lasts = f"lasts {row.duration:.0f} s" if row.duration else "at an instant"
            span = f"{row.minimum:.0f} to {row.maximum:.0f}, default {row.default:g}"
            amount = f"; AMOUNT: {row.amount} ({span})" if row.amount else ""
            print(f"{kind} (of a {row.level.name.lower()}; {lasts}{amount})\n  {row.effect}")
            if row.expected:
                print(f"  hub: {row.expected}")
            if row.findings:
                print(f"  findings: {', '.join(row.findings)}")


def _register(fleet: "Fleet", hub: str, access: Access) -> None:
    """Register the clusters with their expected GPUs."""
    for cluster in range(1, fleet.spec.clusters + 1):
        spec = ClusterSpec(environment="simulated", expected=fleet.expected(cluster))
        path = f"/v1/clusters/{quote(fleet.cluster_id(cluster), safe='')}"
        send(hub, path, access, method="PUT", body=msgspec.json.encode(spec))


async def _run(
    run: "FleetRun", clients: "dict[str, BatchClient]", mode: "SendMode", stop: asyncio.Event, hub: str
) -> None:
    tasks = [asyncio.create_task(_report_progress(run, hub)), asyncio.create_task(_stop_on_event(run, stop))]
    try:
        await run.run(clients, mode)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stop_on_event(run: "FleetRun", stop: asyncio.Event) -> None:
    await stop.wait()
    run.stop()


def _client(via: SenderKind, hub: str, cluster: str, token_file: str | None, ca: Path | None) -> "BatchClient":
    from gpufleet.simulate.fleet.posting import CONNECTIONS
    from gpufleet.wiring.connections import make_hub_client
    from gpufleet.wiring.simulated_exports import otlp_client, remote_write_client

    token = token_file.replace("{cluster}", cluster) if token_file else None
    authorities = str(ca) if ca else None
    try:
        check_hub_url("--hub", hub, sends_token=token is not None)
    except InvalidValueError as error:
        raise typer.BadParameter(str(error)) from None
    if via is SenderKind.REMOTE_WRITE:
        return remote_write_client(hub, cluster, token, authorities)
    if via is SenderKind.OTLP:
        return otlp_client(hub, cluster, token, authorities)
    return make_hub_client(
        hub,
        name="gpufleet-simulate",
        timeout_seconds=TIMEOUT_SECONDS,
        token_file=token,
        ca=authorities,
        connections=CONNECTIONS,
    )


async def _report_progress(run: "FleetRun", hub: str) -> None:
    """Print progress to stderr."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        print(_summary_text(run.summary, hub), file=sys.stderr, flush=True)


def _summary_text(summary: "RunSummary", hub: str) -> str:
    late = f", {summary.behind_seconds:.0f} s maximum delay" if summary.behind_seconds >= 1 else ""
    stalled = (
        f"; {hub} has accepted nothing for {summary.stalled_seconds:.0f} s" if summary.stalled_seconds >= 1 else ""
    )
    error = f"; last error: {summary.error}" if summary.error else ""
    return (
        f"{dt.timedelta(seconds=int(summary.simulated_seconds))}  {summary.nodes} nodes, {summary.gpus} GPUs: "
        f"{summary.made} batches, {summary.acknowledged} acknowledged, {summary.waiting} queued, "
        f"{summary.rejected} rejected, {summary.retries} retried, {summary.dropped} dropped{late}{stalled}{error}"
    )
