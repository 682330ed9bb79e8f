"""`gpufleet simulate`: runs simulated data sources."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.simulate_exporter import simulate_exporter
from gpufleet.cli.simulate_fleet import simulate_fleet

if TYPE_CHECKING:
    from gpufleet.simulate.dcgm.state import EngineState

simulate_app = typer.Typer(no_args_is_help=True, help="Simulate a fleet, an exporter or a DCGM host engine.")


simulate_app.command("fleet")(simulate_fleet)
simulate_app.command("exporter")(simulate_exporter)


@simulate_app.command("dcgm")
def simulate_dcgm(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="Address to listen on: tcp://HOST:PORT, unix:///PATH or, in a guest, vsock://CID:PORT.",
        ),
    ],
    gpus: Annotated[int, typer.Option(min=0, max=32, help="Number of H200 GPUs.")] = 8,
    dcgm_version: Annotated[str, typer.Option(help="Reported DCGM version.")] = "4.5.3",
    mig: Annotated[bool, typer.Option(help="Divide the first GPU into three MIG devices.")] = False,
    vgpu_guest: Annotated[bool, typer.Option(help="Simulate the engine in a vGPU guest with one GPU.")] = False,
    base_units: Annotated[
        bool, typer.Option(help="Support only the newer field ids of clocks, energy and similar fields.")
    ] = False,
    no_profiling: Annotated[bool, typer.Option("--no-profiling", help="Reject watches of profiling fields.")] = False,
    clock_ahead: Annotated[float, typer.Option(help="Clock offset in seconds; positive is ahead.")] = 0.0,
    fault: Annotated[list[str] | None, typer.Option(help="Simulated fault; may be repeated.")] = None,
) -> None:
    """Simulate a DCGM host engine until Ctrl-C."""
    from gpufleet.simulate.dcgm.state import PROFILING_NOT_SUPPORTED, EngineFault, EngineState, SimulatedGpu
    from gpufleet.simulate.dcgm.values import BASE_UNITS, PROFILING, in_base_units, vgpu_guest_values

    state = EngineState.with_mig(gpus) if mig and gpus else EngineState.healthy(gpus)
    if vgpu_guest:
        state = EngineState(gpus={0: SimulatedGpu(vgpu_guest_values())})
    if base_units:
        state.unknown = frozenset(BASE_UNITS)
        for gpu in state.gpus.values():
            gpu.values = in_base_units(gpu.values)
    if vgpu_guest or no_profiling:
        state.unwatchable = dict.fromkeys(PROFILING, PROFILING_NOT_SUPPORTED)
    state.version, state.clock_ahead = dcgm_version, round(clock_ahead * 1e6)
    known = [str(one) for one in EngineFault]
    for one in fault or ():
        if one not in known:
            raise typer.BadParameter(f"unknown --fault {one}: use one of {', '.join(known)}")
        state.faults.add(EngineFault(one))
    asyncio.run(_serve(address, state))


async def _serve(address: str, state: "EngineState") -> None:
    from gpufleet.simulate.dcgm.engine import listen

    try:
        server, address = await listen(address, state)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    print(f"simulated DCGM {state.version} with {len(state.gpus)} GPUs listens at {address}", flush=True)
    async with server:
        await server.serve_forever()
