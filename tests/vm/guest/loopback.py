"""AF_VSOCK from inside the guest: what dialling its own loopback comes to, as JSON."""

import asyncio
import json

from gpufleet.channels.stream.dialers import VsockDialer
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock

CID_LOCAL, ENGINE, NOBODY = 1, 5555, 5556


async def main() -> None:
    """Read the engine through the loopback, and dial where nobody listens."""
    reader = DcgmReader(VsockDialer(CID_LOCAL, ENGINE), SystemClock())
    found = await reader.read(Lane.FAST)
    await reader.close()
    told = {"gpus": [str(one.view.uuid) for one in found.samples if one.view], "errors": found.errors}
    try:
        await VsockDialer(CID_LOCAL, NOBODY).dial()
    except ChannelError as error:
        told["nobody"] = error.problem
    print(json.dumps(told))


asyncio.run(main())
