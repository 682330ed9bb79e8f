"""Comparisons of captures of one machine on which nothing changed: pairs with a significant difference.

Method:

- A pair is two whole captures of this host, one after the other, with 5 repeats each, and their comparison. The
  commands are real processes: systemctl, container programs, fio, and a shell script in place of nvidia-smi.
- 100 pairs without fio have one judged measurement, `nvidia_smi_warm`. 10 pairs with fio have nine more. fio reads
  4 MiB of a file with each job.
- The confidence is 95 % over all measurements of a comparison: at most 5 of 100 pairs should have a difference.

Other work on the machine is a real change for a comparison. The load average is printed with the result.
"""

import asyncio
import os
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.table import Table
from gpufleet.bench import fio
from gpufleet.bench.capture import CaptureRequest, CaptureTarget, capture
from gpufleet.bench.compare import LoadedCapture, Verdict, compare
from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.runtime import SystemClock
from tests.support import peers

PAIRS, PAIRS_WITH_FIO = 100, 10
REPEATS = 5
FILE_BYTES = 8 << 20
DIFFERENT = frozenset({Verdict.BETTER, Verdict.WORSE})
JUDGED = DIFFERENT | {Verdict.NO_DIFFERENCE}
SMI = """#!/bin/sh
case $1 in
-L) echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70)' ;;
--*) ;;
*) echo '| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |' ;;
esac
"""


def install(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


async def count_differences(target: CaptureTarget, path: Path | None, pairs: int) -> tuple[int, int, Counter[str]]:
    """Return judged measurements of a pair, pairs with a difference, and differing measurements by name."""
    request = CaptureRequest(repeats=REPEATS, fio_path=None if path is None else str(path))
    judged, different = 0, 0
    names: Counter[str] = Counter()
    for _ in range(pairs):
        first, other = [
            LoadedCapture(name, await capture(target, request, SystemClock(), lambda _: None)) for name in "ab"
        ]
        found = compare([first, other]).measurements
        judged = sum(one.verdict in JUDGED for one in found)
        differing = [one.name for one in found if one.verdict in DIFFERENT]
        names.update(differing)
        different += bool(differing)
    return judged, different, names


async def main() -> None:
    fio.IO_MEBIBYTES = 4
    columns = ("pairs", "judged measurements", "with a difference", "which", "load")
    table = Table("Captures of an unchanged machine", *columns)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data"
        data.write_bytes(os.urandom(FILE_BYTES))
        install(folder, "nvidia-smi", SMI)
        program = peers.find("fio")
        if program is not None:
            libraries = peers.environment("fio").get("LD_LIBRARY_PATH", "")
            install(folder, "fio", f'#!/bin/sh\nexec env LD_LIBRARY_PATH="{libraries}" {program} "$@"\n')
        commands = LocalExec(environment={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        target = CaptureTarget(files=LocalFiles(), commands=commands)
        cases = [(None, PAIRS)] + ([] if program is None else [(data, PAIRS_WITH_FIO)])
        for path, pairs in cases:
            judged, different, names = await count_differences(target, path, pairs)
            which = ", ".join(f"{name} {count}" for name, count in names.most_common()) or "-"
            table.row(str(pairs), str(judged), str(different), which, f"{os.getloadavg()[0]:.1f}")
    table.print()


if __name__ == "__main__":
    asyncio.run(main())
