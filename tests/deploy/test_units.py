"""systemd units: validity, hardening, and the daemons in their sandboxes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.agent.agent import FLUSH_SECONDS
from gpufleet.config.agent import default_state
from gpufleet.hub.relay.forwarding import STOP_SECONDS as LAST_POSTS_SECONDS
from gpufleet.readers.nvml.watch import NvmlLimits
from gpufleet.wiring.hub import STOP_SECONDS
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support import peers
from tests.support.command import gpufleet
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.units import UNITS, unit_value, unit_values
from tests.support.waiting import PATIENCE, wait_until

AGENT, HUB, RELAY = (UNITS / f"gpufleet-{name}.service" for name in ("agent", "hub", "relay"))
INSTALLED = "/opt/gpufleet/bin/gpufleet"
NEWER_KEYS = ("RestartSteps", "RestartMaxDelaySec")
"""Keys that systemd before 254 ignores, as documented in the units."""

Peer = Callable[[str], Path]


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, arguments)],
        env={**os.environ, **peers.environment(program.name)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * PATIENCE,
    )


def arguments_of(unit: Path) -> list[str]:
    command, *arguments = unit_value(unit, "Service", "ExecStart").split()
    assert command == INSTALLED
    return arguments


@pytest.mark.system
@pytest.mark.parametrize("unit", [AGENT, HUB, RELAY], ids=lambda unit: unit.stem)
class TestSystemd:
    def test_unit_passes_systemd_analyze_verify(self, unit: Path, peer: Peer, tmp_path: Path) -> None:
        there = tmp_path / "gpufleet"
        there.symlink_to("/bin/true")
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(INSTALLED, str(there)))
        done = run(peer("systemd-analyze"), "verify", "--man=no", copy)
        complaints = [line for line in done.stderr.splitlines() if not any(key in line for key in NEWER_KEYS)]
        assert (done.returncode, complaints) == (0, [])

    def test_unit_passes_systemd_analyze_security(self, unit: Path, peer: Peer) -> None:
        threshold = {AGENT: 20, HUB: 15, RELAY: 15}[unit]  # tenths; systemd calls up to 20 OK, a bare service has 96
        done = run(peer("systemd-analyze"), "security", "--offline=yes", f"--threshold={threshold}", unit)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", [AGENT, HUB], ids=lambda unit: unit.stem)
class TestUnitFile:
    def test_command_and_option_exist(self, unit: Path, tmp_path: Path) -> None:
        daemon, option, file = arguments_of(unit)
        assert f"gpufleet-{daemon}" == unit.stem
        assert f"`{file}`" in (UNITS.parents[1] / "docs" / "install.md").read_text()
        (tmp_path / "config.toml").write_text("log_level = 'no such level'\n")
        done = gpufleet(daemon, option, str(tmp_path / "config.toml"))
        # The configuration is read, so the option exists. An invalid configuration prevents restarts.
        assert str(done.returncode) == unit_value(unit, "Service", "RestartPreventExitStatus")
        assert "log_level" in done.stderr

    def test_state_folder_belongs_to_the_daemon(self, unit: Path) -> None:
        (variable,) = unit_values(unit, "Service", "Environment")
        name, _, value = variable.partition("=")
        state = default_state({name: value.replace("%S", "/var/lib"), "HOME": "/"}, uid=999)
        daemon = arguments_of(unit)[0]
        assert f"{state}/{daemon}" == f"/var/lib/{unit_value(unit, 'Service', 'StateDirectory')}"

    def test_files_of_the_other_daemon_are_inaccessible(self, unit: Path) -> None:
        (other,) = {"agent", "hub"} - {arguments_of(unit)[0]}
        hidden = unit_value(unit, "Service", "InaccessiblePaths").split()
        assert hidden == [f"-/etc/gpufleet/{other}.toml", f"-/etc/gpufleet/{other}.env", f"-/var/lib/gpufleet/{other}"]

    def test_user_is_created(self, unit: Path) -> None:
        lines = (UNITS / "gpufleet.sysusers").read_text().splitlines()
        users = [line.split()[1] for line in lines if line.startswith("u ")]
        assert unit_value(unit, "Service", "User") in users
        assert unit_value(unit, "Service", "Group") in users


def test_relay_unit_has_its_own_config_state_and_user() -> None:
    daemon, *options = arguments_of(RELAY)
    assert (daemon, options) == ("hub", ["--config", "/etc/gpufleet/relay.toml", "--state", "%S/gpufleet-relay"])
    assert unit_value(RELAY, "Service", "StateDirectory") == "gpufleet-relay"
    assert "/var/lib/gpufleet" in unit_values(RELAY, "Service", "InaccessiblePaths")[1]
    users = [line.split()[1] for line in (UNITS / "gpufleet.sysusers").read_text().splitlines() if line[:2] == "u "]
    assert unit_value(RELAY, "Service", "User") in users
    assert unit_value(RELAY, "Service", "User") != unit_value(HUB, "Service", "User")
    assert (
        float(unit_value(RELAY, "Service", "TimeoutStopSec").removesuffix("s")) > STOP_SECONDS + LAST_POSTS_SECONDS + 5
    )


def test_agent_unit_allows_time_to_stop() -> None:
    nvml = 3 * NvmlLimits().grace
    assert float(unit_value(AGENT, "Service", "TimeoutStopSec").removesuffix("s")) > FLUSH_SECONDS + nvml + 5


def test_agent_unit_does_not_hide_gpus_or_processes() -> None:
    """Assert that no setting hides devices, processes or the kernel log."""
    for key in (
        "PrivateDevices",
        "PrivateNetwork",
        "PrivateUsers",
        "ProtectHostname",
        "RootDirectory",
        "ProtectKernelLogs",
    ):
        assert unit_values(AGENT, "Service", key) == []
    assert unit_value(AGENT, "Service", "ProtectProc") == "default"
    assert unit_value(AGENT, "Service", "ProcSubset") == "all"
    assert {"char-195 rw", "/dev/kmsg r"} <= set(unit_values(AGENT, "Service", "DeviceAllow"))


@pytest.mark.system
def test_systemd_creates_the_users(peer: Peer, tmp_path: Path) -> None:
    done = run(peer("systemd-sysusers"), "--dry-run", f"--root={tmp_path}", UNITS / "gpufleet.sysusers")
    assert done.returncode == 0, done.stderr
    for user in ("gpufleet-agent", "gpufleet-hub", "gpufleet-relay"):
        assert f"user '{user}'" in done.stdout + done.stderr


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="giving files to another group needs root")
def test_machine_identity_is_readable_by_the_agents_group(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "group").write_text("gpufleet-agent:x:4242:\n")
    file = tmp_path / "sys/devices/virtual/dmi/id/product_uuid"
    file.parent.mkdir(parents=True)
    file.write_text("x\n")
    file.chmod(0o400)
    done = run(peer("systemd-tmpfiles"), "--create", f"--root={tmp_path}", UNITS / "gpufleet-identity.tmpfiles")
    assert done.returncode == 0, done.stderr
    found = file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, 4242, 0o440)


@pytest.mark.system
def test_relay_works_within_its_units_sandbox(confined: "Confined", peer: Peer) -> None:
    peer("systemd-analyze")
    at_hub, at_relay = (f"127.0.0.1:{free_port()}" for _ in range(2))
    hub = confined.start(HUB, "--listen", at_hub)
    hub.wait_for(f"http://{at_hub}/readyz", 100)
    relay = confined.start(RELAY, "--listen", at_relay, "--relay-to", f"http://{at_hub}")
    relay.wait_for(f"http://{at_relay}/readyz")
    agent = confined.start(AGENT, "--listen", f"127.0.0.1:{free_port()}", "--hub", f"http://{at_relay}")
    wait_until(lambda: get_json(f"http://{at_hub}/v1/gpus")["items"], what="the hub to know the GPUs")
    assert [process.stop(60) for process in (agent, relay, hub)] == [0, 0, 0]


def can_mount() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and os.geteuid() == 0 and subprocess.run([unshare, "-m", "true"]).returncode == 0


class Confined:
    """Daemons in the sandboxes of their units."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = FakeNvml(folder, Scenario.healthy(2))
        self.running: list[Gpufleet] = []

    def start(self, unit: Path, *arguments: str) -> Gpufleet:
        name = arguments_of(unit)[0]
        state = self.folder / unit.stem
        state.mkdir()
        place = ["--state", str(state)] if can_mount() else []
        launcher = [sys.executable, "tests/support/confined.py", str(unit), *place, "--"]
        command = [name, "--state", str(state), *arguments]
        process = Gpufleet(command, self.folder / f"{unit.stem}.log", self.driver.environment, launcher=launcher)
        self.running.append(process)
        return process


