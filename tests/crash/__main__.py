"""Crash suite: `make crash`, or with a given seed

python -m tests.crash [--minutes 10] [--seed N] [--only PATTERN ...] [--steps N] [--keep FOLDER]
"""

import argparse
import random
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.faults import FAULTS
from tests.crash.report import render
from tests.crash.run import Run
from tests.crash.schedule import choose


def main() -> int:
    """Run the suite. Exit with 0 if nothing was lost or duplicated and nothing crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Faults under load, and an audit.")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration of the faults [10]")
    parser.add_argument("--seed", type=int, default=None, help="random seed [random]")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="only faults that match PATTERN")
    parser.add_argument("--steps", type=int, default=None, help="maximum number of faults")
    parser.add_argument("--keep", type=Path, default=None, metavar="FOLDER", help="keep logs in this folder")
    parser.add_argument("--list", action="store_true", help="list the faults")
    given = parser.parse_args()
    if given.list:
        print("\n".join(FAULTS))
        return 0
    try:
        choose(list(FAULTS), given.only)
    except ValueError as error:
        parser.error(str(error))
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    command = ["python", "-m", "tests.crash", "--minutes", f"{given.minutes:g}", "--seed", str(seed)]
    command += [part for pattern in given.only for part in ("--only", pattern)]
    command += ["--steps", str(given.steps)] if given.steps is not None else []
    print(f"seed {seed}; repeat with: {shlex.join(command)}", flush=True)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="gpufleet-crash-"))
    began = time.monotonic()

    def progress(message: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {message}", flush=True)

    try:
        outcome = Run(folder, seed, progress).run(seconds=60 * given.minutes, only=given.only, steps=given.steps)
    except (AssertionError, OSError) as error:
        print(f"\nFAILED: {error}\nlogs: {folder}\nrepeat with: {shlex.join(command)}", file=sys.stderr)
        return 1
    verdict = outcome.verdict
    print(f"\nSeconds from the end of a fault\n\n{render(outcome.times)}\n")
    print(
        f"{verdict.acknowledged} batches acknowledged, {verdict.values} values of them checked, "
        f"{verdict.rows} rows in the store"
    )
    for name, (lost, counted) in verdict.lost.items():
        print(f"{name}: {lost} batches never arrived, {counted} counted as lost")
    if not verdict.problems:
        print("no uncounted loss, no duplicates, no crash")
        if given.keep is None:
            shutil.rmtree(folder)
        return 0
    for problem in verdict.problems:
        print(f"\nPROBLEM: {problem}", file=sys.stderr)
    print(f"\nlogs: {folder}\nrepeat with: {shlex.join(command)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
