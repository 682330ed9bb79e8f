"""Guest folder: files are added and removed at runtime, and an invalid file affects only itself."""

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.agent.guests.sources import GuestFolder
from gpufleet.channels.stream.dialers import make_dialer
from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import (
    MAX_FILE_BYTES,
    MAX_GUESTS,
    DcgmChannel,
    GuestConfig,
    MetricsChannel,
    SshChannel,
    read_guest,
)
from gpufleet.config.load import InvalidValueError, load, resolve
from gpufleet.config.template import render_toml
from gpufleet.model.errors import ConfigError
from gpufleet.ports.guests import GuestListing

UID = "6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f"
GOOD = f"""
name = "train-0"
namespace = "ml"
vm_uuid = "{UID}"
gpus = 2
gpu_types = {{ "NVIDIA H100 80GB HBM3" = 2 }}

[[channels]]
type = "ssh"
address = "10.0.3.7"
key_file = "/etc/gpufleet/guest_key"

[[channels]]
type = "dcgm"
address = "vsock://42:5555"
"""


def write_file(folder: Path, name: str, text: str) -> None:
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").replace(folder / name)


def test_files_are_added_changed_and_removed(tmp_path: Path) -> None:
    folder = GuestFolder(tmp_path)
    assert folder.list_guests().guests == {}
    write_file(tmp_path, "a.toml", GOOD)
    assert folder.list_guests().guests["a.toml"].title == "ml/train-0"
    write_file(tmp_path, "a.toml", GOOD.replace("train-0", "train-1"))
    assert folder.list_guests().guests["a.toml"].title == "ml/train-1"
    (tmp_path / "a.toml").unlink()
    assert folder.list_guests().guests == {}


def test_missing_folder_is_empty(tmp_path: Path) -> None:
    folder = GuestFolder(tmp_path / "later")
    assert (folder.list_guests().guests, folder.list_guests().problems) == ({}, {})
    (tmp_path / "later").mkdir()
    write_file(tmp_path / "later", "a.toml", GOOD)
    assert list(folder.list_guests().guests) == ["a.toml"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "missing required field `name`"),
        ("name = ", "is not TOML"),
        (GOOD.replace(UID, "train-0"), "vm_uuid"),
        (GOOD.replace("gpus = 2", "gpus = 1"), "gpu_types"),
        (GOOD.replace("gpus", "gpu"), "unknown field"),
        (GOOD.replace('"ssh"', '"telnet"'), "Invalid value 'telnet'"),
        (GOOD.replace("vsock://42:5555", "http://x"), "is not vsock://CID:PORT"),
        (GOOD.replace("vsock://42:5555", "vsock://2:5555"), "is not vsock://CID:PORT"),
        (
            GOOD.replace("vsock://42:5555", "tcp://[]:5555"),
            "is not vsock://CID:PORT",
        ),  # an empty host name would be this host
        (GOOD.replace("10.0.3.7", "10.0.3.7:0"), "is not HOST or HOST:PORT"),
        (GOOD.replace("/etc/gpufleet/guest_key", "/etc/\\u0000"), "key_file"),
        (
            GOOD.replace('type = "dcgm"\naddress = "vsock://42:5555"', 'type = "qemu_agent"\nsocket = "x"'),
            "channels[1]: socket",
        ),
        (GOOD.replace("train-0", "\\u001b[2J"), "a.toml: name"),
        ("x" * (MAX_FILE_BYTES + 1), str(MAX_FILE_BYTES)),
        ("[" * 5000, "a.toml"),
    ],
)
def test_invalid_file_is_reported_and_others_are_read(tmp_path: Path, text: str, expected: str) -> None:
    write_file(tmp_path, "b.toml", GOOD)
    write_file(tmp_path, "a.toml", text)
    listing = GuestFolder(tmp_path).list_guests()
    assert list(listing.guests) == ["b.toml"]
    assert expected in listing.problems["a.toml"]
    assert str(tmp_path / "a.toml") in listing.problems["a.toml"]


def test_world_writable_folder_is_ignored(tmp_path: Path) -> None:
    write_file(tmp_path, "a.toml", GOOD)
    tmp_path.chmod(0o1777)
    listing = GuestFolder(tmp_path).list_guests()
    assert listing.guests == {}
    assert listing.problems.keys() == {str(tmp_path)}


@pytest.mark.parametrize("target", ["nowhere", "z.toml", "folder/x"])
def test_broken_link_affects_only_itself(tmp_path: Path, target: str) -> None:
    """A file may also disappear while the folder is read. Other virtual machines are not affected."""
    write_file(tmp_path, "a.toml", GOOD)
    folder = GuestFolder(tmp_path)
    folder.list_guests()
    (tmp_path / "z.toml").symlink_to(target)
    listing = folder.list_guests()
    assert list(listing.guests) == ["a.toml"]
    assert str(tmp_path / "z.toml") in listing.problems["z.toml"]
    (tmp_path / "z.toml").unlink()
    assert folder.list_guests().problems == {}


