"""DSNs: valid and invalid forms, and errors where a store cannot be opened."""

import os
import socket
from pathlib import Path

import pytest

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.dsn import parse_dsn
from gpufleet.stores.clickhouse.schema.tables import Engine


def test_dsn_of_a_folder() -> None:
    dsn = parse_dsn("chdb:///var/lib/gpufleet/hub/store")
    assert dsn.path == Path("/var/lib/gpufleet/hub/store")
    assert dsn.engine is Engine.PLAIN


@pytest.mark.parametrize(("suffix", "engine"), [("", Engine.PLAIN), ("?replicated=1", Engine.REPLICATED)])
def test_server_is_shown_without_its_password(suffix: str, engine: Engine) -> None:
    dsn = parse_dsn(f"clickhouse://user:secret@db.example:8123/fleet{suffix}")
    assert dsn.url == "clickhouse://user:secret@db.example:8123/fleet"
    assert dsn.path is None
    assert dsn.engine is engine
    assert dsn.shown == "clickhouse://db.example:8123/fleet"


@pytest.mark.parametrize(
    ("suffix", "secure", "ca"),
    [
        ("/db", False, None),
        (":8123/db", False, None),
        (":8443/db", True, None),
        (":8123/db?secure=1", True, None),
        ("/db?secure=1&ca=/etc/a%20b.pem&replicated=1", True, Path("/etc/a b.pem")),
    ],
)
def test_tls_is_enabled_by_an_option_or_the_port(suffix: str, secure: bool, ca: Path | None) -> None:
    dsn = parse_dsn(f"clickhouse://user:secret@db.example{suffix}")
    assert (dsn.secure, dsn.ca) == (secure, ca)


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "chdb://relative/path",
        "chdb://",
        "chdb:///",
        "chdb:///x?y=1",
        "sqlite:///x",
        "clickhouse://u:secret@/db",
        "clickhouse://u:secret@host:8123",
        "clickhouse://u:secret@host:many/db",
        "clickhouse://u:secret@host/db?replicated=maybe",
        "clickhouse://u:secret@host/db?other=1",
        "clickhouse://u:secret@host/db?secure=yes",
        "clickhouse://u:secret@host:8123/db?ca=/x.pem",
        "clickhouse://u:secret@host:8443/db?ca=/there/is/no/such.pem",
        "clickhouse://u:secret@[::1/db",
        "clickhouse://u:secret@host\u2100/db",
        "clickhouse://u:secret/more@host:8123/db",
        "clickhouse://u:12/secret@host:8123/db",
        "clickhouse://u:12?secret@host:8123/db",
        "clickhouse://u:12#secret@host:8123/db",
    ],
)
def test_invalid_dsn_is_refused_without_showing_a_password(dsn: str) -> None:
    with pytest.raises(StoreError) as caught:
        ClickHouseStore.open(dsn)
    assert "secret" not in str(caught.value)


def test_unreachable_server_is_named_without_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        port = taken.getsockname()[1]
        with pytest.raises(StoreError, match=f"127.0.0.1:{port}/db") as caught:
            ClickHouseStore.open(f"clickhouse://user:secret@127.0.0.1:{port}/db")
    assert "secret" not in str(caught.value)


def test_foreign_config_xml_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded engine reads a `config.xml` in its working directory, with users and folders."""
    (tmp_path / "config.xml").write_text("<clickhouse/>")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=rf"{tmp_path}/config\.xml"):
        ClickHouseStore.open(f"chdb://{tmp_path}/db")
    assert not (tmp_path / "db").exists()


def test_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"gpufleet\.lock"):
        ClickHouseStore.open(f"chdb://{tmp_path}/file{os.sep}db")
