"""One flush, killed before every change that it makes on disk, and again while it is repeated.

    python -m tests.crash.sweep [--keep FOLDER]

Each case starts from the same folder: a hub that has acknowledged batches and has not flushed them. A process flushes
and is killed before one of its changes; another one repeats what was begun, and is killed before one of its own; a
third one ends it, and tells what lies in every table. That must be what is there without any of it: each row, once.

What is written into a part before the part gets its name is left out: nobody can see it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.crash.shim.shim import UNSEEN, Shim

ROOT = Path(__file__).parents[2]
SECONDS = 240
_NEVER = 1 << 40


class Case(msgspec.Struct, frozen=True):
    """One case.

    Attributes:
        deaths: the changes before which a process was killed, in turn: what, and where.
        found: what the last process told.
    """

    deaths: tuple[str, ...]
    found: dict[str, Any]


class Sweep:
    """Cases that start from one hub.

    Attributes:
        steps: the changes of an undisturbed flush, in order, each as what and where.
        expected: what there is after it.
    """

    def __init__(self, folder: Path) -> None:
        """Make the hub, and see what an undisturbed flush does."""
        self._start, self._folder, self._control = folder / "start", folder / "case", folder / "control"
        self._start.mkdir(parents=True)
        self._count("make", self._start)
        self.expected = self.case().found
        self._begin()
        self.steps = self._flush(_NEVER)[1]

    def case(self, *steps: int) -> Case:
        """Die before each of the steps in turn, the first being 1, and let another process end the flush."""
        self._begin()
        ends = [self._flush(step) for step in steps]
        return Case(tuple(said[-1] for died, said in ends if died), json.loads(self._count("count", self._folder)))

    def cases(self) -> Iterator[Case]:
        """Go through every step of a flush, and with it through those of the repeated one."""
        for step in range(1, len(self.steps) + 1):
            yield self.case(step, 1 + 7 * step % len(self.steps))

    def _begin(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._start, self._folder, symlinks=True)

    def _flush(self, step: int) -> tuple[bool, list[str]]:
        """Return whether the process died before the step, and its steps so far."""
        shim = Shim(self._control)
        with _process("flush", self._folder, shim.environment) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", child.communicate()[1]
            shim.die_before(self._folder, step, skipped=UNSEEN)
            _, errors = child.communicate("\n", timeout=SECONDS)
        assert child.returncode in (0, -signal.SIGKILL), errors
        steps = [line.removeprefix("step ") for line in errors.splitlines() if line.startswith("step ")]
        return child.returncode != 0, [words.replace(f"{self._folder.resolve()}/", "") for words in steps]

    def _count(self, what: str, folder: Path) -> str:
        with _process(what, folder, {}) as child:
            said, errors = child.communicate(timeout=SECONDS)
        assert child.returncode == 0, errors
        return said


def _process(what: str, folder: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.crash.one_flush", what, str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, cwd=ROOT, env=os.environ | env, stdin=pipe, stdout=pipe, stderr=pipe)


def main() -> int:
    """Print every case; exit 0 if all came to the same."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.sweep", description="A flush killed at every step.")
    parser.add_argument("--keep", type=Path, default=None, metavar="FOLDER", help="work there, and leave it")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="gpufleet-sweep-"))
    sweep = Sweep(folder)
    print(f"{len(sweep.steps)} steps", flush=True)
    bad = 0
    for case in sweep.cases():
        is_same = case.found == sweep.expected
        bad += not is_same
        print(f"{'ok' if is_same else f'LOST OR DOUBLED: {case.found}'}: {', then '.join(case.deaths)}", flush=True)
    if given.keep is None:
        shutil.rmtree(folder)
    print(f"{bad} cases lost or doubled something" if bad else "nothing lost, nothing doubled")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
