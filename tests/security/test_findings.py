"""Findings by role: a tenant reads those of its own allocations and detects no others; operators may acknowledge."""

import uuid

import msgspec
import pytest

from gpufleet.model.access import Role
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import FindingAcknowledgement, FindingsState, Silence
from tests.security.guarded import Guarded
from tests.support.findings import make_finding, transitions_of
from tests.web.hub.site import now

SECRETS = ("rival", "other-allocation", "node-of-others", "escalated to bob")
"""Texts that a tenant must not receive."""

RULE = "allocation.unavailable"
AT = now() - 3600 * 10**9

MINE = make_finding(RULE, "local/mine", AT, evidence={"answers": "0", "reason": "guest_not_collected"})
OVERLAP = make_finding(
    "allocation.tenant_overlap",
    "local/mine",
    AT + 1,
    evidence={"overlapping_tenants": "1", "reason": "shared with rival", "tenant": "rival", "devices": "rival"},
)
ENDED = make_finding(RULE, "local/mine", AT + 2, closed_at=AT + 10**9, evidence={"answers": "0"})
SECOND = make_finding(
    "allocation.partial", "local/mine", AT + 1, evidence={"devices": "rival", "expected_devices": "8"}
)
OWN = (SECOND, MINE)

FOREIGN = {
    "overlap with other tenants": OVERLAP,
    "allocation of another tenant": make_finding(RULE, "local/theirs", AT + 3),
    "allocation without a tenant": make_finding(RULE, "local/free", AT + 4),
    "allocation of another cluster": make_finding(RULE, "west/mine", AT + 5),
    "allocation with a longer id": make_finding(RULE, "local/mine/x", AT + 6),
    "sender with the name of the allocation": make_finding("sender.clock_skew", "local/mine", AT + 7),
    "machine with the name of the allocation": make_finding("node.missing", "local/mine", AT + 8),
    "device": make_finding("gpu.lost", "local/m-1/gpu/GPU-0", AT + 9),
    "cluster": make_finding("cluster.stale", "local", AT + 10),
    "hub": make_finding("hub.network", "", AT + 11),
    "rule of another version": make_finding("allocation.former", "local/mine", AT + 12),
}
NAMED = make_finding("node.missing", "local/node-of-others", AT + 13, evidence={"last_error": "rival"})


def allocation(name: str, tenant: str | None) -> dict[str, object]:
    vm = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    spec: dict[str, object] = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": vm}}
    return {**spec, "tenant": tenant} if tenant else spec


@pytest.fixture
async def full(site: Guarded) -> Guarded:
    """Return a site with findings of every scope, an acknowledgement and a silence."""
    admin = site.secrets[Role.ADMIN]
    for name, tenant in (("mine", "acme"), ("theirs", "rival"), ("free", None), ("other-allocation", "rival")):
        assert (await site.request(f"/v1/allocations/{name}", admin, "PUT", allocation(name, tenant))).status == 201
    for one in (*OWN, ENDED, *FOREIGN.values(), NAMED):
        site.findings.save_findings(FindingsState(), transitions_of(one))
    later = now() + 3600 * 10**9
    site.findings.acknowledge_finding(
        FindingAcknowledgement(finding=MINE.id, at=AT, until=later, actor="bob", note="escalated to bob")
    )
    site.findings.add_silence(Silence(id="0" * 16, scope="local", at=AT, until=later, actor="bob", note="rival"))
    return site


async def listed(site: Guarded, role: Role, query: str = "") -> list[str]:
    """Return the ids on all pages of the list of findings."""
    found: list[str] = []
    cursor = ""
    while True:
        reply = await site.request(f"/v1/findings?{query}{cursor}", site.secrets[role])
        assert reply.status == 200, reply.body
        found += [one["id"] for one in reply.document["items"]]
        if reply.document["next"] is None:
            return found
        cursor = f"&cursor={reply.document['next']}"


def ids(*found: Finding) -> list[str]:
    return [one.id for one in found]


async def test_tenant_lists_findings_of_its_allocations_only(full: Guarded) -> None:
    every = ids(ENDED, *OWN)
    for query, expected in {
        "": every,
        "limit=1": every,
        "state=open&state=unknown": ids(*OWN),
        "state=closed": ids(ENDED),
        f"rule={RULE}": ids(ENDED, MINE),
        "severity=warning": every,
        "scope=allocation": every,
        "cluster=local": every,
        "subject=local/mine": every,
        "subject=local": every,
    }.items():
        assert await listed(full, Role.TENANT, query) == expected, query


async def test_tenant_cannot_select_by_acknowledgement(full: Guarded) -> None:
    for query in ("state=acknowledged", "state=acknowledged&state=closed", "state=open&state=acknowledged&limit=1"):
        reply = await full.request(f"/v1/findings?{query}", full.secrets[Role.TENANT])
        assert (reply.status, reply.document["field"]) == (400, "state"), query
        assert await listed(full, Role.OPERATOR, query)


async def test_tenant_filters_do_not_reach_other_findings(full: Guarded) -> None:
    for query in (
        "cluster=west",
        "subject=local/theirs",
        "subject=local/free",
        "subject=local/m-1",
        "subject=west",
        "subject=",
        "rule=node.missing",
        "rule=sender.clock_skew",
        "rule=allocation.tenant_overlap",
        "rule=gpu.lost&rule=hub.network",
        *(f"scope={one}" for one in ("hub", "cluster", "machine", "sender", "device")),
        "scope=sender&subject=local/mine",
    ):
        assert await listed(full, Role.TENANT, query) == [], query
        if query != "subject=":
            assert await listed(full, Role.OPERATOR, query), f"{query}: the operator sees nothing either"


