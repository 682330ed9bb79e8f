"""`gpufleet token` on a registry that no hub has opened yet."""

import http.server
import json
import threading
from pathlib import Path

import pytest

from gpufleet.model.access import digest
from gpufleet.registry.database import Database
from gpufleet.registry.tokens import SqlTokens
from tests.support.command import gpufleet


def registry_of(state: Path) -> SqlTokens:
    return SqlTokens(Database.open(f"sqlite:///{state / 'hub' / 'registry.sqlite'}"))


def test_token_is_created_listed_rotated_and_revoked(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    created = gpufleet("token", "create", "--role", "tenant", "--tenant", "acme", "--note", "portal", *state)
    assert created.returncode == 0
    secret = created.stdout.strip()
    assert secret not in created.stderr
    ((known),) = registry_of(tmp_path).known()
    assert [one.digest for one in known.secrets] == [digest(secret)]
    id_ = known.token.id
    listed = gpufleet("token", "list", *state)
    assert listed.stdout.split("\t") == [id_, "tenant", "acme", "never expires", "portal\n"]
    rotated = json.loads(gpufleet("token", "rotate", id_, "--overlap", "0s", "--json", *state).stdout)
    assert rotated["token"]["id"] == id_
    assert rotated["secret"] != secret
    assert gpufleet("token", "revoke", id_, *state).returncode == 0
    (token,) = json.loads(gpufleet("token", "list", "--json", *state).stdout)
    assert "revoked_at" in token
    refused = gpufleet("token", "rotate", id_, *state)
    assert (refused.returncode, "was revoked" in refused.stderr) == (1, True)


def test_token_expiry_is_a_duration(tmp_path: Path) -> None:
    created = gpufleet("token", "create", "--role", "admin", "--expires-in", "90d", "--json", "--state", str(tmp_path))
    (known,) = registry_of(tmp_path).known()
    assert known.token.expires_at
    assert (known.token.expires_at - known.token.created_at).days == 90
    assert json.loads(created.stdout)["token"]["role"] == "admin"


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("create", "--role", "sender"), 1, "cluster"),
        (("create", "--role", "sender", "--cluster", "a b"), 2, "'a b'"),
        (("create", "--role", "tenant", "--tenant", ""), 2, "--tenant"),
        (("create", "--role", "admin", "--cluster", "a"), 1, "accepts no cluster"),
        (("create", "--role", "root"), 2, "root"),
        (("create", "--role", "admin", "--expires-in", "soon"), 2, "soon"),
        (("rotate", "none", "--overlap", "-1"), 1, "registry"),
        (("revoke", "none"), 1, "registry"),
        (("list",), 1, "registry"),
        (("list", "--registry", "mystery://x"), 2, "mystery"),
    ],
)
def test_impossible_token_commands_fail_with_a_message(
    tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    done = gpufleet("token", *arguments, "--state", str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_reading_tokens_creates_no_registry(tmp_path: Path) -> None:
    for arguments in (("list",), ("rotate", "none"), ("revoke", "none")):
        assert gpufleet("token", *arguments, "--state", str(tmp_path)).returncode == 1
    assert list(tmp_path.iterdir()) == []
    assert gpufleet("token", "create", "--role", "admin", "--state", str(tmp_path)).returncode == 0
    unknown = gpufleet("token", "revoke", "none", "--state", str(tmp_path))
    assert (unknown.returncode, "none" in unknown.stderr) == (1, True)
    overlap = gpufleet("token", "rotate", "none", "--overlap", "-1", "--state", str(tmp_path))
    assert overlap.returncode == 2


def test_token_is_not_sent_over_plain_http(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("gpf_secret")
    done = gpufleet("query", "nodes", "--hub", "http://hub.invalid:8470", "--token-file", str(file))
    assert (done.returncode, "http://hub.invalid:8470" in done.stderr) == (1, True)
    missing = gpufleet("query", "nodes", env={"GPUFLEET_TOKEN_FILE": str(tmp_path / "none")})
    assert (missing.returncode, str(tmp_path / "none") in missing.stderr) == (2, True)
    wrong = gpufleet("query", "nodes", "--ca", str(file))
    assert (wrong.returncode, str(file) in wrong.stderr) == (1, True)


def test_token_does_not_follow_a_redirect(tmp_path: Path) -> None:
    requested: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    file = tmp_path / "token"
    file.write_text("gpf_secret")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        done = gpufleet("query", "nodes", "--hub", url, "--token-file", str(file))
        server.shutdown()
        thread.join()
    assert (done.returncode, "302" in done.stderr) == (1, True)
    assert requested == ["/v1/nodes"]
