"""Process of the stand-in server: `python -m tests.support.clickhouse FOLDER PORT PASSWORD [CERTIFICATE KEY]`.

A client with the password is the engine's user `default`. Its rights come from the `users.xml` named in the
`config.xml` of the working folder.
"""

import json
import signal
import ssl
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests.support.clickhouse.engine import Engine, EngineError
from tests.support.clickhouse.request import PACKED, Request, read_request

USER = "gpufleet"

_STATUS = {
    48: 501,  # NOT_IMPLEMENTED
    60: 404,  # UNKNOWN_TABLE
    81: 404,  # UNKNOWN_DATABASE
    159: 408,  # TIMEOUT_EXCEEDED
    164: 403,  # READONLY
    202: 503,  # TOO_MANY_SIMULTANEOUS_QUERIES
    497: 403,  # ACCESS_DENIED
    516: 403,  # AUTHENTICATION_FAILED
    **dict.fromkeys((6, 27, 36, 38, 41, 43, 47, 53, 62, 69, 72, 115, 117, 457), 400),
}
"""HTTP status by error code; 500 for all others."""


class Server(ThreadingHTTPServer):
    """HTTP server over one engine."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, engine: Engine, password: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.engine = engine
        self.password = password
        self.zone = engine.query("SELECT timezone()", "", {}, {})[1].decode().strip()
        self.sessions: set[str] = set()
        self.faults: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    def answer(self, request: Request) -> tuple[str | None, bytes, int]:
        """Return the format and bytes of the result, and the number of rows written.

        Raises:
            EngineError: with the message and code of a real server.
        """
        if (request.user, request.password) != (USER, self.password):
            raise EngineError(
                f"Code: 516. DB::Exception: {request.user}: Authentication failed: password is incorrect, or there is "
                "no user with such name. (AUTHENTICATION_FAILED)"
            )
        with self.lock:
            if request.session and request.session in self.sessions:
                raise EngineError(
                    f"Code: 373. DB::Exception: Session {request.session} is locked by a concurrent client. "
                    "(SESSION_IS_LOCKED)"
                )
            self.sessions.add(request.session)
        try:
            if request.rows is not None:
                count = self.engine.insert(request.statement, *request.rows, request.database, request.settings)
                return None, b"", count
            settings = {**request.settings, **({"readonly": "2"} if request.read_only else {})}
            return *self.engine.query(request.statement, request.database, settings, request.parameters), 0
        finally:
            with self.lock:
                self.sessions.discard(request.session)

    def fault(self, request: Request, when: str) -> bool:
        """Return whether to break the connection of an insert now, and consume that fault."""
        with self.lock:
            for table, at in self.faults:
                if at == when and request.rows is not None and f"INTO `{table}` " in request.statement:
                    self.faults.remove((table, at))
                    return True
        return False


class Handler(BaseHTTPRequestHandler):
    """Connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    def do_GET(self) -> None:
        """Answer a ping, or a query in read-only mode."""
        if self.path == "/ping":
            self._send(200, {}, b"Ok.\n")
        else:
            self._answer()

    def do_POST(self) -> None:
        """Answer a query, or insert rows."""
        self._answer()

    def do_PUT(self) -> None:
        """Add faults that break the connections of inserts; not part of the protocol.

        /faults?table=samples&when=after&times=2
        """
        fault = dict(parse_qsl(urlsplit(self.path).query))
        self.server.faults += [(fault["table"], fault["when"])] * int(fault["times"])
        self._send(200, {}, b"")

    def _answer(self) -> None:
        body = self._body()
        if body is None:
            self.close_connection = True  # the client disconnected; the request is incomplete
            return
        try:
            request = read_request(self.command, self.path, dict(self.headers), body)
            if self.server.fault(request, "before"):
                self.close_connection = True
                return
            format_, answer, written = self.server.answer(request)
            if self.server.fault(request, "after"):
                self.close_connection = True
                return
        except (EngineError, ValueError, KeyError) as error:
            code = error.code if isinstance(error, EngineError) else 1000
            message = f"{error} (version 26.9 (official build))\n".encode()
            self._send(_STATUS.get(code, 500), {"X-ClickHouse-Exception-Code": str(code)}, message)
            return
        headers = {
            "X-ClickHouse-Summary": json.dumps({"written_rows": str(written)}),
            "X-ClickHouse-Timezone": request.settings.get("session_timezone", self.server.zone),
        }
        if format_:
            headers["X-ClickHouse-Format"] = format_
        if request.compressed:
            headers["Content-Encoding"] = request.compressed
            answer = PACKED[request.compressed](answer)
        self._send(200, headers, answer)

    def _body(self) -> bytes | None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return self._chunks()
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def _chunks(self) -> bytes | None:
        found = []
        while size := int(self.rfile.readline().strip() or b"-1", 16):
            if size < 0:
                return None
            found.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(found)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status, HTTPStatus(status).phrase)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
        """Disable the access log."""


def main() -> None:
    """Serve until SIGTERM."""
    folder, port, password, *tls = sys.argv[1:]
    server = Server(int(port), Engine(Path(folder)), password)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.05)
    server.engine.close()


if __name__ == "__main__":
    main()
