"""`gpufleet doctor hub` with real hubs and relays, running and stopped."""

import json
import os
import pwd
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.delivery.post import HubClient, HubVerdict
from gpufleet.doctor.hub.facts import CertificateDetails
from gpufleet.doctor.hub.files import lock_holder, measure_disk
from gpufleet.doctor.hub.gather import inspect_certificate
from gpufleet.model.time import to_datetime
from gpufleet.stores.clickhouse.schema.tables import SCHEMA_VERSION
from tests.fakes.batches import body, make_batch
from tests.support.authority import Authority
from tests.support.command import gpufleet
from tests.support.hub_state import prepare_state
from tests.support.processes import Gpufleet, free_port, get_text
from tests.support.waiting import wait_until

NEVER_FLUSHED = "[flush]\ninterval_seconds = 3600.0\n"


class Site:
    """Hub with its configuration in a folder."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "hub.toml"
        self.state = folder / "state"
        folder.mkdir(exist_ok=True)
        prepare_state(self.state)
        self.config.write_text(f'listen = "127.0.0.1:{self.port}"\nstate = "{self.state}"\n{config}')

    def start(self) -> Gpufleet:
        hub = Gpufleet(["hub", "--config", str(self.config)], self.folder / "log")
        hub.wait_for(f"{self.url}/healthz", 100)
        return hub

    async def post(self, count: int) -> None:
        async with HubClient(self.url, name="test", timeout_seconds=20) as client:
            for seq in range(1, count + 1):
                assert (await client.post(body(seq, time.time_ns()))).verdict is HubVerdict.ACCEPTED

    def examine(self, *more: str, code: int = 0) -> dict[str, Any]:
        done = gpufleet("doctor", "hub", "--json", "--config", str(self.config), *more)
        assert done.returncode == code, done.stdout + done.stderr
        return {check["name"]: check for check in json.loads(done.stdout)}

    def files(self) -> set[str]:
        return {str(path.relative_to(self.state)) for path in self.state.rglob("*")}


async def test_running_killed_and_other_hubs_are_distinguished(tmp_path: Path) -> None:
    site = Site(tmp_path / "this", NEVER_FLUSHED)
    with site.start() as hub:
        await site.post(3)
        checks = site.examine()
        assert checks["daemon"]["verdict"] == "ok"
        assert str(hub.process.pid) in checks["daemon"]["found"]
        assert checks["registry"]["verdict"] == "ok"
        assert str(hub.process.pid) in checks["store"]["found"]
        assert "3 batches" in checks["log"]["found"]
        hub.kill()
    checks = site.examine()
    assert checks["store"]["verdict"] == "ok"
    assert f"schema version {SCHEMA_VERSION}" in checks["store"]["found"]
    assert checks["log"]["verdict"] == "warning"
    assert "3 batches" in checks["log"]["found"]

    other = Site(tmp_path / "other", '[relay]\nto = "http://127.0.0.1:1"\n')
    with other.start():
        checks = site.examine("--hub", other.url)
        own = other.examine()
    assert checks["daemon"]["verdict"] == "warning"
    assert "3 batches" in checks["log"]["found"]
    assert own["daemon"]["verdict"] == "ok"
    assert {own[name]["verdict"] for name in ("registry", "store", "tokens")} == {"not_applicable"}

    with site.start():  # doctor changed nothing: all three batches are still there
        flushed = "gpufleet_hub_flushed_batches_total 3"
        wait_until(lambda: flushed in get_text(f"{site.url}/metrics"), what="three batches in the store")


def test_listener_is_that_of_the_running_process(tmp_path: Path) -> None:
    site = Site(tmp_path, 'log_level = "info"\n')
    port = free_port()
    assert site.examine()["listener"]["verdict"] == "unknown", "no process listens"
    arguments = ["hub", "--config", str(site.config), "--listen", f"0.0.0.0:{port}", "--insecure-listen"]
    with Gpufleet(arguments, tmp_path / "log") as hub:
        hub.wait_for(f"http://127.0.0.1:{port}/healthz", 100)
        checks = site.examine()
        assert checks["listener"]["verdict"] == "warning"
        assert f"0.0.0.0:{port}" in checks["listener"]["found"]
        assert checks["daemon"]["verdict"] == "ok", "it is queried where it listens"
        hub.kill()
    assert site.examine()["listener"]["verdict"] == "unknown", "the file of a killed process does not count"
    with site.start():
        checks = site.examine()
        assert checks["listener"]["verdict"] == checks["daemon"]["verdict"] == "ok"
        assert str(site.port) in checks["listener"]["found"]


async def test_sender_clocks_are_the_same_from_hub_and_registry(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.start() as hub:
        async with HubClient(site.url, name="test", timeout_seconds=20) as client:
            for name, off in (("right", 0), ("ahead", 40), ("behind", -600)):
                await client.post(body(1, time.time_ns() + off * 10**9, sender=name, epoch=f"{off + 1000:032x}"))
            written = make_batch(1, time.time_ns(), sender="writer", epoch="f" * 32)  # of a clock that is not known
            await client.post(encode(msgspec.structs.replace(written, heartbeat=None)))
        wait_until(lambda: "gpufleet_hub_flushed_batches_total 4" in get_text(f"{site.url}/metrics"), what="a flush")
        running = site.examine()["sender_clocks"]
        hub.stop()
    assert {"2 of 3", "behind -600 s", "ahead +40 s"} == set(re.findall(r"2 of 3|\w+ [-+]\d+ s", running["found"]))
    assert site.examine()["sender_clocks"] == running


def test_damaged_registry_fails_the_check(tmp_path: Path) -> None:
    site = Site(tmp_path)
    file = site.state / "hub" / "registry.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'senders'")
    check = site.examine(code=1)["registry"]
    assert check["verdict"] == "failed", check


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_are_not_opened(tmp_path: Path) -> None:
    site = Site(tmp_path)
    os.chown(site.state / "hub", 65534, 65534)
    before = site.files()
    checks = site.examine()
    assert site.files() == before
    assert checks["state_folder"]["verdict"] == "unknown"
    assert f"sudo -u {pwd.getpwuid(65534).pw_name}" in checks["state_folder"]["fix"]
    assert {checks[name]["verdict"] for name in ("registry", "store", "log")} == {"unknown"}


def test_certificate_and_tokens_of_a_hub_are_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = tmp_path / "hub.crt", tmp_path / "hub.key"
    authority.issue(certificate, key)
    key.chmod(0o640)
    site = Site(tmp_path, f'auth = "tokens"\n[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n')
    tokens = {}
    for role, more in (("sender", ("--cluster", "local", "--expires-in", "3d")), ("operator", ())):
        created = gpufleet("token", "create", "--role", role, *more, "--config", str(site.config))
        tokens[role] = tmp_path / role
        tokens[role].write_text(created.stdout)
        tokens[role].chmod(0o600)
    url = f"https://127.0.0.1:{site.port}"
    with Gpufleet(["hub", "--config", str(site.config)], tmp_path / "log") as hub:
        hub_options = ("--hub", url, "--token-file", str(tokens["operator"]), "--ca", str(authority.file))
        wait_until(lambda: url in hub.log.read_text(), seconds=100, what="the hub to listen")
        checks = site.examine(*hub_options)
        assert checks["certificate"]["verdict"] == "ok"
        assert "127.0.0.1" in checks["certificate"]["found"]
        assert checks["tokens"]["verdict"] == "warning"
        assert "21 days" in checks["tokens"]["found"]
        assert "TLS and tokens" in checks["listener"]["found"]
        without = site.examine("--hub", url, "--ca", str(authority.file))
        assert without["daemon"]["verdict"] == "unknown"
        assert "--token-file" in without["daemon"]["fix"]
        assert without["registry"]["verdict"] == "ok", "the registry file is readable"
    key.chmod(0o644)
    assert site.examine("--hub", "https://other:1", code=1)["certificate"]["verdict"] == "failed"


def test_certificate_is_checked_as_a_client_does(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = tmp_path / "crt", tmp_path / "key"
    authority.issue(certificate, key)
    known = inspect_certificate(str(certificate), str(key), "127.0.0.1")
    assert isinstance(known, CertificateDetails)
    assert (known.names, known.name_matches) == (("127.0.0.1",), True)
    other = inspect_certificate(str(certificate), str(key), "hub.example")
    assert isinstance(other, CertificateDetails)
    assert other.name_matches is False
    authority.issue(tmp_path / "crt2", tmp_path / "key2")
    assert "mismatch" in str(inspect_certificate(str(certificate), str(tmp_path / "key2"), None)).lower()
    assert isinstance(inspect_certificate(str(certificate), str(tmp_path / "none"), None), str)


def test_daily_growth_is_taken_from_the_newest_complete_day(tmp_path: Path) -> None:
    table = tmp_path / "store" / "store" / "a91" / "a91d"
    for name, size in (("20260530_1_9_2", 10), ("20260531_1_9_2", 200), ("20260601_1_9_2", 7), ("all_1_1_0", 5000)):
        (table / name).mkdir(parents=True)
        (table / name / "data.bin").write_bytes(b"x" * size)
    (tmp_path / "registry.sqlite").write_bytes(b"x" * 30)
    disk = measure_disk(tmp_path, to_datetime(1_780_272_000_000_000_000).date())
    assert (disk.day, disk.day_bytes) == ("2026-05-31", 200)
    assert disk.used == {"store": 5217, "registry.sqlite": 30}


def test_lock_holder_is_read_without_locking(tmp_path: Path) -> None:
    file, locks = tmp_path / "lock", tmp_path / "locks"
    assert lock_holder(file) == 0
    file.write_text("")
    assert lock_holder(file) == 0
    status = file.stat()
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks.write_text(f"1: POSIX  ADVISORY  WRITE 7 {inode} 0 EOF\n2: FLOCK  ADVISORY  WRITE 42 {inode} 0 EOF\n")
    assert lock_holder(file, locks) == 42
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE 0 {inode} 0 EOF\n")
    assert lock_holder(file, locks) == -1
