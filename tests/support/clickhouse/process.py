"""Stand-in for a ClickHouse server: can be started, killed, frozen, and restarted with other rights."""

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
from tests.support.waiting import PATIENCE, wait_until

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
    """Return whether a port of 127.0.0.1 accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


def is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is stopped: a signal takes effect some time after it was sent."""
    stats = (file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


class ClickHouse:
    """Server that runs while the context is open. Its folder is kept."""

    def __init__(self, folder: Path, tls: Sequence[Path] = (), zone: str = "UTC") -> None:
        """Create the folder. With `tls`, certificate and key, the server accepts TLS only."""
        self._zone = zone
        self.port = free_port()
        self.log = folder / "log"
        self._folder = folder
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.set_rights()

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the server."""
        self.kill()

    def set_rights(self, grants: Sequence[str] = (), *, readonly: int = 0) -> None:
        """Set the rights of the user from the next start on: these grants, or all rights."""
        rights = "".join(f"<query>GRANT {grant}</query>" for grant in grants)
        users = self._folder / "users.xml"
        users.write_text(
            _USERS.format(readonly=readonly, rights=f"<grants>{rights}</grants>" if grants else EVERYTHING)
        )
        (self._folder / "config.xml").write_text(_CONFIG.format(users=users))

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.support.clickhouse",
                    str(self._folder / "data"), str(self.port), PASSWORD, *map(str, self._tls),
                ],
                cwd=self._folder,  # the engine reads `config.xml` in its working folder
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
        """Terminate the server and wait for its end."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60 * PATIENCE)

    def kill(self) -> None:
        """Kill the server, as a power failure would."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=20 * PATIENCE)

    def freeze(self, *, thaw: bool = False) -> None:
        """Pause the process, or continue it with `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT if thaw else signal.SIGSTOP)
        if not thaw:
            pid = self._process.pid
            wait_until(lambda: is_stopped(pid), what="a stopped server")

    def break_inserts(self, table: str, when: str, times: int) -> None:
        """Break the connections of the next `times` inserts into a table, `before` or `after` their execution."""
        url = f"http://127.0.0.1:{self.port}/faults?table={table}&when={when}&times={times}"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10 * PATIENCE):
            pass

    def dsn(self, database: str, *, port: int | None = None, password: str = PASSWORD, options: str = "") -> str:
        """Return the DSN of a database."""
        return f"clickhouse://{USER}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}{options}"

    def make(self, database: str) -> str:
        """Create a database and return its DSN."""
        self.query(f"CREATE DATABASE {database}")
        return self.dsn(database)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; empty for a statement without a result."""
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
