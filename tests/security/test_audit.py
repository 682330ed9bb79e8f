"""Audit log: recorded writes, pages and failures."""

import datetime as dt
from typing import Any

from gpufleet.model.access import LOCAL, AuditEntry, AuditRecord, Role
from gpufleet.model.errors import RegistryError
from gpufleet.web.hub.audit import AuditRecorder
from tests.fakes.clock import FakeClock
from tests.security.guarded import Guarded

SPEC = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}, "team": "blue"}


async def entries(site: Guarded, query: str = "") -> list[dict[str, Any]]:
    reply = await site.request(f"/v1/audit{query}", site.secrets[Role.ADMIN])
    assert reply.status == 200
    found: list[dict[str, Any]] = reply.document
    return found


async def test_writes_are_recorded_with_actor_request_and_status(site: Guarded) -> None:
    token, secret = await site.make(Role.ADMIN, note="the scheduler")
    await site.request("/v1/allocations/a", secret, "PUT", SPEC)
    await site.request("/v1/allocations/a", secret, "DELETE")
    await site.request("/v1/allocations/a", secret, "PUT", SPEC)  # refused: the allocation is closed
    await site.request("/v1/clusters/x", secret, "PUT", {"surprise": 1})
    found = [one["entry"] for one in await entries(site, "?limit=4")]
    assert [(one["method"], one["path"], one["status"]) for one in reversed(found)] == [
        ("PUT", "/v1/allocations/a", 201),
        ("DELETE", "/v1/allocations/a", 200),
        ("PUT", "/v1/allocations/a", 409),
        ("PUT", "/v1/clusters/x", 400),
    ]
    assert {one["actor"] for one in found} == {token.id}
    assert '"team":"blue"' in found[-1]["detail"]
    at = dt.datetime.fromisoformat(found[0]["at"])
    assert abs(at - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)


async def test_reads_and_denied_writes_leave_no_entry(site: Guarded) -> None:
    before = await entries(site)
    await site.request("/v1/nodes", site.secrets[Role.ADMIN])
    await site.request("/v1/allocations/a", site.secrets[Role.TENANT], "PUT", SPEC)
    await site.request("/v1/allocations/a", None, "PUT", SPEC)
    assert await entries(site) == before


async def test_audit_pages_are_bounded_and_join(site: Guarded) -> None:
    for number in range(7):
        await site.request(f"/v1/clusters/c{number}", site.secrets[Role.ADMIN], "PUT", {})
    first = await entries(site, "?limit=3")
    second = await entries(site, f"?limit=3&before={first[-1]['number']}")
    numbers = [one["number"] for one in first + second]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) == 6
    for query in ("?limit=0", "?limit=1001", "?before=-1", "?before=x", "?before=99999999999999999999999"):
        assert (await site.request(f"/v1/audit{query}", site.secrets[Role.ADMIN])).status == 400, query


async def test_long_or_binary_body_is_recorded_as_truncated_text(site: Guarded) -> None:
    admin = site.secrets[Role.ADMIN]
    json = {"Content-Type": "application/json"}
    await site.request("/v1/clusters/x", admin, "PUT", headers=json, body=b"\xff\x00" + b"y" * 100_000)
    (entry,) = await entries(site, "?limit=1")
    assert len(entry["entry"]["detail"]) == 2_000
    assert "\x00" not in entry["entry"]["detail"]


async def test_write_that_cannot_be_recorded_returns_503() -> None:
    class Broken:
        def append(self, _: AuditEntry) -> None:
            raise RegistryError("the disk is full")

        def newest(self, before: int | None, limit: int) -> tuple[AuditRecord, ...]:
            raise AssertionError((before, limit))

    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"method": "DELETE", "path": "/v1/clusters/x"}
    _, send_recorded = AuditRecorder(Broken(), FakeClock()).wrap(scope, receive, send, LOCAL)
    await send_recorded({"type": "http.response.start", "status": 200, "headers": []})
    await send_recorded({"type": "http.response.body", "body": b"{}"})
    assert [message.get("status") for message in sent] == [503, None]
    assert b"not_recorded" in sent[1]["body"]
