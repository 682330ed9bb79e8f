"""Files of the web page, served at `/ui/` without authentication: they contain nothing about a machine.

`/ui/` is the document. All other files are at `/ui/DIGEST/NAME`, where DIGEST is the digest of all of them, and can be
cached permanently. Links between files are relative, so that a proxy can serve the hub below any path prefix.
"""

import gzip
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from importlib import resources
from typing import Literal

import msgspec

from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.web.hub.http import Headers, Receive, Scope, Send, header, respond
from gpufleet.web.page.vocabulary import vocabulary

ROOT = "/ui"
"""Path of the page, without its slash."""

DOCUMENT, VOCABULARY = "index.html", "vocabulary.json"

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
}
"""Media type by suffix of the name."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy. Trusted Types without a policy disable every function that parses a text as HTML."""

SECURITY_HEADERS: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
]

IMMUTABLE, REVALIDATED, UNCACHED = b"public, max-age=31536000, immutable", b"no-cache", b"no-store"


class PageFile(msgspec.Struct, frozen=True):
    """File of the page, plain and compressed."""

    media_type: bytes
    cache_control: bytes
    content: bytes
    compressed: bytes


class PageFiles:
    """ASGI application that serves the page."""

    def __init__(self, *, requires_token: bool, site: Literal["hub", "agent"] = "hub") -> None:
        """Read the files of the package.

        `requires_token` decides whether the page starts with its sign-in form, `site` whether it is that of a hub or of
        an agent.
        """
        contents = {
            entry.name: entry.read_bytes()
            for entry in resources.files("gpufleet.web.page").joinpath("static").iterdir()
            if entry.name.rpartition(".")[2] in MEDIA_TYPES
        }
        contents[VOCABULARY] = msgspec.json.encode(vocabulary())
        template = contents.pop(DOCUMENT).decode()
        self.digest = _digest(contents)
        self.document = self._document(template, contents, requires_token, site)
        self._files = {
            f"{ROOT}/{self.digest}/{name}": _file(name, content, IMMUTABLE) for name, content in contents.items()
        }
        self._files[f"{ROOT}/"] = _file(DOCUMENT, self.document, REVALIDATED)

    @property
    def paths(self) -> Iterable[str]:
        """Paths of all files."""
        return self._files.keys()

    @staticmethod
    def serves(path: str) -> bool:
        """Return whether the path belongs to the page."""
        return path == ROOT or path.startswith(f"{ROOT}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; HEAD is already converted to GET."""
        if scope["method"] == "OPTIONS":
            await _send(send, 204, [(b"allow", b"GET, HEAD, OPTIONS")], b"")
        elif scope["method"] != "GET":
            answer = ErrorAnswer(error="method_not_allowed", detail=f"{scope['path'][:200]}: use GET or HEAD")
            await respond(send, 405, answer, [(b"allow", b"GET, HEAD, OPTIONS")])
        elif scope["path"] == ROOT:
            await _send(send, 308, [(b"location", b"ui/"), (b"cache-control", UNCACHED)], b"")
        elif (found := self._files.get(scope["path"])) is not None:
            await _send_file(scope, send, found)
        else:
            answer = ErrorAnswer(error="not_found", detail="the page has no such file: reload it")
            await respond(send, 404, answer, [(b"cache-control", UNCACHED)])

    def _document(self, template: str, contents: Iterable[str], requires_token: bool, site: str) -> bytes:
        modules = "\n".join(
            f'<link rel="modulepreload" href="{self.digest}/{name}">'
            for name in sorted(contents)
            if name.endswith(".js")
        )
        text = template.replace("{modules}", modules).replace("{digest}", self.digest)
        return text.replace("{access}", "token" if requires_token else "open").replace("{site}", site).encode()


def _digest(contents: Mapping[str, bytes]) -> str:
    digest = blake2b(digest_size=12)
    for name in sorted(contents):
        for part in (name.encode(), contents[name]):
            digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def _file(name: str, content: bytes, cache_control: bytes) -> PageFile:
    media_type = MEDIA_TYPES[name.rpartition(".")[2]].encode()
    return PageFile(media_type, cache_control, content, gzip.compress(content, mtime=0))


async def _send_file(scope: Scope, send: Send, file: PageFile) -> None:
    headers = [
        (b"content-type", file.media_type),
        (b"cache-control", file.cache_control),
        (b"vary", b"Accept-Encoding"),
        *SECURITY_HEADERS,
    ]
    codings = {one.strip().lower() for text in header(scope, b"accept-encoding") for one in text.split(",")}
    if "gzip" in codings:
        await _send(send, 200, [*headers, (b"content-encoding", b"gzip")], file.compressed)
    else:
        await _send(send, 200, headers, file.content)


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers + length})
    await send({"type": "http.response.body", "body": body})