def test_unreadable_folder_keeps_the_last_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path, "a.toml", GOOD)
    folder = GuestFolder(tmp_path)
    folder.list_guests()
    with monkeypatch.context() as patch:
        # A failed listing is not an empty folder.
        patch.setattr("os.scandir", lambda _: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        listing = folder.list_guests()
    assert list(listing.guests) == ["a.toml"]
    assert "Too many open files" in listing.problems[str(tmp_path)]
    (tmp_path / "a.toml").unlink()
    assert folder.list_guests() == GuestListing({}, {})


def test_files_above_the_limit_are_reported_and_ignored(tmp_path: Path) -> None:
    for number in range(MAX_GUESTS):
        write_file(tmp_path, f"m{number}.toml", GOOD.replace(UID, str(uuid.UUID(int=number))))
    folder = GuestFolder(tmp_path)
    before = folder.list_guests()
    assert len(before.guests) == MAX_GUESTS
    for name in ("a.toml", "z.toml"):
        write_file(tmp_path, name, GOOD)
    listing = folder.list_guests()
    assert listing.guests == before.guests
    assert listing.problems.keys() == {str(tmp_path)}


def test_world_writable_file_is_ignored_until_fixed(tmp_path: Path) -> None:
    write_file(tmp_path, "a.toml", GOOD)
    folder = GuestFolder(tmp_path)
    (tmp_path / "a.toml").chmod(0o666)
    listing = folder.list_guests()
    assert listing.guests == {}
    assert listing.problems.keys() == {"a.toml"}
    (tmp_path / "a.toml").chmod(0o644)
    assert list(folder.list_guests().guests) == ["a.toml"]


def test_hidden_and_special_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".a.toml").write_text(GOOD)
    (tmp_path / "a.toml.tmp").write_text(GOOD)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    listing = GuestFolder(tmp_path).list_guests()
    assert listing.guests == {}
    assert set(listing.problems) == {"folder.toml", "pipe.toml"}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_guest_or_a_named_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("guests") / "a.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        read_guest(file)


_HOSTS = st.sampled_from(
    ["vm", "[fd00::7]", "0", "1", "2", "3", "42", str(2**32 - 2), str(2**32 - 1), "/run/x", "/", ""]
)
_PORTS = st.sampled_from([":0", ":1", ":65535", ":65536", f":{2**32 - 2}", f":{2**32 - 1}", ":x", ":-1", "", ":\0"])


@given(st.sampled_from(["tcp", "unix", "vsock", "hybrid-vsock", "http", ""]), _HOSTS, _PORTS)
def test_accepted_address_can_be_dialled(scheme: str, host: str, port: str) -> None:
    """An address rejected only by the dialer would stop the task that reads the virtual machine."""
    address = f"{scheme}://{host}{port}"
    try:
        DcgmChannel(address=address)
    except InvalidValueError:
        return
    assert callable(make_dialer(address).dial)


def test_valid_addresses_are_accepted() -> None:
    for address in (
        "tcp://vm:1",
        "unix:///x",
        "vsock://1:1",
        f"vsock://{2**32 - 2}:{2**32 - 2}",
        "hybrid-vsock:///x:0",
    ):
        assert MetricsChannel(address=address).address == address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.3.7", "10.0.3.7", 22),
        ("vm:2222", "vm", 2222),
        ("fd00::7", "fd00::7", 22),
        ("[fd00::7]:23", "fd00::7", 23),
    ],
)
def test_ssh_address_is_split_into_host_and_port(address: str, host: str, port: int) -> None:
    assert SshChannel(address=address, key_file="k").split() == (host, port)


def test_guest_uuid_is_lower_case() -> None:
    channel = SshChannel(address="a", key_file="k")
    assert GuestConfig(name="vm", vm_uuid=UID.upper(), channels=(channel,)).uid == UID


def test_documented_example_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guests.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[2].partition("```")[0]
    write_file(tmp_path, "a.toml", example)
    guest = read_guest(tmp_path / "a.toml")
    assert guest.title == "ml/train-0"
    assert [type(channel).__struct_config__.tag for channel in guest.channels] == [
        "ssh",
        "dcgm",
        "metrics",
        "qemu_agent",
    ]
    write_file(tmp_path, "agent.toml", f"[[guests]]\n{example.replace('[[channels]]', '[[guests.channels]]')}")
    agent = load(AgentConfig, file=tmp_path / "agent.toml", env_prefix="X_", env={}, flags={})
    assert agent.guests == (guest,)
    written = render_toml(resolve(AgentConfig, file=tmp_path / "agent.toml", env_prefix="X_", env={}, flags={}))
    write_file(tmp_path, "again.toml", written)
    assert load(AgentConfig, file=tmp_path / "again.toml", env_prefix="X_", env={}, flags={}).guests == (guest,)


def test_duplicate_guest_in_the_configuration_is_rejected(tmp_path: Path) -> None:
    one = "[[guests]]\n" + GOOD.replace("[[channels]]", "[[guests.channels]]")
    write_file(tmp_path, "agent.toml", one + one.replace("train-0", "train-1"))
    with pytest.raises(ConfigError) as caught:
        load(AgentConfig, file=tmp_path / "agent.toml", env_prefix="X_", env={}, flags={})
    assert caught.value.key == "guests"
