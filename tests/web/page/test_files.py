"""Files of the web page: headers, caching, links and methods."""

import gzip
import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import msgspec
import pytest

from gpufleet.model.access import Role
from gpufleet.web.page.files import PageFiles
from tests.security.guarded import Reply, guarded

PREFIX = "/cloud/gpu"
FILES = PageFiles(requires_token=True)
MODULES = sorted(path for path in FILES.paths if path.endswith(".js"))


async def request(path: str, method: str = "GET", **headers: str) -> Reply:
    """Send a request to the application; names of headers have `_` for `-`."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await FILES({"type": "http", "method": method, "path": path, "headers": given}, receive, send)
    received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], received, b"".join(one["body"] for one in sent[1:]))


def links(document: bytes) -> set[str]:
    """Return the links of the document, without fragments."""
    return set(re.findall(r'(?:href|src)="([^"#]+)"', document.decode()))


async def test_links_of_the_document_are_cached_permanently() -> None:
    document = await request("/ui/")
    assert (document.status, document.headers["cache-control"]) == (200, "no-cache")
    found = links(document.body)
    assert len(found) > 10
    for link in found:
        reply = await request(urljoin("/ui/", link))
        assert (reply.status, reply.headers["cache-control"]) == (200, "public, max-age=31536000, immutable"), link
        assert reply.headers["content-type"].partition(";")[0] in ("text/javascript", "text/css", "image/svg+xml"), link


async def test_links_stay_below_a_path_prefix() -> None:
    redirect = await request("/ui")
    assert redirect.status == 308
    assert urljoin(f"{PREFIX}/ui", redirect.headers["location"]) == f"{PREFIX}/ui/"
    for link in links((await request("/ui/")).body):
        assert urljoin(f"{PREFIX}/ui/", link).startswith(f"{PREFIX}/ui/")
    for path in MODULES:
        imports = re.findall(r'from "([^"]+)"', (await request(path)).body.decode())
        assert all(one.startswith("./") for one in imports), path


async def test_policy_permits_own_files_only() -> None:
    for path in FILES.paths:
        headers = (await request(path)).headers
        policy = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in headers


async def test_files_have_no_inline_code_and_no_foreign_address() -> None:
    document = (await request("/ui/")).body.decode()
    assert re.findall(r"<script[^>]*>[^<]|<style| style=| on\w+=", document) == []
    for path in FILES.paths:
        text = (await request(path)).body.decode()
        addresses = set(re.findall(r"https?://[\w./]+", text)) - {"http://www.w3.org/2000/svg", "http://hub/"}
        assert addresses == set(), path
        assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text) == [], path
        assert re.findall(r"localStorage|sessionStorage|indexedDB|cookie =", text) == [], path


async def test_file_of_another_version_is_not_found() -> None:
    assert PageFiles(requires_token=False).digest == FILES.digest
    stale = await request(f"/ui/{'0' * len(FILES.digest)}/app.js")
    assert (stale.status, stale.error, stale.headers["cache-control"]) == (404, "not_found", "no-store")


@pytest.mark.parametrize(("requires_token", "access"), [(True, "token"), (False, "open")])
def test_document_states_whether_a_token_is_needed(requires_token: bool, access: str) -> None:
    document = PageFiles(requires_token=requires_token).document.decode()
    assert f'data-access="{access}"' in document
    assert "{" not in document


async def test_compressed_file_equals_the_plain_one() -> None:
    plain, compressed = await request(MODULES[0]), await request(MODULES[0], accept_encoding="br, gzip")
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(compressed.body) == plain.body
    assert plain.headers["vary"] == compressed.headers["vary"] == "Accept-Encoding"
    assert int(compressed.headers["content-length"]) == len(compressed.body) < len(plain.body)


async def test_hub_serves_the_page_without_a_token_and_nothing_else(tmp_path: Path) -> None:
    async with guarded(tmp_path) as site:
        document = await site.request("/ui/")
        assert (document.status, document.body) == (200, FILES.document)
        assert document.headers["x-content-type-options"] == "nosniff"
        head = await site.request("/ui/", method="HEAD")
        assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(document.body)))
        assert (await site.request("/ui/", method="OPTIONS")).headers["allow"] == "GET, HEAD, OPTIONS"
        refused = await site.request("/ui/", method="POST", body=b"x")
        assert (refused.status, refused.error) == (405, "method_not_allowed")
        for path in ("/ui/../v1/nodes", "/ui//v1/nodes", "/ui/%2e%2e/v1/nodes", "/ui/index.html", "/uix"):
            assert (await site.request(path)).status in (401, 404), path
            assert (await site.request(path, site.secrets[Role.TENANT])).status == 404, path
        vocabulary = await site.request(f"/ui/{FILES.digest}/vocabulary.json")
        assert set(msgspec.json.decode(vocabulary.body)) >= {"metrics", "reasons", "sources"}