@pytest.fixture
def confined(tmp_path: Path) -> Iterator[Confined]:
    made = Confined(tmp_path)
    yield made
    for process in made.running:
        process.kill()


@pytest.mark.system
def test_agent_and_hub_work_within_their_units_sandbox(confined: Confined, peer: Peer) -> None:
    peer("systemd-analyze")
    at_hub, at_agent = (f"127.0.0.1:{free_port()}" for _ in range(2))
    hub = confined.start(HUB, "--listen", at_hub)
    hub.wait_for(f"http://{at_hub}/readyz", 100)
    agent = confined.start(AGENT, "--listen", at_agent, "--hub", f"http://{at_hub}")
    agent.wait_for(f"http://{at_agent}/readyz")
    wait_until(lambda: get_json(f"http://{at_hub}/v1/gpus")["items"], what="the hub to know the GPUs")
    page = get_text(f"http://{at_agent}/metrics")
    assert page.count("\ngpufleet_gpu_power_watts{") == 2
    assert "gpufleet_host_filesystem_read_only{node=" in page
    for line in page.splitlines():
        if line.startswith("gpufleet_host_filesystem_read_only{") and 'mountpoint="/"' in line:
            assert line.endswith(" 0")  # not the read-only view of the sandbox
    assert agent.stop(30) == 0
    assert hub.stop(60) == 0


@pytest.mark.system
@pytest.mark.skipif(not can_mount(), reason="making /tmp read-only for one process needs root")
def test_hub_without_writable_tmp_fails_to_start(tmp_path: Path) -> None:
    """PrivateTmp= and a container's --tmpfs /tmp prevent this."""
    state = tmp_path / "state"
    state.mkdir()
    script = (
        "mount --make-rprivate / && mount --rbind /tmp /tmp && cd /tmp && "
        'mount --bind "$0" "$0" && mount -o bind,remount,ro /tmp && exec "$@"'
    )
    launcher = ["unshare", "-m", "sh", "-c", script, str(state)]
    log = tmp_path / "log"
    with Gpufleet(["hub", "--state", str(state), "--listen", "127.0.0.1:0"], log, launcher=launcher) as hub:
        assert hub.process.wait(60 * PATIENCE) == 1
    assert "/tmp" in log.read_text()
    assert "Traceback" not in log.read_text()
