"""Shell completion: scripts of each shell, and completion in bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("gpufleet")


def output_of(arguments: list[str], **env: str) -> str:
    done = subprocess.run(
        arguments,
        env={**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("bash", "-F _gpufleet_completion gpufleet"),
        ("zsh", "#compdef gpufleet"),
        ("fish", "complete --command gpufleet"),
    ],
)
def test_completion_script_of_each_shell(shell: str, expected: str) -> None:
    assert expected in output_of([str(COMMAND)], _GPUFLEET_COMPLETE=f"source_{shell}")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("line", "candidate"), [("gpufleet sn", "snapshot"), ("gpufleet config in", "init")])
def test_completion_candidates_of_each_shell(shell: str, line: str, candidate: str) -> None:
    answer = output_of(
        [str(COMMAND)],
        _GPUFLEET_COMPLETE=f"complete_{shell}",
        COMP_WORDS=line,
        COMP_CWORD=str(line.count(" ")),
        _TYPER_COMPLETE_ARGS=line,
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert candidate in answer


def test_bash_completes_with_its_script() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = (
        'eval "$(gpufleet --show-completion)"\n'
        "COMP_WORDS=(gpufleet sn) COMP_CWORD=1\n"
        "_gpufleet_completion gpufleet sn gpufleet\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    assert output_of([bash, "-c", script]) == "snapshot\n"
