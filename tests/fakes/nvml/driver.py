"""Fake NVIDIA driver: a folder with libnvidia-ml.so.1, a scenario and a log of calls.

python -m tests.fakes.nvml.driver [BRANCH]     compiles the library and prints its folder
"""

import hashlib
import os
import sys
from collections import Counter
from pathlib import Path

from tests.fakes.nvml.scenario import Scenario
from tests.support.compiler import compile_library

LIBRARY = Path(__file__).with_name("library")
CACHE = Path(__file__).parents[3] / ".cache" / "fake-nvml"
NEWEST_BRANCH = 610

EARLY_535 = 53543
"""Branch number of the drivers 535.43 to 535.86: branch 535 with longer process records."""


def build(branch: int = NEWEST_BRANCH) -> Path:
    """Compile the library for a driver branch, once per source, and return its folder."""
    sources = sorted(LIBRARY.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = CACHE / f"{digest}-{branch}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"fresh-{os.getpid()}"
        defines = {"DRIVER_BRANCH": 535, "EARLY_535": 1} if branch == EARLY_535 else {"DRIVER_BRANCH": branch}
        parts = [source for source in sources if source.suffix == ".c"]
        compile_library(parts, fresh, soname="libnvidia-ml.so.1", defines=defines)
        fresh.replace(library)
    return folder


class FakeNvml:
    """Fake driver for processes started with its `environment`."""

    def __init__(
        self, folder: Path, scenario: Scenario, *, branch: int = NEWEST_BRANCH, log: bool = False, still: bool = False
    ) -> None:
        """Write the scenario. A driver that is `still` reads it once instead of checking it at each call."""
        self.scenario = scenario
        self._library = build(branch)
        self._path = folder / "scenario.txt"
        self._log = folder / "calls.txt" if log else None
        self._still = still
        self.apply()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of this process with the fake driver added."""
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self._library), "FAKE_NVML": str(self._path)}
        if self._still:
            environment["FAKE_NVML_STILL"] = "1"
        if self._log is not None:
            environment["FAKE_NVML_LOG"] = str(self._log)
        return environment

    def apply(self) -> None:
        """Write `scenario` in its present state. Running processes follow it."""
        self.scenario.write(self._path)

    def calls(self) -> Counter[tuple[str, int]]:
        """Return the number of calls per (function, GPU index); the index is -1 for calls without a GPU."""
        assert self._log is not None, "created without a log"
        written = self._log.read_text() if self._log.exists() else ""
        lines = written[: written.rfind("\n") + 1].splitlines()  # the last line may be incomplete
        return Counter((function, int(gpu)) for function, gpu in (line.split() for line in lines))


if __name__ == "__main__":
    print(build(int(sys.argv[1]) if len(sys.argv) > 1 else NEWEST_BRANCH))
