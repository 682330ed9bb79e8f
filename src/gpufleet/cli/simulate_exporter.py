"""`gpufleet simulate exporter`: serves the metrics page of a simulated node."""

import asyncio
import enum
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.daemon import run_until_stopped, wait_until_stopped
from gpufleet.cli.options import TIME, OptionError
from gpufleet.cli.simulate_fleet import start_instant
from gpufleet.config.load import InvalidValueError

if TYPE_CHECKING:
    from gpufleet.wiring.simulated_exporter import SimulatedExporter


class PageDialect(enum.StrEnum):
    """Names and labels of a page."""

    NATIVE = "native"
    DCGM = "dcgm"
    ALL_SMI = "all-smi"


MAX_VGPUS = 32
"""Most vGPU instances of a GPU, as in NVIDIA's drivers."""


def simulate_exporter(
    dialect: Annotated[
        PageDialect, typer.Option(help="Names of the metrics: gpufleet's, dcgm-exporter's or all-smi's.")
    ] = PageDialect.NATIVE,
    gpus: Annotated[int, typer.Option(min=1, max=16, help="Number of GPUs.")] = 8,
    vgpus: Annotated[int, typer.Option(min=0, max=MAX_VGPUS, help="vGPU instances per GPU.")] = 0,
    mig: Annotated[bool, typer.Option(help="Divide the first GPU into MIG devices.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of model, identities and loads.")] = 0,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Simulated start time: {TIME} [default: now].")
    ] = None,
    interval: Annotated[float, typer.Option(min=1, max=600, help="Seconds between changes of the values.")] = 10.0,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on. There is no token.")
    ] = "127.0.0.1:9471",
    faults: Annotated[
        list[str] | None,
        typer.Option(metavar="FAULTS", help="Simulated faults, for example gpu-lost@+1m:c1/n1/g0."),
    ] = None,
) -> None:
    """Serve the metrics page of a simulated node at /metrics until Ctrl-C."""
    from gpufleet.simulate.fleet.faults import parse_faults
    from gpufleet.simulate.fleet.single_node import single_node
    from gpufleet.wiring.simulated_exporter import SimulatedExporter

    began = start_instant(start) if start else time.time_ns()
    try:
        schedule = [fault for text in faults or () for fault in parse_faults(text, began)]
        fleet = single_node(seed=seed, gpus=gpus, vgpus=vgpus, mig=mig, faults=schedule)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    exporter = SimulatedExporter(fleet, dialect.value, began, interval)
    try:
        run_until_stopped(lambda stop: _serve(exporter, listen, stop))
    except InvalidValueError as error:
        raise OptionError("--listen", str(error)) from None


async def _serve(exporter: "SimulatedExporter", listen: str, stop: asyncio.Event) -> None:
    from gpufleet.wiring.simulated_exporter import running_exporter

    async with running_exporter(exporter, listen) as running:
        print(f"simulated exporter listens at {running.url}/metrics", flush=True)
        await wait_until_stopped(stop, running.task)
