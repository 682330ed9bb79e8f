"""Posted benchmark captures: senders post for their own cluster, operators read, tenants have no access."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.bench.document import encode_benchmark
from gpufleet.model.access import Role
from gpufleet.model.api.benchmarks import MAX_CAPTURE_BYTES
from tests.security.guarded import Guarded, guarded
from tests.support.benchmarks import document, measured

CONTENT = encode_benchmark(document(measured(values=(1.0, 2.0)), labels={"hugepages": "on"}))
ID = hashlib.sha256(CONTENT).hexdigest()
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded(tmp_path) as site:
        yield site


async def post(site: Guarded, role: Role, content: bytes = CONTENT, query: str = "", **headers: str) -> tuple[int, Any]:
    sent = {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
    reply = await site.request(f"/v1/benchmarks{query}", site.secrets[role], "POST", headers=sent, body=content)
    return reply.status, reply.document


async def test_posted_capture_is_read_by_operators_only(site: Guarded) -> None:
    assert await post(site, Role.SENDER) == (200, {"status": "accepted", "id": ID})
    assert await post(site, Role.SENDER, query="?cluster=local") == (200, {"status": "duplicate", "id": ID})
    listed = await site.request("/v1/benchmarks", site.secrets[Role.OPERATOR])
    (record,) = listed.document
    assert {name: record[name] for name in ("id", "cluster", "name", "labels", "bytes")} == {
        "id": ID,
        "cluster": "local",
        "name": "host",
        "labels": {"hugepages": "on"},
        "bytes": len(CONTENT),
    }
    assert record["machine"]["name"] == "node-1"
    found = await site.request(f"/v1/benchmarks/{ID}", site.secrets[Role.OPERATOR])
    assert (found.status, found.body) == (200, CONTENT)
    other = await site.request("/v1/benchmarks?cluster=other", site.secrets[Role.OPERATOR])
    assert other.document == []
    for role in (Role.TENANT, Role.SENDER):
        for path in ("/v1/benchmarks", f"/v1/benchmarks/{ID}"):
            assert (await site.request(path, site.secrets[role])).status == 403
    for path in ("x", "0" * 64, "..%2fregistry.sqlite", f"{ID}.json"):
        assert (await site.request(f"/v1/benchmarks/{path}", site.secrets[Role.ADMIN])).status == 404


@pytest.mark.parametrize("role", [Role.TENANT, Role.OPERATOR, Role.ADMIN])
async def test_only_senders_post_captures(site: Guarded, role: Role) -> None:
    assert (await post(site, role))[0] == 403
    assert (await site.request("/v1/benchmarks", site.secrets[Role.ADMIN])).document == []


@pytest.mark.parametrize(
    ("content", "query", "headers", "expected"),
    [
        (CONTENT, "?cluster=other", {}, (403, "other_cluster")),
        (CONTENT, "?machine=x", {}, (400, "bad_request")),
        (CONTENT, "?cluster=local&cluster=local", {}, (400, "bad_request")),
        (CONTENT, "", {"Content_Type": "text/plain"}, (415, "bad_content_type")),
        (b"", "", {}, (400, "bad_capture")),
        (b"[" * 1_000_000, "", {}, (400, "bad_capture")),
        (b'{"schema": "gpufleet.benchmark/9"}', "", {}, (400, "bad_capture")),
        (CONTENT.replace(b"benchmark/1", b"benchmark/9"), "", {}, (400, "bad_version")),
        (bytes(MAX_CAPTURE_BYTES + 1), "", {}, (413, "too_large")),
    ],
)
async def test_other_posts_are_refused(
    site: Guarded, content: bytes, query: str, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    status, answer = await post(site, Role.SENDER, content, query, **headers)
    assert (status, answer["error"]) == expected
    assert (await site.request("/v1/benchmarks", site.secrets[Role.OPERATOR])).document == []
