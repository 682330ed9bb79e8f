"""Simulated host engine on the guest's vsock id and on its loopback."""

import asyncio
import sys
from pathlib import Path

from gpufleet.simulate.dcgm.engine import listen
from gpufleet.simulate.dcgm.state import EngineState

CID_LOCAL, PORT = 1, 5555


async def main(cid: int, gpus: int) -> None:
    """Serve until killed."""
    state = EngineState.healthy(gpus)
    servers = [(await listen(f"vsock://{own}:{PORT}", state))[0] for own in (cid, CID_LOCAL)]
    print("listens", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


asyncio.run(main(int(sys.argv[1]), int(Path("/etc/gpus").read_text())))
