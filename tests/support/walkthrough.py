"""Walks of documented steps: blocks of a page are run in order, with hosts, ports and paths of the tests.

Commands of `gpufleet` run for real. Commands of a machine that is not here (systemd, Kubernetes, package managers) have
handlers.
"""

import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.fakes.nvml.driver import FakeNvml
from tests.support.command import Done, gpufleet
from tests.support.processes import Gpufleet
from tests.support.uv import ROOT
from tests.support.waiting import PATIENCE, wait_until

PAGES = ROOT / "docs" / "onboarding"
PAGE_HUB, PAGE_CLUSTER = "https://hub.example:8470", "rack-7"
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
MOVED = re.compile(r"(?<![\w./])/(?=(?:etc|run/gpufleet|var/lib|usr/local|home|opt)/)")
ABSENT = frozenset({"podman", "useradd", "chown", "systemd-sysusers", "ss", "ln", "python3", "pip", "umask", "otelcol"})
"""Programs of installations, which are not run."""

Handler = Callable[[list[str]], str]
"""Function that runs a command from its arguments and returns the output."""


class Block(NamedTuple):
    """Code block of a page."""

    language: str
    text: str


class Command(NamedTuple):
    """Command of a block, and the text that its output must contain; empty if none is named."""

    line: str
    expected: str


def blocks_of(text: str) -> list[Block]:
    """Return the code blocks of a page, without the indentation of their step."""
    found = []
    for indent, language, body in BLOCK.findall(text):
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        found.append(Block(language, "\n".join(lines) + "\n"))
    return found


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a shell block; continued lines are one command."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        command, _, comment = line.partition("  # ") if "  # " in line else (line, "", "")
        if command.strip() and not command.startswith("#"):
            found.append(Command(command.strip(), comment.removeprefix("check: ") if "check: " in comment else ""))
    return found


def steps_of(text: str) -> list[str]:
    """Return the numbered steps of a page."""
    body = text.partition("\n## Check")[0]
    return re.split(r"^(?=\d+\. )", body, flags=re.MULTILINE)[1:]


class Hub(NamedTuple):
    """Running hub with tokens and TLS: its folder, as `hub init` creates it, and its URL."""

    folder: Path
    url: str


