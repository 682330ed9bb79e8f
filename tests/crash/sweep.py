"""One flush, killed before every change that it makes on disk, and again while it is repeated.

    python -m tests.crash.sweep [--keep FOLDER]

Each case starts from the same folder: a hub that has acknowledged batches and has not flushed them. A process flushes
and is killed before one of its changes; another one repeats what was begun, and is killed before one of its own; a
third one ends it, and tells what lies in every table. That must be what is there without any of it: each row, once.

What is written into a part before the part gets its name is left out: nobody can see it.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.crash.shim.shim import UNSEEN, Shim

ROOT = Path(__file__).parents[2]
SECONDS = 240
_NEVER = 1 << 40

PART = "rename to store/store/"
"""Gives a part its name. The names of the insert are on disk already, and the rows are not visible yet."""


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
        self._start, self._folder = folder / "start", folder / "case"
        self._errors = folder / "stderr"
        self._start.mkdir(parents=True)
        self._shim = Shim(folder / "control")
        pipe = subprocess.PIPE
        env = os.environ | self._shim.environment | {"OPENBLAS_NUM_THREADS": "1"}  # no threads before the fork
        command = [sys.executable, "-m", "tests.crash.one_flush"]
        self._server = subprocess.Popen(command, text=True, cwd=ROOT, env=env, stdin=pipe, stdout=pipe)
        self._answer("make", self._start)
        self.expected = self.case().found
        self._begin()
        self.steps = self._flush(_NEVER)[1]

    def case(self, *steps: int) -> Case:
        """Die before each of the steps in turn, the first being 1, and let another process end the flush."""
        self._begin()
        ends = [self._flush(step) for step in steps]
        return Case(tuple(said[-1] for died, said in ends if died), json.loads(self._answer("count", self._folder)))

    def chain(self) -> Case:
        """Die before each part of a flush gets its name, in turn: every process names one part more than the last.

        Each process names first a part of `touched_hours`, then the part before which the process before it died.
        """
        self._begin()
        deaths: list[str] = []
        for number in itertools.chain((1, 2), itertools.repeat(3, len(self.steps))):
            died, steps = self._flush(number, counted=PART)
            if not died:
                break
            deaths.append(steps[-1])
        return Case(tuple(deaths), json.loads(self._answer("count", self._folder)))

    def cases(self) -> Iterator[Case]:
        """Go through every step of a flush, and with it through those of the repeated one."""
        for step in range(1, len(self.steps) + 1):
            yield self.case(step, 1 + 7 * step % len(self.steps))

    def close(self) -> None:
        """Stop the fork server."""
        self._server.communicate(timeout=SECONDS)

    def _begin(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._start, self._folder, symlinks=True)

    def _flush(self, step: int, counted: str = "") -> tuple[bool, list[str]]:
        """Return whether the process died before the step, and its steps so far."""
        self._send(json.dumps(["flush", str(self._folder), str(self._errors)]))
        if (ready := self._line()) != "ready":
            raise AssertionError(f"{ready}: {self._errors.read_text()}")
        self._shim.die_before(self._folder, step, skipped=UNSEEN, counted=counted)
        self._send("go")
        code = self._code(self._line())
        self._shim.leave_alone()
        errors = self._errors.read_text()
        assert code in (0, -signal.SIGKILL), errors
        steps = [line.removeprefix("step ") for line in errors.splitlines() if line.startswith("step ")]
        return code != 0, [words.replace(f"{self._folder.resolve()}/", "") for words in steps]

    def _answer(self, action: str, folder: Path) -> str:
        """Run a process, and return the line that it prints, if any."""
        self._send(json.dumps([action, str(folder), str(self._errors)]))
        lines = [self._line()]
        if not lines[-1].startswith("ended "):
            lines.append(self._line())
        assert self._code(lines[-1]) == 0, self._errors.read_text()
        return lines[0]

    def _send(self, line: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{line}\n")
        self._server.stdin.flush()

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().rstrip("\n")

    @staticmethod
    def _code(line: str) -> int:
        return int(line.removeprefix("ended "))


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
    sweep.close()
    if given.keep is None:
        shutil.rmtree(folder)
    print(f"{bad} cases lost or doubled something" if bad else "nothing lost, nothing doubled")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
