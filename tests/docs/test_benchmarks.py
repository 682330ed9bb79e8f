"""Commands of the page about benchmarks."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.bench.folder import write_capture
from tests.support.benchmarks import document, noisy

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
COMMANDS = [
    command
    for command in re.findall(r"^gpufleet .+$", PAGE, re.MULTILINE)
    # tests/cli/test_bench_target.py has guests, test_bench.py a hub
    if not any(term in command for term in ("guest", "query", "--post"))
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory with two captures, and a folder of programs without any tool that measures."""
    folder = tmp_path_factory.mktemp("place")
    captures = folder / "dist" / "benchmarks"
    captures.mkdir(parents=True)
    for seed in "ab":
        write_capture(captures, document(*noisy(seed), name="metal"))
    (folder / "bin").mkdir()
    (folder / "bin" / "gpufleet").symlink_to(Path(sys.executable).parent / "gpufleet")
    return folder


def test_page_has_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_page_runs(command: str, place: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    environment = {"PATH": str(place / "bin"), "HOME": str(place)}
    done = subprocess.run([bash, "-c", command], cwd=place, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
