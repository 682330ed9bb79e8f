"""PostgreSQL server on a socket in its own folder: the machine's, or the one unpacked by `peers.py fetch`."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import peers

UNPRIVILEGED_UID = 65534
"""User of the server if the tests run as root, because PostgreSQL refuses to run as root."""

PORT = 5432
"""Part of the socket's name. The server does not listen on the network."""


class Postgres:
    """Server that runs while the context is open. Its data is deleted afterwards."""

    def __init__(self, programs: Path) -> None:
        """Store the folder of `postgres` and its companions."""
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="gpufleet-postgres-"))  # a socket's path is 107 bytes at most
        self._data = self._folder / "data"
        self._log = self._folder / "log"

    def __enter__(self) -> Self:
        """Create the cluster and start the server."""
        if os.geteuid() == 0:
            os.chown(self._folder, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        self._run("initdb", "--no-sync", "--auth=trust", "--username=gpufleet", "--encoding=UTF8", "--locale=C", "-D")
        self._control("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server and delete its folder."""
        self._control("stop")
        shutil.rmtree(self._folder)

    def make(self, name: str) -> str:
        """Create a database and return its DSN."""
        import psycopg

        with psycopg.connect(f"host={self._folder} user=gpufleet dbname=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql+psycopg://gpufleet@/{name}?host={self._folder}"

    def restart(self) -> None:
        """Restart the server, which ends every connection."""
        self._control("restart")

    def _control(self, what: str) -> None:
        options = f"-k {self._folder} -p {PORT} -c listen_addresses='' -c fsync=off"
        self._run("pg_ctl", what, "--wait", f"--log={self._log}", f"--options={options}", "-D")

    def _run(self, program: str, *arguments: str) -> None:
        is_root = os.geteuid() == 0
        done = subprocess.run(
            [str(self._programs / program), *arguments, str(self._data)],
            cwd="/",
            env=os.environ | peers.environment("postgres"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
            user=UNPRIVILEGED_UID if is_root else None,
            group=UNPRIVILEGED_UID if is_root else None,
            extra_groups=[] if is_root else None,
        )
        log = self._log.read_text() if self._log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stdout.decode()}{log}"
