"""Built packages, installed from the package index: the core and its extras."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from gpufleet import __version__
from gpufleet.web import page
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.processes import answers, free_port
from tests.support.uv import uv
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

HUB_ONLY = ("litestar", "chdb", "clickhouse_connect", "sqlalchemy")


class Installed:
    """Virtual environment with the installed wheel."""

    def __init__(self, folder: Path, requirement: str) -> None:
        self.folder = folder
        uv("venv", folder)
        uv("pip", "install", "--python", folder, requirement)

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / "gpufleet", *arguments],
            env={**os.environ, **(env or {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def imports(self, module: str) -> bool:
        return subprocess.run([self.folder / "bin" / "python", "-c", f"import {module}"], check=False,
                              capture_output=True).returncode == 0  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source archive, so that both are tested, and return its path."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--out-dir", folder)
    assert (folder / f"gpufleet-{__version__}.tar.gz").exists()
    return folder / f"gpufleet-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("core"), str(wheel))


@pytest.fixture(scope="module")
def agent(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("agent"), f"{wheel}[agent]")


def test_wheel_has_the_files_of_the_web_page(wheel: Path) -> None:
    folder = Path(page.__file__).parent / "static"
    files = {f"gpufleet/web/page/static/{path.name}" for path in folder.iterdir()}
    assert files <= set(zipfile.ZipFile(wheel).namelist())
    assert "gpufleet/web/page/static/index.html" in files


class TestCore:
    def test_core_has_no_libraries_of_the_daemons(self, core: Installed) -> None:
        assert [name for name in ("aiohttp", "uvicorn", "pynvml", *HUB_ONLY) if core.imports(name)] == []

    @pytest.mark.parametrize(
        "arguments",
        ["--help", "--version", "version --json", "snapshot", "snapshot --format prometheus", "config print --for hub",
         "config init", "config validate"],
    )  # fmt: skip
    def test_core_commands_work(self, core: Installed, arguments: str) -> None:
        done = core.run(*arguments.split())
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout

    @pytest.mark.parametrize("arguments", ["agent", "hub", "up"])
    def test_missing_extra_is_named(self, core: Installed, arguments: str, tmp_path: Path) -> None:
        done = core.run(*arguments.split(), "--state", str(tmp_path))
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert "is not installed: install gpufleet[" in line


class TestAgent:
    def test_agent_has_no_libraries_of_the_hub(self, agent: Installed) -> None:
        assert [name for name in HUB_ONLY if agent.imports(name)] == []

    def test_agent_reads_the_gpus(self, agent: Installed, tmp_path: Path) -> None:
        driver = FakeNvml(tmp_path, Scenario.healthy(2))
        done = agent.run("snapshot", "--json", env=driver.environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(json.loads(done.stdout)["devices"]) == 2

    def test_agent_runs_as_a_daemon(self, agent: Installed, tmp_path: Path) -> None:
        port = free_port()
        command = [
            str(agent.folder / "bin" / "gpufleet"),
            "agent",
            "--listen",
            f"127.0.0.1:{port}",
            "--state",
            str(tmp_path),
        ]
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), what="the agent to be ready")
            finally:
                process.terminate()
            assert process.wait(30) == 0
