"""Injection through names: log lines, terminal escape codes, markup and paths."""

import json
from collections.abc import Callable
from urllib.parse import quote

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.codecs.batch import encode
from tests.fakes.batches import NODE, make_batch
from tests.security.daemons import Daemon, under_attack
from tests.support.command import gpufleet
from tests.support.waiting import wait_until
from tests.web.hub.site import now

EVIL = '\x1b]0;owned\x07</script><script>alert(1)</script>[red]x[/red]\r\n{"level": "info"}\u2028\x9b31m'
"""Terminal title, markup of two kinds, a log line of its own, and an 8-bit escape code."""

CODES = ("\x1b", "\x07", "\x9b", "\r", "\u2028")

ESCAPED = ("\x1b", "\x07", "\r", "\n")
"""Codes that JSON must escape."""


@pytest.fixture(scope="module")
def hub(daemon_of: Callable[[str, bool], Daemon]) -> Daemon:
    """Return a hub with a machine that has such names."""
    hub = daemon_of("hub", False)
    batch = make_batch(
        2_000,
        now(),
        machine=msgspec.structs.replace(NODE, name=EVIL, machine_id="e" * 32, system_uuid="evil"),
        sender=EVIL,
        last_error=EVIL,
    )
    sample = msgspec.structs.replace(batch.reports[0].samples[0], reader="other", values={EVIL: 1.0})
    report = msgspec.structs.replace(batch.reports[0], samples=(*batch.reports[0].samples, sample))
    assert hub.post(encode(msgspec.structs.replace(batch, reports=(report,)))).status == 200

    def stored() -> bool:
        return EVIL in [one["node"] for one in hub.request("/v1/gpus", hub.token).document["items"]]

    wait_until(stored, what="the batch to be stored")
    return hub


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/machines", "/v1/gpus", "/v1/senders", "/v1/audit", "/openapi.json"])
def test_responses_are_json_without_control_codes(hub: Daemon, path: str) -> None:
    reply = hub.request(path, hub.token)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.headers["x-content-type-options"] == "nosniff"
    text = reply.body.decode()
    assert not any(code in text for code in ESCAPED)


def test_names_add_no_lines_or_codes_to_the_metrics_page(hub: Daemon) -> None:
    page = hub.request("/metrics", hub.token).body.decode()
    names = [
        sample.labels["metric"]
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "gpufleet_hub_unknown_metrics_total"
    ]
    assert len([one for one in names if "owned" in one]) == 1
    assert not any(line.startswith("{") for line in page.splitlines())


EVIL_IDS = [
    "..%2f..%2fetc%2fpasswd",
    "../../etc/passwd",
    "%2e%2e/%2e%2e/etc/passwd",
    "..%5c..%5c",
    "%00",
    "x%00.json",
    "%c0%ae%c0%ae/",
    "%252e%252e%252f",
    ".",
    "..",
    "~root",
    "file:%2f%2f%2fetc%2fpasswd",
    "$(id)",
    "'%20OR%201=1--",
    "%7b%7b7*7%7d%7d",
    quote(EVIL),
    "x" * 8_000,
]


@pytest.mark.parametrize("id_", EVIL_IDS, ids=range(len(EVIL_IDS)))
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_id_cannot_traverse_paths(hub: Daemon, method: str, id_: str) -> None:
    body = b'{"kind": "bare_metal", "target": {"cluster": "local", "machine": "m"}}' if method == "PUT" else None
    headers = {"Content-Type": "application/json"}
    for prefix in ("/v1/allocations/", "/v1/clusters/", "/v1/gpus/", "/v1/machines/"):
        reply = hub.request(f"{prefix}{id_}", hub.token, method, body, headers=headers)
        assert reply.status in (400, 404, 405), (prefix, reply)
        assert reply.headers["content-type"] == "application/json"
        assert b"root:x:" not in reply.body
        assert not any(code in reply.body.decode() for code in ESCAPED)


def test_log_has_one_json_object_per_line(hub: Daemon, daemon_of: Callable[[str, bool], Daemon]) -> None:
    for daemon in (hub, daemon_of("agent", False)):
        with under_attack(daemon):
            for path in (quote(EVIL), "v1/" + quote(EVIL)):
                daemon.request(f"/{path}", "gpf_" + "a" * 12)
                daemon.request(f"/{path}?{quote(EVIL)}")
            daemon.request(daemon.guarded, headers={"User-Agent": "\x1b[31m", "X-Forwarded-For": "\x1b[31m"})
        for line in daemon.log.splitlines():
            assert set(json.loads(line)) <= {"at", "level", "logger", "message", "error"}
            assert line.isprintable()


def test_names_do_not_control_the_terminal(hub: Daemon) -> None:
    token = hub.process.log.parent / "admin.token"
    token.write_text(hub.token)
    at = ("--hub", f"http://127.0.0.1:{hub.port}", "--token-file", str(token))
    for command in ("query nodes", "query senders", "query machines", "why", "allocation get"):
        arguments = () if command.startswith("query") else (EVIL,)
        done = gpufleet(*command.split(), *arguments, *at)
        assert "owned" in done.stdout + done.stderr, (command, done)
        assert not any(code in done.stdout + done.stderr for code in CODES), (command, done)
