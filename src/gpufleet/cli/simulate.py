"""`gpufleet simulate`: stand-ins to try readers on."""

import asyncio
from typing import Annotated

import typer

simulate_app = typer.Typer(no_args_is_help=True, help="Stand-ins for what gpufleet reads; nothing of them is real.")


@simulate_app.command("dcgm")
def simulate_dcgm(
    address: Annotated[str, typer.Argument(help="Where to listen: tcp://HOST:PORT or unix:///PATH.")],
    gpus: Annotated[int, typer.Option(min=0, max=32, help="How many H200s it has.")] = 8,
    dcgm_version: Annotated[str, typer.Option(help="Which version of DCGM it says it is.")] = "4.5.3",
    vgpu_guest: Annotated[bool, typer.Option(help="Be the engine inside a vGPU guest, with one GPU.")] = False,
    fault: Annotated[list[str] | None, typer.Option(help="How it misbehaves; may be given again.")] = None,
) -> None:
    """Answer as a DCGM host engine does, until Ctrl-C."""
    from gpufleet.simulate.dcgm.state import EngineState, Fault, SimulatedGpu, vgpu_guest_values

    state = EngineState.healthy(gpus)
    if vgpu_guest:
        state = EngineState(gpus={0: SimulatedGpu(vgpu_guest_values())})
    state.version = dcgm_version
    known = [str(one) for one in Fault]
    for one in fault or ():
        if one not in known:
            raise typer.BadParameter(f"--fault {one}: there are {', '.join(known)}")
        state.faults.add(Fault(one))
    asyncio.run(_serve(address, state))


async def _serve(address: str, state: object) -> None:
    from gpufleet.simulate.dcgm.engine import SimulatedEngine
    from gpufleet.simulate.dcgm.state import EngineState

    assert isinstance(state, EngineState)
    engine = SimulatedEngine(state)
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme == "unix" and place.startswith("/"):
        server = await asyncio.start_unix_server(engine.serve, place)
    elif scheme == "tcp" and host and port.isdigit() and int(port) < 65536:
        server = await asyncio.start_server(engine.serve, host, int(port))
        name = server.sockets[0].getsockname()
        address = f"tcp://{name[0]}:{name[1]}"
    else:
        raise typer.BadParameter(f"{address!r} is no address to listen at: write tcp://HOST:PORT or unix:///PATH")
    print(f"a simulated DCGM {state.version} with {len(state.gpus)} GPUs listens at {address}", flush=True)
    async with server:
        await server.serve_forever()