class Walk:
    """Machine on which a page is followed.

    Attributes:
        root: folder in place of `/`.
        replaced: further texts of pages to their replacements.
        environment: variables of the agent beside those of the driver.
        handlers: program to its handler.
    """

    def __init__(self, folder: Path, cluster: str, hub: Hub, driver: FakeNvml, agent_port: int) -> None:
        self.folder, self.cluster, self.hub, self.driver = folder, cluster, hub, driver
        self.root = folder / "root"
        self.agent_url = f"http://127.0.0.1:{agent_port}"
        self.replaced: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.handlers: dict[str, Handler] = {name: lambda _: "" for name in ABSENT}
        self.handlers |= {"gpufleet": self._gpufleet, "systemctl": self._systemctl, "export": self._export}
        self.units: dict[str, Callable[[], object]] = {"gpufleet-agent": self.start_agent}
        self._variables = {"GPUFLEET_CA": str(folder / "ca.crt"), "GPUFLEET_TOKEN_FILE": str(folder / "operator.token")}
        self._daemons: dict[str, Gpufleet] = {}
        shutil.copytree(hub.folder, self.root / "etc" / "gpufleet")
        for name in ("ca.crt", "admin.token", "operator.token"):
            if (hub.folder / name).exists():
                shutil.copy(hub.folder / name, folder)
        (folder / "deploy").symlink_to(ROOT / "deploy")

    def follow(self, text: str) -> None:
        """Follow the blocks of a text in order."""
        for block in blocks_of(text):
            if block.language == "sh":
                for command in commands_of(block):
                    self.run(command)
            else:
                self.write(block)

    def write(self, block: Block) -> Path:
        """Write a file whose path is the first comment of its block."""
        path, _, body = block.text.partition("\n")
        file = self.folder / self.moved(path.removeprefix("# ").strip())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.moved(body))
        return file

    def run(self, command: Command) -> None:
        """Run a command until its output has the expected text. Without such a text it runs once."""
        line, expected, output = self.moved(command.line), self.moved(command.expected), [""]

        if not expected:
            self.execute(line)
            return

        def done() -> bool:
            try:
                output[0] = self.execute(line)
            except AssertionError as error:
                output[0] = str(error)
                return False
            return expected in output[0]

        try:
            wait_until(done, seconds=10, what=expected)
        except AssertionError as error:
            logs = "".join(f"\n{file}:\n{file.read_text()[-1500:]}" for file in self.folder.glob("*.log"))
            raise AssertionError(f"{line}: no {expected!r} in:\n{output[0]}{logs}") from error

    def execute(self, line: str) -> str:
        """Run a command line; return what it printed. Fails if it fails."""
        line = re.sub(r"\bsudo (-u \S+ )?(\w+=\S+ )?", "", line)
        line = re.sub(r"^(install .*?)-[go] \S+ ", r"\1", line)  # accounts that are not here
        program, *arguments = shlex.split(line)
        if program == "gpufleet" and ">" in arguments:
            *arguments, _, target = arguments
            (self.folder / target).write_text(self._done(arguments).stdout)
            return ""
        handler = self.handlers.get(Path(program).name)
        if handler is None or "|" in arguments:
            environment = {**os.environ, **self._variables}
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line],
                capture_output=True,
                text=True,
                cwd=self.folder,
                env=environment,
                timeout=20 * PATIENCE,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            return done.stdout + done.stderr
        return handler(arguments)

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        """Start a daemon, or restart it."""
        if name in self._daemons:
            self._daemons[name].kill()
        self._daemons[name] = Gpufleet(arguments, self.folder / f"{name}.log", environment)

    def start_agent(self) -> None:
        """Start the agent as its unit does."""
        config, listen = self.root / "etc/gpufleet/agent.toml", self.agent_url.removeprefix("http://")
        variables = self.root / "etc/gpufleet/agent.env"
        lines = variables.read_text().splitlines() if variables.exists() else []
        environment = {
            **self.driver.environment,
            **FAST,
            **self.environment,
            **dict(one.split("=", 1) for one in lines),
        }
        self.start("agent", ["agent", "--config", str(config), "--listen", listen], environment)

    def stop(self) -> None:
        """Kill all daemons."""
        for daemon in self._daemons.values():
            daemon.kill()

    def moved(self, text: str) -> str:
        """Return a text of a page with the names of the tests."""
        names = {PAGE_HUB: self.hub.url, PAGE_CLUSTER: self.cluster, "http://127.0.0.1:9470": self.agent_url}
        for name, replacement in {**self.replaced, **names}.items():
            text = text.replace(name, replacement)
        return MOVED.sub(f"{self.root}/", text)

    def _gpufleet(self, arguments: list[str]) -> str:
        done = self._done(arguments)
        return done.stdout + done.stderr

    def _done(self, arguments: list[str]) -> Done:
        if arguments[0] == "join":
            user = pwd.getpwuid(os.geteuid()).pw_name
            arguments += ["--folder", f"{self.root}/etc/gpufleet", "--state", f"{self.root}/var/lib/gpufleet"]
            arguments += ["--user", user]
        done = gpufleet(*arguments, env={**self.driver.environment, **self.environment, **self._variables})
        # A check of this machine may fail, such as that of its clock.
        assert done.returncode == 0 or arguments[0] == "doctor", f"{arguments}\n{done.stdout}{done.stderr}"
        return done

    def _systemctl(self, arguments: list[str]) -> str:
        action, unit = arguments[0], arguments[-1]
        if action == "cat":
            return (self.root / f"etc/systemd/system/{unit}.service").read_text()
        if action in ("enable", "restart", "reload"):
            self.units[unit]()
        return ""

    def _export(self, arguments: list[str]) -> str:
        pairs = [one.split("=", 1) for one in arguments]
        self._variables |= {name: value.replace("$PWD", str(self.folder)) for name, value in pairs}
        return ""


FAST = {
    "GPUFLEET_AGENT_LANES__FAST": "1",
    "GPUFLEET_AGENT_LANES__SLOW": "2",
    "GPUFLEET_AGENT_LANES__STATIC": "5",
    "GPUFLEET_AGENT_HOLDERS__INTERVAL_SECONDS": "1",
}
"""Shorter intervals of an agent."""
