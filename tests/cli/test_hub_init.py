"""`gpufleet hub init` and `hub certificate`: what they create, for whom, and what they refuse to replace."""

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.doctor.hub.facts import CertificateDetails
from gpufleet.doctor.hub.gather import inspect_certificate
from tests.support.authority import Authority
from tests.support.command import Done, gpufleet

OTHER = "daemon"
"""Account that every Debian has."""

FILES = {"hub.toml", "admin.token", "ca.crt", "ca.key", "hub.crt", "hub.key"}


def init(folder: Path, *more: str) -> Done:
    return gpufleet("hub", "init", "--folder", str(folder / "conf"), "--state", str(folder / "state"), *more)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> tuple[str, ...]:
    found = inspect_certificate(str(folder / "hub.crt"), str(folder / "hub.key"), None)
    assert isinstance(found, CertificateDetails), found
    return found.names


def test_init_creates_a_valid_configuration_and_private_files(tmp_path: Path) -> None:
    done = init(tmp_path, "--name", "hub.example", "--user", pwd.getpwuid(os.geteuid()).pw_name)
    assert done.returncode == 0, done.stderr
    conf = tmp_path / "conf"
    assert {path.name for path in conf.iterdir()} == FILES
    assert {name for name in FILES if mode(conf / name) != 0o600} == {"ca.crt", "hub.crt"}
    assert names(conf) == ("hub.example", "localhost", "127.0.0.1", "::1")
    secret = (conf / "admin.token").read_text().strip()
    assert secret.startswith("gpf_")
    assert secret not in done.stdout + done.stderr
    config = str(conf / "hub.toml")
    assert gpufleet("config", "validate", "--for", "hub", "--config", config).returncode == 0
    (line,) = gpufleet("token", "list", "--config", config).stdout.splitlines()
    assert line.split("\t")[:2] == [secret.split("_")[1], "admin"]
    assert "gpufleet join https://hub.example:8470" in done.stdout


def test_existing_files_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "ca.key").write_text("mine")
    done = init(tmp_path)
    assert done.returncode == 1
    assert "ca.key" in done.stderr
    assert [path.name for path in (tmp_path / "conf").iterdir()] == ["ca.key"]
    assert not (tmp_path / "state").exists()


def test_own_certificate_is_used_in_place(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue(tmp_path / "crt", tmp_path / "key")
    pair = ("--certificate", str(tmp_path / "crt"), "--key", str(tmp_path / "key"))
    assert init(tmp_path, *pair).returncode == 0
    assert {path.name for path in (tmp_path / "conf").iterdir()} == {"hub.toml", "admin.token"}
    assert str(tmp_path / "crt") in (tmp_path / "conf" / "hub.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--listen", "nowhere"), 2),
        (("--name", "a b"), 1),
        (("--certificate", "/none"), 2),
        (("--certificate", "/none", "--key", "/none"), 2),
        (("--user", "no-such-account"), 1),
    ],
)
def test_wrong_option_leaves_no_configuration(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    done = init(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert ".new-" not in done.stderr, "errors name the option"
    assert not list(tmp_path.glob("conf/*"))


def test_renewed_certificate_keeps_or_replaces_its_names(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    assert init(tmp_path, "--name", "hub.example").returncode == 0
    before = (conf / "hub.crt").read_bytes()
    assert gpufleet("hub", "certificate", "--folder", str(conf)).returncode == 0
    assert (conf / "hub.crt").read_bytes() != before
    assert names(conf) == ("hub.example", "localhost", "127.0.0.1", "::1")
    assert gpufleet("hub", "certificate", "--folder", str(conf), "--name", "other.example").returncode == 0
    assert names(conf) == ("other.example",)
    assert mode(conf / "hub.key") == 0o600
    assert gpufleet("hub", "certificate", "--folder", str(tmp_path)).returncode == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that every account may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files for another account")
def test_files_for_another_account_belong_to_it(open_folder: Path) -> None:
    done = init(open_folder, "--user", OTHER)
    assert done.returncode == 0, done.stderr
    other = pwd.getpwnam(OTHER)
    hub = open_folder / "state" / "hub"
    for path in (hub, *hub.iterdir()):
        assert (path.stat().st_uid, path.stat().st_gid) == (other.pw_uid, other.pw_gid), path
    conf = open_folder / "conf"
    for name in ("hub.toml", "hub.key"):
        assert (mode(conf / name), conf.joinpath(name).stat().st_gid) == (0o640, other.pw_gid)
    for name in ("ca.key", "admin.token"):
        assert (mode(conf / name), conf.joinpath(name).stat().st_uid) == (0o600, 0)
    assert f"sudo -u {OTHER}" in done.stdout
