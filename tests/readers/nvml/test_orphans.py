"""Orphaned child processes: they end and release every device, even if they hang in the driver."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.readers.nvml.test_hang import runs
from tests.support.waiting import wait_until

PARENT = """
import asyncio, contextlib, json, os, sys
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import NvmlLimits

closings = []

async def start(environment, init, closes):
    limits = NvmlLimits(call=1, init=init, hang=3600, grace=3600, end=1)
    reader = NvmlReader(limits=limits, environment=os.environ | environment)
    with contextlib.suppress(ReaderError):
        await reader.read(Lane.FAST)
    pid = reader.child_pid
    if closes:
        closings.append(asyncio.create_task(reader.close()))
    return pid

async def main():
    pids = await asyncio.gather(*(start(*one) for one in json.loads(sys.argv[1])))
    print(json.dumps(pids), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

CLOSING = "closing"
"""Case in which the parent closes its reader and the child hangs in nvmlShutdown, as on `gpufleet agent release`."""

INSIDE = ("nvmlInitWithFlags", "nvmlDeviceGetPowerUsage", "nvmlEventSetWait_v2")
"""Calls in which a child can be while its parent lives."""

ENDING = ("nvmlEventSetFree", "nvmlShutdown")
"""Calls that a child makes at its end."""


def inside(fake: FakeNvml, function: str) -> bool:
    return any(called == function for called, _ in fake.calls())


def test_orphans_end_wherever_the_driver_hangs(tmp_path: Path) -> None:
    """All children have one parent, which is killed once each child has reached its call."""
    fakes: dict[str, FakeNvml] = {}
    starts = []
    for case in ("none", *INSIDE, *ENDING, CLOSING):
        folder = tmp_path / case
        folder.mkdir()
        fakes[case] = fake = FakeNvml(folder, Scenario.healthy(2), log=True)
        if case != "none":
            fake.scenario.hang("nvmlShutdown" if case == CLOSING else case)
            fake.apply()
        own = {name: fake.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML", "FAKE_NVML_LOG")}
        # The parent does not wait for a child that hangs in nvmlInitWithFlags. The others must have initialised NVML.
        starts.append((own, 1 if case == "nvmlInitWithFlags" else 60, case == CLOSING))
    command = [sys.executable, "-c", PARENT, json.dumps(starts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            children = dict(zip(fakes, json.loads(parent.stdout.readline()), strict=True))
            for case in INSIDE:
                wait_until(lambda case=case: inside(fakes[case], case), what=f"a child to be in {case}")  # type: ignore[misc]
            wait_until(lambda: inside(fakes[CLOSING], "nvmlShutdown"), what="the closing child to be in nvmlShutdown")
            assert [case for case, child in children.items() if not runs(child)] in ([], [CLOSING])
        finally:
            parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(runs, children.values())), seconds=40, what="the orphans to end")
