"""AF_VSOCK from inside the guest: read the engine over the loopback, and print the result as JSON."""

import asyncio
import json

from gpufleet.channels.stream.dialers import VsockDialer
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock

CID_LOCAL, ENGINE, UNUSED = 1, 5555, 5556


async def main() -> None:
    """Read the engine through the loopback, and dial a port without a listener."""
    reader = DcgmReader(VsockDialer(CID_LOCAL, ENGINE), SystemClock())
    round_ = await reader.read(Lane.FAST)
    await reader.close()
    found = {"gpus": [str(one.view.uuid) for one in round_.samples if one.view], "errors": round_.errors}
    try:
        await VsockDialer(CID_LOCAL, UNUSED).dial()
    except ChannelError as error:
        found["unused_port"] = error.problem
    print(json.dumps(found))


asyncio.run(main())
