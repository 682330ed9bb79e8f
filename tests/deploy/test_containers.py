"""Container files: checked without a container engine, build commands included."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hub_state import prepare_state
from tests.support.processes import Gpufleet, free_port
from tests.support.uv import ROOT, find
from tests.support.waiting import PATIENCE

FOLDER = ROOT / "deploy" / "container"
FILES = [FOLDER / "agent.Containerfile", FOLDER / "hub.Containerfile"]
PORTS = {"agent.Containerfile": 9470, "hub.Containerfile": 8470}

Instruction = tuple[str, str]


def instructions(file: Path) -> list[Instruction]:
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined)]


def values(file: Path, name: str) -> list[str]:
    return [rest for instruction, rest in instructions(file) if instruction == name]


def copied(file: Path) -> list[str]:
    """Return the paths that are copied from the repository."""
    return [source for rest in values(file, "COPY") if "--from" not in rest for source in rest.split()[:-1]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
class TestFile:
    def test_base_image_has_one_version(self, file: Path) -> None:
        (image,) = [rest for rest in values(file, "ARG") if rest.startswith("PYTHON=")]
        assert re.fullmatch(r"PYTHON=python:3\.1[1-9]-slim-[a-z]+", image)
        assert {rest.split()[0] for rest in values(file, "FROM")} == {"${PYTHON}"}

    def test_uv_has_the_version_of_the_makefile(self, file: Path) -> None:
        makefile = (ROOT / "Makefile").read_text()
        (version,) = re.findall(r"^UV_VERSION := (.+)$", makefile, re.MULTILINE)
        assert f"UV_VERSION={version}" in values(file, "ARG")

    def test_build_downloads_nothing_else(self, file: Path) -> None:
        assert values(file, "ADD") == []
        for _, rest in instructions(file):
            assert re.search(r"https?://(?!127\.0\.0\.1)|\b(curl|wget|git|apt|apt-get)\b", rest) is None, rest

    def test_copied_files_exist_and_are_not_ignored(self, file: Path) -> None:
        ignored, *kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
        assert ignored == "*"
        for source in copied(file):
            assert (ROOT / source).exists()
            assert f"!{source}" in kept

    def test_user_cannot_write_the_program_files(self, file: Path) -> None:
        found = instructions(file)
        last = [name for name, _ in found].index("FROM", 1 + [name for name, _ in found].index("FROM"))
        stage = found[last:]
        names = [name for name, _ in stage]
        (user,) = [rest for name, rest in stage if name == "USER"]
        uid, gid = user.split(":")
        assert int(uid) > 1000
        assert int(gid) > 1000
        assert {"COPY", "RUN", "ADD"}.isdisjoint(names[names.index("USER") :])
        assert [rest for name, rest in stage if name == "RUN"] == [
            f"install -d -o {uid} -g {gid} -m 0750 /var/lib/gpufleet"
        ]
        assert ("VOLUME", "/var/lib/gpufleet") in stage

    def test_file_contains_no_secret(self, file: Path) -> None:
        for name, rest in instructions(file):
            assert name not in ("ARG", "ENV") or re.search("token|password|secret", rest, re.IGNORECASE) is None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_health_check_fails_until_the_daemon_is_up(file: Path, tmp_path: Path) -> None:
    (check,) = values(file, "HEALTHCHECK")
    port = free_port()
    python, *arguments = json.loads(check[check.index("[") :].replace(str(PORTS[file.name]), str(port)))
    assert python == "python"

    def exit_code() -> int:
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, check=False, timeout=20 * PATIENCE
        ).returncode

    assert exit_code() != 0
    (command,) = (json.loads(rest) for rest in values(file, "CMD"))
    if command == ["hub"]:
        prepare_state(tmp_path)
    with Gpufleet([*command, "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path)], tmp_path / "log") as daemon:
        daemon.wait_for(f"http://127.0.0.1:{port}/readyz", 100)
        assert exit_code() == 0


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_build_commands_install_from_copied_files(file: Path, tmp_path: Path) -> None:
    """Run the `uv sync` lines unchanged, except the path of uv and its cache, in a folder with only the copies."""
    source, target = tmp_path / "source", tmp_path / "opt"
    source.mkdir()
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(target), "UV_PYTHON_DOWNLOADS": "never"}
    for name, rest in instructions(file):
        if name == "COPY" and "--from" not in rest:
            for path in rest.split()[:-1]:
                copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
                copy(ROOT / path, source / path)
        elif name == "RUN" and "uv sync" in rest:
            command = [str(find()), *(part for part in shlex.split(rest)[1:] if part != "--no-cache")]
            done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    shutil.rmtree(source)
    (daemon,) = (json.loads(rest) for rest in values(file, "CMD"))
    run = [target / "bin" / "gpufleet", "config", "validate", "--for", *daemon]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.endswith("is valid\n")
    needs = {"agent": "aiohttp, pynvml, uvicorn", "hub": "chdb, litestar, sqlalchemy"}[daemon[0]]
    subprocess.run([target / "bin" / "python", "-c", f"import {needs}"], check=True)
