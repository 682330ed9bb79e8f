"""The stand-in for a server, as tests have it: started, killed, frozen, and restarted with other rights."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import clickhouse_connect

from tests.support.clickhouse.__main__ import USER
from tests.support.processes import answers, free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
PASSWORD = "p@ss/w:rd %41"
EVERYTHING = "<access_management>1</access_management>"

_CONFIG = "<clickhouse><users_config>{users}</users_config></clickhouse>"
_USERS = """<clickhouse>
<profiles><default><readonly>{readonly}</readonly></default></profiles><quotas><default/></quotas>
<users><default><password/><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
{rights}</default></users>
</clickhouse>
"""


def listens(port: int) -> bool:
    """Whether a connection to a port of 127.0.0.1 is taken."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


class ClickHouse:
    """A server, up while it is used as a context; its folder outlives it."""

    def __init__(self, folder: Path, tls: Sequence[Path] = (), zone: str = "UTC") -> None:
        """Take a folder of its own, certificate and key where it should speak TLS alone, and its time zone."""
        self._zone = zone
        self.port = free_port()
        self.log = folder / "log"
        self._folder = folder
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.may()

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.kill()

    def may(self, grants: Sequence[str] = (), *, readonly: int = 0) -> None:
        """Say what the user may from the next start on: what is granted, or everything."""
        rights = "".join(f"<query>GRANT {grant}</query>" for grant in grants)
        users = self._folder / "users.xml"
        users.write_text(
            _USERS.format(readonly=readonly, rights=f"<grants>{rights}</grants>" if grants else EVERYTHING)
        )
        (self._folder / "config.xml").write_text(_CONFIG.format(users=users))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.support.clickhouse",
                    str(self._folder / "data"), str(self.port), PASSWORD, *map(str, self._tls),
                ],
                cwd=self._folder,  # the engine reads the `config.xml` of the folder that it is started in
                env={**os.environ, "PYTHONPATH": str(ROOT), "TZ": self._zone},
                stdout=sink,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        process = self._process

        def ready() -> bool:
            assert process.poll() is None, self.log.read_text()
            return listens(self.port) if self._tls else answers(f"http://127.0.0.1:{self.port}/ping")

        wait_until(ready, seconds=60, what=f"the server to answer: {self.log.read_text()}")

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=20)

    def freeze(self, *, thaw: bool = False) -> None:
        """Have it do nothing at all, or go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT if thaw else signal.SIGSTOP)

    def lose(self, table: str, when: str, times: int) -> None:
        """Have the connections of so many inserts into a table break: `before` anything is done, or `after` all is."""
        url = f"http://127.0.0.1:{self.port}/faults?table={table}&when={when}&times={times}"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10):
            pass

    def dsn(self, database: str, *, port: int | None = None, password: str = PASSWORD, options: str = "") -> str:
        """Return how a hub is told of a database."""
        return f"clickhouse://{USER}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}{options}"

    def make(self, database: str) -> str:
        """Make a database; return its DSN."""
        self.ask(f"CREATE DATABASE {database}")
        return self.dsn(database)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of an answer; none of a statement that has no answer."""
        client = clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, username=USER, password=PASSWORD, autogenerate_session_id=False
        )
        try:
            if statement.split(None, 1)[0].upper() in ("SELECT", "WITH", "SHOW"):
                return [tuple(row) for row in client.query(statement).result_rows]
            client.command(statement)
            return []
        finally:
            client.close()
