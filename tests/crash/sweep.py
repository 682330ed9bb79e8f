"""Flush that is killed before every change it makes on disk, and again while it is repeated.

    python -m tests.crash.sweep [--keep FOLDER]

Each case starts from the same folder: a hub that has acknowledged batches and has not flushed them. One process
flushes and is killed before one of its changes. A second process repeats the flush and is killed before one of its own
changes. A third process completes the flush and reports the content of every table. The content must equal that of an
undisturbed flush: each row once.

Writes into a part before its rename are not counted: they are not visible yet.
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

from tests.crash.shim.shim import TEMPORARY, Shim

ROOT = Path(__file__).parents[2]
SECONDS = 240
_NEVER = 1 << 40

PART = "rename to store/store/"
"""Rename of a part. The insert's token is on disk before it, and the rows are visible after it."""


class Case(msgspec.Struct, frozen=True):
    """Case of the sweep.

    Attributes:
        deaths: the change before each kill, as action and path.
        found: content reported by the last process.
    """

    deaths: tuple[str, ...]
    found: dict[str, Any]


class Sweep:
    """Cases that start from one hub.

    Attributes:
        steps: changes of an undisturbed flush, in order, as action and path.
        expected: content after an undisturbed flush.
    """

    def __init__(self, folder: Path) -> None:
        """Create the hub, and record an undisturbed flush."""
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
        """Kill a process before each of the steps in turn, counted from 1. Then complete the flush."""
        self._begin()
        ends = [self._flush(step) for step in steps]
        return Case(tuple(log[-1] for died, log in ends if died), json.loads(self._answer("count", self._folder)))

    def chain(self) -> Case:
        """Kill a process before each rename of a part: every process renames one more part than its predecessor.

        Each process first renames parts of `subjects` (with the number at which it continues) and of `touched_hours`,
        then the part before which its predecessor was killed.
        """
        self._begin()
        deaths: list[str] = []
        for number in itertools.chain((1, 2, 3), itertools.repeat(4, len(self.steps))):
            died, steps = self._flush(number, counted=PART)
            if not died:
                break
            deaths.append(steps[-1])
        return Case(tuple(deaths), json.loads(self._answer("count", self._folder)))

    def cases(self) -> Iterator[Case]:
        """Yield a case for every step of a flush, combined with a step of the repeated flush."""
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
        self._shim.die_before(self._folder, step, skipped=TEMPORARY, counted=counted)
        self._send("go")
        code = self._code(self._line())
        self._shim.reset()
        errors = self._errors.read_text()
        assert code in (0, -signal.SIGKILL), errors
        steps = [line.removeprefix("step ") for line in errors.splitlines() if line.startswith("step ")]
        return code != 0, [step.replace(f"{self._folder.resolve()}/", "") for step in steps]

    def _answer(self, action: str, folder: Path) -> str:
        """Run a process, and return its line of output, if any."""
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
    """Print every case. Exit with 0 if all equal the undisturbed flush."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.sweep", description="A flush killed at every step.")
    parser.add_argument("--keep", type=Path, default=None, metavar="FOLDER", help="work in this folder and keep it")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="gpufleet-sweep-"))
    sweep = Sweep(folder)
    print(f"{len(sweep.steps)} steps", flush=True)
    bad = 0
    for case in sweep.cases():
        is_same = case.found == sweep.expected
        bad += not is_same
        print(f"{'ok' if is_same else f'LOST OR DUPLICATED: {case.found}'}: {', then '.join(case.deaths)}", flush=True)
    sweep.close()
    if given.keep is None:
        shutil.rmtree(folder)
    print(f"{bad} cases lost or duplicated rows" if bad else "nothing lost, nothing duplicated")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