async def test_tenant_without_allocations_sees_no_finding(full: Guarded) -> None:
    _, secret = await full.make(Role.TENANT, tenant="unrelated")
    reply = await full.request("/v1/findings", secret)
    assert (reply.status, reply.document["items"], reply.document["next"]) == (200, [], None)


async def test_cursor_of_an_operator_is_rejected_for_a_tenant(full: Guarded) -> None:
    page = await full.request("/v1/findings?limit=1", full.secrets[Role.OPERATOR])
    reply = await full.request(f"/v1/findings?limit=1&cursor={page.document['next']}", full.secrets[Role.TENANT])
    assert (reply.status, reply.document["field"]) == (400, "cursor")


async def test_tenant_receives_no_text_of_others(full: Guarded) -> None:
    secret = full.secrets[Role.TENANT]
    replies = [
        await full.request(path, secret)
        for path in (
            "/v1/findings", "/v1/findings?format=csv", *(f"/v1/findings/{one.id}" for one in (*OWN, ENDED)),
        )
    ]  # fmt: skip
    for reply in replies:
        assert reply.status == 200
        for text in SECRETS:
            assert text not in reply.body.decode(), text
    detail = (await full.request(f"/v1/findings/{SECOND.id}", secret)).document
    assert detail["evidence"] == detail["timeline"][0]["evidence"] == {"expected_devices": "8"}
    detail = (await full.request(f"/v1/findings/{MINE.id}", secret)).document
    assert detail["evidence"] == {"answers": "0", "reason": "guest_not_collected"}
    assert (detail["acknowledged"], detail["acknowledgement"], detail["silenced_until"]) == (False, None, None)
    assert (detail["machine"], detail["node"], detail["device"], detail["sender"]) == (None, None, None, None)
    assert detail["evaluation"].keys() == {
        "evaluated_at", "age_seconds", "is_current", "failure", "untracked",
    }  # fmt: skip
    operator = (await full.request(f"/v1/findings/{MINE.id}", full.secrets[Role.OPERATOR])).document
    assert (operator["acknowledged"], operator["acknowledgement"]["note"]) == (True, "escalated to bob")


async def test_foreign_finding_looks_like_a_missing_one(full: Guarded) -> None:
    mine, missing_id = full.secrets[Role.TENANT], "0" * 24
    missing = await full.request(f"/v1/findings/{missing_id}", mine)
    assert (missing.status, missing.error) == (404, "not_found")
    for name, one in {**FOREIGN, "with names": NAMED}.items():
        foreign = await full.request(f"/v1/findings/{one.id}", mine)
        assert (foreign.status, foreign.headers) == (404, missing.headers), name
        assert foreign.body == missing.body.replace(missing_id.encode(), one.id.encode()), name
        assert (await full.request(f"/v1/findings/{one.id}", full.secrets[Role.OPERATOR])).status == 200, name
    for malformed in ("x", "%00", "0" * 25, "0" * 23 + "G", "%F0%9F%92%A9"):
        assert (await full.request(f"/v1/findings/{malformed}", mine)).status == 404, malformed


async def test_tenant_and_sender_writes_are_refused_alike(full: Guarded) -> None:
    body = {"duration": "1h"}
    for role in (Role.TENANT, Role.SENDER):
        for method in ("PUT", "DELETE"):
            replies = {
                (reply.status, reply.body)
                for reply in [
                    await full.request(f"/v1/findings/{id_}/acknowledgement", full.secrets[role], method, body)
                    for id_ in (MINE.id, NAMED.id, "0" * 24, "x")
                ]
            }
            assert len(replies) == 1, (role, method)
            assert replies.pop()[0] == 403
        assert (await full.request("/v1/silences", full.secrets[role])).status == 403
        assert (await full.request("/v1/silences", full.secrets[role], "POST", {**body, "rule": RULE})).status == 403
        assert (await full.request(f"/v1/silences/{'0' * 16}", full.secrets[role], "DELETE")).status == 403
    detail = await full.request(f"/v1/findings/{MINE.id}", full.secrets[Role.OPERATOR])
    assert detail.document["acknowledgement"]["by"] == "bob"


async def test_operator_writes_are_recorded_in_the_audit_log(full: Guarded) -> None:
    token, secret = await full.make(Role.OPERATOR)
    path = f"/v1/findings/{MINE.id}/acknowledgement"
    assert (await full.request(path, secret, "PUT", {"duration": "1h", "note": "in repair"})).status == 200
    assert (await full.request(path, secret, "DELETE")).status == 200
    made = await full.request("/v1/silences", secret, "POST", {"rule": RULE, "duration": "1h"})
    assert made.status == 201
    assert (await full.request(f"/v1/silences/{made.document['id']}", secret, "DELETE")).status == 200
    assert (await full.request("/v1/clusters/x", secret, "PUT", {})).status == 403
    entries = (await full.request("/v1/audit?limit=4", full.secrets[Role.ADMIN])).document
    found = [one["entry"] for one in reversed(entries)]
    assert [(one["method"], one["path"], one["status"]) for one in found] == [
        ("PUT", path, 200),
        ("DELETE", path, 200),
        ("POST", "/v1/silences", 201),
        ("DELETE", f"/v1/silences/{made.document['id']}", 200),
    ]
    assert {one["actor"] for one in found} == {token.id}
    assert msgspec.json.decode(found[0]["detail"])["note"] == "in repair"
