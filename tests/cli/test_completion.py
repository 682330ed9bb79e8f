"""Shell completion: the scripts are there, and bash completes with them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("gpufleet")


def completed(arguments: list[str], **env: str) -> str:
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
    ("shell", "words"),
    [
        ("bash", "-F _gpufleet_completion gpufleet"),
        ("zsh", "#compdef gpufleet"),
        ("fish", "complete --command gpufleet"),
    ],
)
def test_the_script_of_each_shell(shell: str, words: str) -> None:
    assert words in completed([str(COMMAND)], _GPUFLEET_COMPLETE=f"source_{shell}")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("typed", "offered"), [("gpufleet sn", "snapshot"), ("gpufleet config in", "init")])
def test_what_each_shell_is_answered(shell: str, typed: str, offered: str) -> None:
    answer = completed(
        [str(COMMAND)],
        _GPUFLEET_COMPLETE=f"complete_{shell}",
        COMP_WORDS=typed,
        COMP_CWORD=str(typed.count(" ")),
        _TYPER_COMPLETE_ARGS=typed,
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert offered in answer


def test_bash_shows_its_script_and_completes_with_it() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = (
        'eval "$(gpufleet --show-completion)"\n'
        "COMP_WORDS=(gpufleet sn) COMP_CWORD=1\n"
        "_gpufleet_completion gpufleet sn gpufleet\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    assert completed([bash, "-c", script]) == "snapshot\n"
