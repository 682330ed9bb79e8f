"""Kubernetes API server: objects, lists in pages, watches, discovery, RBAC by token, leases, and faults.

It follows what was seen on kube-apiserver 1.20 and 1.36: a compacted watch answers 200 and then an ERROR event, or 410.
"""

import asyncio
import copy
import json
import socket
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from aiohttp import web

ADMIN = "admin-token"

Object = dict[str, Any]
ResourceKey = tuple[str, str, str]
"""Group, version and plural."""


class Rule(NamedTuple):
    """An RBAC rule: `verbs` on a resource of a group; `*` stands for all."""

    group: str
    plural: str
    verbs: tuple[str, ...]


class FakeKind(NamedTuple):
    """A served resource."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def key(self) -> ResourceKey:
        return self.group, self.version, self.plural


BUILT_IN = (
    FakeKind("", "v1", "namespaces", "Namespace", is_namespaced=False),
    FakeKind("", "v1", "nodes", "Node", is_namespaced=False),
    FakeKind("", "v1", "pods", "Pod"),
    FakeKind("", "v1", "configmaps", "ConfigMap"),
    FakeKind("apps", "v1", "replicasets", "ReplicaSet"),
    FakeKind("apps", "v1", "deployments", "Deployment"),
    FakeKind("apps", "v1", "statefulsets", "StatefulSet"),
    FakeKind("apps", "v1", "daemonsets", "DaemonSet"),
    FakeKind("batch", "v1", "jobs", "Job"),
    FakeKind("batch", "v1", "cronjobs", "CronJob"),
    FakeKind("coordination.k8s.io", "v1", "leases", "Lease"),
    FakeKind(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", is_namespaced=False
    ),
    FakeKind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", is_namespaced=False),
    FakeKind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
)


class _Watch:
    def __init__(
        self, key: ResourceKey, namespace: str, selector: str, *, bookmarks: bool, metadata_only: bool
    ) -> None:
        self.key = key
        self.namespace = namespace
        self.selector = selector
        self.bookmarks = bookmarks
        self.metadata_only = metadata_only
        self.events: asyncio.Queue[Object | None] = asyncio.Queue()

    def offer(self, key: ResourceKey, event: str, stored: Object) -> None:
        """Queue an event that this watch selects."""
        is_in_namespace = self.namespace in ("", stored["metadata"].get("namespace", ""))
        if self.key == key and is_in_namespace and _selected(stored, self.selector):
            self.events.put_nowait({"type": event, "object": stored})


class FakeKubeApi:
    """Fake API server on a port of this machine.

    Attributes:
        url: its address.
        tokens: token to its rules; the token `ADMIN` may do everything.
        gone_as_status: whether a watch of a compacted version is answered by HTTP 410 instead of an ERROR event.
        faults: statuses of the next answers; 0 closes the connection without an answer.
        requests: method, path and `Accept` of each request.
        queries: path and query of each request.
        page_hook: called before each page after the first of a list.
    """

    def __init__(self, kinds: Iterable[FakeKind] = BUILT_IN) -> None:
        self.kinds = {kind.key: kind for kind in kinds}
        self.tokens: dict[str, tuple[Rule, ...]] = {}
        self.gone_as_status = False
        self.faults: list[int] = []
        self.requests: list[tuple[str, str, str]] = []
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.page_hook: Any = None
        self._objects: dict[ResourceKey, dict[tuple[str, str], Object]] = {key: {} for key in self.kinds}
        self._version = 100
        self._served_since: dict[ResourceKey, int] = {}
        self._oldest = 0
        self._history: list[tuple[int, ResourceKey, str, Object]] = []
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._watches: set[_Watch] = set()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._port = 0
        self.put(BUILT_IN[0].key, {"metadata": {"name": "kube-system"}})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start on the earlier port."""
        app = web.Application(client_max_size=1 << 22)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=128)
        self._port = self._listener.getsockname()[1]
        await web.SockSite(self._runner, self._listener).start()

    async def stop(self) -> None:
        """End the server and its connections. The objects stay."""
        self.cut()
        if self._runner is not None:
            assert self._listener is not None
            # Python 3.11 never closes a connection that is accepted just before its server is closed. So accept no
            # more, and let the accepted ones start first: asyncio takes two passes for that.
            asyncio.get_running_loop().remove_reader(self._listener)
            for _ in range(2):
                await asyncio.sleep(0)
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, folder: Path, token: str = ADMIN) -> Path:
        """Write a kubeconfig with a token file; return its path."""
        token_file = folder / f"{token}.token"
        token_file.write_text(token)
        return write_kubeconfig(folder / f"{token}.kubeconfig", self.url, {"tokenFile": str(token_file)})

    def put(self, key: ResourceKey, content: Object) -> Object:
        """Create or replace an object; return it as stored."""
        objects = self._objects[key]
        metadata = content["metadata"]
        place = (metadata.get("namespace", ""), metadata["name"])
        earlier = objects.get(place)
        stored = copy.deepcopy(content)
        kind = self.kinds[key]
        stored.setdefault("apiVersion", f"{kind.group}/{kind.version}" if kind.group else kind.version)
        stored.setdefault("kind", kind.kind)
        stored["metadata"].setdefault("uid", earlier["metadata"]["uid"] if earlier else str(uuid.uuid4()))
        stored["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self._record(key, "MODIFIED" if earlier else "ADDED", stored)
        objects[place] = stored
        return stored

    def delete(self, key: ResourceKey, namespace: str, name: str) -> None:
        """Delete an object."""
        self._record(key, "DELETED", self._objects[key].pop((namespace, name)))

    def objects(self, key: ResourceKey) -> list[Object]:
        """Return the stored objects."""
        return list(self._objects[key].values())

    def compact(self) -> None:
        """Drop the history: earlier versions and the rest of started lists are expired."""
        self._oldest = self._version
        self._history.clear()
        self._pages.clear()

    def bookmark(self) -> None:
        """Send a bookmark to every watch that requested them."""
        for watch in self._watches:
            if watch.bookmarks:
                kind = self.kinds[watch.key].kind
                metadata = {"resourceVersion": str(self._version), "creationTimestamp": None}
                watch.events.put_nowait({"type": "BOOKMARK", "object": {"kind": kind, "metadata": metadata}})

    def send(self, key: ResourceKey, event: Object) -> None:
        """Send an event to the watches of a resource without storing it."""
        for watch in self._watches:
            if watch.key == key:
                watch.events.put_nowait(event)

    def cut(self) -> None:
        """End every watch."""
        for watch in self._watches:
            watch.events.put_nowait(None)

    @property
    def watches(self) -> int:
        """Number of open watches."""
        return len(self._watches)

    def _record(self, key: ResourceKey, event: str, stored: Object) -> None:
        self._version += 1
        stored["metadata"]["resourceVersion"] = str(self._version)
        frozen = copy.deepcopy(stored)
        self._history.append((self._version, key, event, frozen))
        for watch in self._watches:
            watch.offer(key, event, frozen)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        accept = request.headers.get("Accept", "")
        self.requests.append((request.method, request.path, accept))
        self.queries.append((request.path, dict(request.query)))
        if self.faults:
            fault = self.faults.pop(0)
            if not fault:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return _status(fault, "Fault", "a fault of the test")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token != ADMIN and token not in self.tokens:
            return _status(401, "Unauthorized", "Unauthorized")
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
        parts = request.path.strip("/").split("/")
        if parts[0] == "api":
            parts.insert(1, "")
        group, version, rest = parts[1], parts[2], parts[3:]
        if not rest:
            return self._discovery(group, version)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        key: ResourceKey = (group, version, rest[0])
        if key not in self.kinds:
            return _status(404, "NotFound", "the server could not find the requested resource")
        name = rest[1] if len(rest) > 1 else ""
        verb = {"POST": "create", "PUT": "update", "DELETE": "delete"}.get(request.method) or (
            "get" if name else "watch" if request.query.get("watch") in ("1", "true") else "list"
        )
        if token != ADMIN and not _permits(self.tokens[token], key, verb):
            return _status(403, "Forbidden", f'{rest[0]} is forbidden: cannot {verb} resource "{rest[0]}"')
        if verb == "watch":
            return await self._watch(request, key, namespace, accept)
        if verb == "list":
            return self._list(request, key, namespace, accept)
        if verb in ("create", "update"):
            return await self._write(request, key, namespace, verb)
        stored = self._objects[key].get((namespace, name))
        if stored is None:
            return _status(404, "NotFound", f'{rest[0]} "{name}" not found')
        if verb == "delete":
            self.delete(key, namespace, name)
        return web.json_response(_metadata(stored) if "PartialObjectMetadata;" in accept else stored)

    def _discovery(self, group: str, version: str) -> web.Response:
        served = [kind for kind in self.kinds.values() if (kind.group, kind.version) == (group, version)]
        if not served:
            return _status(404, "NotFound", "the server could not find the requested resource")
        resources = [
            {"name": name, "kind": kind.kind, "namespaced": kind.is_namespaced, "verbs": ["get"]}
            for kind in served
            for name in (f"{kind.plural}/status", kind.plural)
        ]
        return web.json_response({"kind": "APIResourceList", "resources": resources})

    def _list(self, request: web.Request, key: ResourceKey, namespace: str, accept: str) -> web.Response:
        more = request.query.get("continue", "")
        if more:
            if self.page_hook is not None:
                self.page_hook()
            if more not in self._pages:
                return _status(410, "Expired", "The provided continue parameter is too old")
            version, rest = self._pages[more]
        else:
            version = self._version
            rest = [
                copy.deepcopy(stored)
                for (place, _), stored in sorted(self._objects[key].items())
                if namespace in ("", place) and _selected(stored, request.query.get("fieldSelector", ""))
            ]
        limit = int(request.query.get("limit", "0")) or len(rest)
        metadata: Object = {"resourceVersion": str(version)}
        if len(rest) > limit:
            metadata["continue"] = uuid.uuid4().hex
            self._pages[metadata["continue"]] = version, rest[limit:]
        items = rest[:limit]
        if "PartialObjectMetadataList" in accept:
            items = [_metadata(item) for item in items]
        return web.json_response({"kind": "List", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, key: ResourceKey, namespace: str, accept: str) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or 0)
        expired = since < max(self._oldest, self._served_since.get(key, 0))
        if expired and self.gone_as_status:
            return _status(410, "Expired", f"too old resource version: {since}")
        if since > self._version:
            return _status(504, "Timeout", f"Too large resource version: {since}, current: {self._version}")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if expired:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old: {since}"}
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return response
        watch = _Watch(
            key,
            namespace,
            request.query.get("fieldSelector", ""),
            bookmarks=request.query.get("allowWatchBookmarks") == "true",
            metadata_only="PartialObjectMetadata;" in accept,
        )
        for version, changed, event, stored in self._history:
            if version > since:
                watch.offer(changed, event, stored)
        self._watches.add(watch)
        try:
            while (event_ := await watch.events.get()) is not None:
                if watch.metadata_only and event_["type"] != "ERROR":
                    event_ = {**event_, "object": _metadata(event_["object"])}
                await response.write(json.dumps(event_).encode() + b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._watches.discard(watch)
        return response

    async def _write(self, request: web.Request, key: ResourceKey, namespace: str, verb: str) -> web.Response:
        content = json.loads(await request.read())
        metadata = content["metadata"]
        if namespace:
            metadata["namespace"] = namespace
        if key[2] == "customresourcedefinitions":
            self.serve_definition(content["spec"])
        stored = self._objects[key].get((namespace, metadata["name"]))
        if verb == "create" and stored is not None:
            return _status(409, "AlreadyExists", f"{metadata['name']} already exists")
        if verb == "update" and stored is None:
            return _status(404, "NotFound", f"{metadata['name']} not found")
        version = metadata.pop("resourceVersion", None)
        if stored is not None and version not in (None, "", stored["metadata"]["resourceVersion"]):
            return _status(409, "Conflict", "the object has been modified; apply your changes to the latest version")
        metadata.pop("uid", None)
        return web.json_response(self.put(key, content), status=201 if verb == "create" else 200)

    def serve(self, kind: FakeKind) -> None:
        """Serve another resource. Its watches begin with it."""
        self.kinds[kind.key] = kind
        self._served_since.setdefault(kind.key, self._version)
        self._objects.setdefault(kind.key, {})

    def serve_definition(self, spec: Mapping[str, Any]) -> None:
        """Serve the resource of a CustomResourceDefinition."""
        names = spec["names"]
        for version in spec["versions"]:
            self.serve(
                FakeKind(
                    spec["group"],
                    version["name"],
                    names["plural"],
                    names["kind"],
                    is_namespaced=spec["scope"] == "Namespaced",
                )
            )


def write_kubeconfig(
    path: Path, server: str, user: Mapping[str, Any], cluster: Mapping[str, Any] | None = None
) -> Path:
    """Write a kubeconfig (JSON is YAML) of one cluster and user; return its path."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "test", "user": dict(user)}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(content))
    return path


def _permits(rules: Iterable[Rule], key: ResourceKey, verb: str) -> bool:
    return any(
        rule.group in ("*", key[0]) and rule.plural in ("*", key[2]) and (verb in rule.verbs or "*" in rule.verbs)
        for rule in rules
    )


def _selected(stored: Object, selector: str) -> bool:
    field, _, value = selector.partition("=")
    return field != "spec.nodeName" or stored.get("spec", {}).get("nodeName", "") == value


def _metadata(stored: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored["metadata"]}


def _status(code: int, reason: str, message: str) -> web.Response:
    body: Object = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    if code == 429:
        body["details"] = {"retryAfterSeconds": 7}
    return web.json_response(body, status=code)
