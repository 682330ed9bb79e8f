"""CloudEvents: attributes of the body, and the signature as the documentation verifies it."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.hub.notify.cloudevents import SIGNATURE_HEADER, TIMESTAMP_HEADER, encode_event, sign
from gpufleet.hub.notify.notices import Mutes, notice_of
from gpufleet.model.time import NANOS
from tests.support.findings import make_finding, transitions_of
from tests.support.notices import NODES, SECRET, SOURCE

T0 = 1_767_225_600 * NANOS
PAGE = Path(__file__).parents[3] / "docs" / "notifications.md"


def event(
    rule: str = "gpu.lost", scope: str = "east/m1/gpu/GPU-1", *, closed: bool = False, link: str | None = None
) -> dict[str, Any]:
    finding = make_finding(rule, scope, T0, closed_at=T0 + 90 * NANOS if closed else None, evidence={"lost": "1"})
    notice = notice_of(transitions_of(finding)[-1], Mutes(T0 + 100 * NANOS, ()), 0)
    assert notice is not None
    found: dict[str, Any] = json.loads(encode_event(notice, SOURCE, NODES, link))
    return found


def test_event_has_the_attributes_of_cloudevents() -> None:
    opened = event()
    data = opened.pop("data")
    assert opened == {
        "specversion": "1.0",
        "id": f"{data['id']}.opened",
        "source": SOURCE,
        "type": "io.gpufleet.finding.opened",
        "time": "2026-01-01T00:00:00Z",
        "subject": "east/m1/gpu/GPU-1",
        "datacontenttype": "application/json",
        "reason": "firing",
    }
    names = ("rule", "cluster", "machine", "node", "device", "severity", "state", "evidence", "opened_at", "closed_at")
    assert {name: data[name] for name in names} == {
        "rule": "gpu.lost",
        "cluster": "east",
        "machine": "m1",
        "node": "node-1",
        "device": "east/m1/gpu/GPU-1",
        "severity": "warning",
        "state": "open",
        "evidence": {"lost": "1"},
        "opened_at": "2026-01-01T00:00:00Z",
        "closed_at": None,
    }


def test_event_of_a_closing() -> None:
    closed = event(closed=True)
    assert (closed["type"], closed["reason"], closed["time"]) == (
        "io.gpufleet.finding.closed",
        "healthy",
        "2026-01-01T00:01:30Z",
    )
    assert (closed["data"]["state"], closed["data"]["duration_seconds"]) == ("closed", 90.0)


def test_event_has_the_link_of_its_finding() -> None:
    assert event(link="https://hub.example/ui/#/findings/1")["link"] == "https://hub.example/ui/#/findings/1"


def test_finding_of_the_hub_has_no_subject() -> None:
    assert "subject" not in event("hub.flush_lag", "")  # CloudEvents requires a text that is not empty


@pytest.fixture(scope="module")
def is_authentic() -> Callable[..., bool]:
    """Return the function of the documentation."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    found: Callable[..., bool] = names["is_authentic"]
    return found


def test_documented_function_verifies_a_signature(is_authentic: Callable[..., bool]) -> None:
    body, now = b'{"id": "\xc3\xa9"}', int(time.time())
    headers = sign(SECRET, now, body)
    assert is_authentic(SECRET, headers, body)
    assert not is_authentic(SECRET + "x", headers, body)
    assert not is_authentic(SECRET, headers, body + b" ")
    assert not is_authentic(SECRET, {**headers, TIMESTAMP_HEADER: str(now - 1)}, body)
    assert not is_authentic(SECRET, {**headers, SIGNATURE_HEADER: "v1=é"}, body)
    for name in headers:
        assert not is_authentic(SECRET, {key: value for key, value in headers.items() if key != name}, body)
    assert not is_authentic(SECRET, sign(SECRET, now - 301, body), body)
    assert not is_authentic(SECRET, sign(SECRET, now + 301, body), body)
