"""Reading of 64 virtual machines over SSH: duration and processor time of a round.

Method: one real sshd stands for all guests, each with its own connection and host key pin. Its nvidia-smi prints a
captured GPU. A round contains the queries of an agent to a guest every 10 s: the GPU's fast table and its processes,
and the files of processor, memory and network, over shell sessions. Connections are open and the access path is known.

Own processor time is that of this process. sshd, its shells and the stand-in nvidia-smi run on the same cores, while
real guests have their own. Their processor time is measured too: it is a lower bound for a round on this machine. The
share of the stand-in nvidia-smi is measured separately, as the real program has a different cost. The measurement is
repeated with one guest after the other, for the cost of a guest without concurrency.
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import Table
from gpufleet.agent.guests.access_paths import FailoverReader
from gpufleet.agent.guests.guest import GuestAccess
from gpufleet.codecs.nvidia_smi import parse_help
from gpufleet.config.guests import GuestConfig, SshChannel
from gpufleet.model.catalogue import Lane
from gpufleet.readers.nvidia_smi import plan
from gpufleet.runtime import SystemClock
from gpufleet.wiring.guests import make_access
from tests.support import peers
from tests.support.guest_smi import GuestSmi
from tests.support.sshd import USER, Guest

GUESTS, ROUNDS = 64, 5


def accesses(guest: Guest, pins: Path) -> list[GuestAccess]:
    """Configure all virtual machines with the address of one sshd."""
    channel = SshChannel(address=f"127.0.0.1:{guest.port}", user=USER, key_file=str(guest.key_file))
    uids = [f"00000000-0000-4000-8000-{number:012x}" for number in range(GUESTS)]
    described = [GuestConfig(name=uid, vm_uuid=uid, channels=(channel,)) for uid in uids]
    return [make_access(one, pins, SystemClock()) for one in described]


def readers_of(access: GuestAccess) -> tuple[FailoverReader, FailoverReader]:
    """Return the readers of an agent for a virtual machine."""
    gpus = FailoverReader("gpus", access.gpus, SystemClock(), requires_devices=True, on_open=lambda: None)
    return gpus, FailoverReader("host", access.host, SystemClock(), requires_devices=False, on_open=lambda: None)


async def read_round(readers: tuple[FailoverReader, FailoverReader]) -> int:
    """Make one fast pass of all readers. Return the number of readings."""
    done = await asyncio.gather(*(reader.read(Lane.FAST) for reader in readers))
    return sum(len(sample.values) + len(sample.dims) for one in done for sample in one.samples)


def smi_seconds(guest: Guest) -> float:
    """Return the processor time of a round's nvidia-smi queries in one guest."""

    def run_smi(*arguments: str) -> bytes:
        environment = {"PATH": os.environ["PATH"], "FAKE_FOLDER": str(guest.folder)}
        return subprocess.check_output((guest.folder / "bin" / "nvidia-smi", *arguments), env=environment)

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    columns = plan.plan_of(Lane.FAST, parse_help(run_smi(*plan.HELP)), ()).columns
    before = used()
    for _ in range(GUESTS):
        run_smi(*plan.table_arguments(columns))
        run_smi(*plan.APPS)
    return (used() - before) / GUESTS


async def measure(table: Table, guest: Guest, pins: Path) -> None:
    """Connect to all guests, then measure rounds."""
    every = accesses(guest, pins)
    pairs = [readers_of(access) for access in every]
    began = time.perf_counter()
    for pair in pairs:
        await read_round(pair)
    first = time.perf_counter() - began
    table.row("first answer", f"{first / GUESTS * 1e3:.0f}", "", "", "", "", "")
    cores = len(os.sched_getaffinity(0))
    for what, together in (("all at once", True), ("one by one", False)):
        began, used, theirs = time.perf_counter(), time.process_time(), guest.processor_seconds()
        readings = 0
        for _ in range(ROUNDS):
            if together:
                readings = sum(await asyncio.gather(*(read_round(pair) for pair in pairs)))
            else:
                readings = sum([await read_round(pair) for pair in pairs])
        took, cost = time.perf_counter() - began, time.process_time() - used
        theirs = guest.processor_seconds() - theirs
        each = took / ROUNDS / GUESTS * 1e3
        own = cost / ROUNDS / GUESTS * 1e3
        least, other = theirs / ROUNDS / cores, theirs / ROUNDS / GUESTS * 1e3
        table.row(
            what, f"{each:.1f}", f"{took / ROUNDS:.2f}", f"{own:.2f}", f"{other:.2f}", f"{least:.2f}",
            str(readings // GUESTS),
        )  # fmt: skip
    for access in every:
        for link in access.links:
            await link.close()


def main() -> int:
    """Fetch missing programs, run and print."""
    for problem in (problems := peers.fetch(("sshd", "nss_wrapper"))):
        print(f"MISSING {problem}", file=sys.stderr)
    if problems:
        return 1
    table = Table(
        "Guests over SSH", "64 guests", "ms/guest", "s/round", "own CPU ms/guest", "guest's CPU ms",
        "lower bound s/round", "readings",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as scratch, Guest() as guest:
        GuestSmi(guest)
        asyncio.run(measure(table, guest, Path(scratch)))
        standin = smi_seconds(guest)
    table.print()
    print(f"  share of the stand-in nvidia-smi: {standin * 1e3:.2f} ms for its two calls")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  peak resident {peak:.0f} MiB, asyncssh and {GUESTS} connections included")
    return 0


if __name__ == "__main__":
    sys.exit(main())
