"""API servers of the tests: the fake, a real kube-apiserver with etcd, or the cluster of GPUFLEET_TEST_KUBECONFIG."""

import asyncio
import base64
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import httpx2
import lightkube
from lightkube.config.client_adapter import ConnectionParams

from gpufleet.holders.kubernetes.resources import LEASES, PODS, ApiResource
from tests.fakes.kube_api import FakeKubeApi, Object, Rule, write_kubeconfig
from tests.support import peers
from tests.support.kube_objects import REPLICA_SETS, SELECTOR
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until, wait_until_async

PARTS = peers.CACHE.parents[1] / "shared" / "real" / "kube"
"""The real kube-apiserver, beside the checkout."""

START_SECONDS = 30.0 * PATIENCE
"""Limit of a start of etcd and kube-apiserver, which takes 3 to 7 s."""

GIVEN = "GPUFLEET_TEST_KUBECONFIG"
GIVEN_ETCD = "GPUFLEET_TEST_ETCD"
"""URL of the etcd of that cluster, without TLS. Optional: without it, tests that expire versions are skipped."""

NAMESPACES = "/api/v1/namespaces"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SERVICE_ACCOUNTS = ApiResource("", "v1", "serviceaccounts")
RULES_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

DELETION = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
"""Options of a deletion. By default, a Job waits for the garbage collector."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
"""Policy of the audit log: the requests of service accounts, without content."""

LAUNCHER = """#!/bin/bash
exec {program} "${{@/--disable-admission-plugins=ServiceAccount/--disable-admission-plugins=}}"
"""
"""Program that admits a pod only if its service account exists, as in every cluster. The start script disables that."""


class AuditedRequest(NamedTuple):
    """Request for a resource as the API server judged it; `resource` has the subresource after a slash."""

    verb: str
    group: str
    resource: str
    name: str
    status: int


class ClusterUnderTest(Protocol):
    """A cluster that a test may change.

    Attributes:
        namespace: an empty namespace.
        folder: folder for kubeconfigs.
        kubeconfig: kubeconfig of an administrator.
    """

    namespace: str
    folder: Path
    kubeconfig: Path

    async def create(self, resource: ApiResource, content: Object) -> Object:
        """Create an object; return it as stored."""
        ...

    async def replace(self, resource: ApiResource, content: Object) -> Object:
        """Replace an object; return it as stored."""
        ...

    async def replace_status(self, resource: ApiResource, content: Object) -> Object:
        """Replace the status of an object; return it as stored."""
        ...

    async def delete(self, resource: ApiResource, name: str) -> None:
        """Delete an object of the namespace."""
        ...

    async def token(self, rules: Sequence[Rule]) -> str:
        """Return a bearer token with these permissions in all namespaces."""
        ...

    def user(self, token_file: Path) -> Path:
        """Return a kubeconfig with a token file."""
        ...

    def compact(self) -> None:
        """Expire all earlier versions. Skips the test if the cluster does not permit it."""
        ...

    async def restart(self) -> None:
        """Restart the API server. Skips the test if the cluster does not permit it."""
        ...


class FakeCluster:
    """The fake API server."""

    def __init__(self, api: FakeKubeApi, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.kubeconfig = api.kubeconfig(folder)
        self.namespace = "test"

    async def create(self, resource: ApiResource, content: Object) -> Object:
        self._serve(content)
        return self.api.put(_key(resource), self._placed(resource, content))

    async def replace(self, resource: ApiResource, content: Object) -> Object:
        return self.api.put(_key(resource), self._placed(resource, content))

    async def replace_status(self, resource: ApiResource, content: Object) -> Object:
        return await self.replace(resource, content)

    async def delete(self, resource: ApiResource, name: str) -> None:
        self.api.delete(_key(resource), self.namespace if resource.is_namespaced else "", name)

    async def token(self, rules: Sequence[Rule]) -> str:
        token = secrets.token_hex(8)
        self.api.tokens[token] = tuple(rules)
        return token

    def user(self, token_file: Path) -> Path:
        return write_kubeconfig(token_file.with_suffix(".kubeconfig"), self.api.url, {"tokenFile": str(token_file)})

    def compact(self) -> None:
        self.api.compact()

    async def restart(self) -> None:
        await self.api.stop()
        await self.api.start()

    def _placed(self, resource: ApiResource, content: Object) -> Object:
        if resource.is_namespaced:
            content["metadata"].setdefault("namespace", self.namespace)
        return content

    def _serve(self, content: Object) -> None:
        if content.get("kind") == "CustomResourceDefinition":
            self.api.serve_definition(content["spec"])


class ControlledCluster(FakeCluster):
    """The fake API server with controllers of workloads.

    They delete the pods of an owner that they did not create. A Deployment releases a ReplicaSet without its labels.
    """

    async def create(self, resource: ApiResource, content: Object) -> Object:
        stored = await super().create(resource, content)
        metadata = stored["metadata"]
        if "ownerReferences" not in metadata:
            return stored
        if resource == PODS:
            await self.delete(resource, metadata["name"])
        elif resource == REPLICA_SETS and metadata.get("labels") != SELECTOR["matchLabels"]:
            await self.replace(resource, {**stored, "metadata": {**metadata, "ownerReferences": []}})
        return stored


class KubeCluster:
    """A cluster with a real API server.

    Args:
        kubeconfig: of an administrator.
        folder: folder for kubeconfigs.
        server: the processes, if the tests started them.
        pod_security: pod security level of the namespace.
    """

    def __init__(
        self, kubeconfig: Path, folder: Path, server: "KubeServer | None", pod_security: str = "privileged"
    ) -> None:
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.namespace = f"gpufleet-test-{secrets.token_hex(4)}"
        self._pod_security = pod_security
        self._server = server
        config = lightkube.KubeConfig.from_file(kubeconfig).get()
        assert config is not None
        self._config = config
        self._http = httpx2.AsyncClient(**ConnectionParams(timeout=httpx2.Timeout(60)).httpx_params(config))
        self._created: list[str] = []

    async def __aenter__(self) -> Self:
        try:
            labels = {"pod-security.kubernetes.io/enforce": self._pod_security}
            await self._send("POST", NAMESPACES, {"metadata": {"name": self.namespace, "labels": labels}})
            self._created.append(f"{NAMESPACES}/{self.namespace}")
            # Pods are admitted once their service account exists. A controller creates it too, at any time.
            account = {"metadata": {"name": "default"}}
            await self._send("POST", SERVICE_ACCOUNTS.path(self.namespace), account, may_exist=True)
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for path in reversed(self._created):
                await self._http.delete(path, params=DELETION)
            if not await self.exists(SERVICE_ACCOUNTS.path("default", "default")):
                await self._finalize_namespace()
        finally:
            await self._http.aclose()

    async def exists(self, path: str) -> bool:
        """Return whether there is an object."""
        status = (await self._http.get(path)).status_code
        assert status in (200, 404), f"{path}: {status}"
        return status == 200

    async def version(self) -> tuple[int, int]:
        """Return the version of Kubernetes."""
        found = (await self._http.get("/version")).json()
        return int(found["major"]), int(found["minor"].rstrip("+"))

    async def refusal(self, resource: ApiResource, content: Object) -> str:
        """Return why the API server refuses to create an object, or an empty text. Nothing is stored."""
        answer = await self._http.post(resource.path(self.namespace), json=content, params={"dryRun": "All"})
        assert answer.status_code in (201, 403), answer.text
        return "" if answer.status_code == 201 else str(answer.json()["message"])

    async def create(self, resource: ApiResource, content: Object) -> Object:
        stored = await self._send("POST", resource.path(self.namespace), content)
        self._created.append(resource.path(self.namespace, stored["metadata"]["name"]))
        if content.get("kind") == "CustomResourceDefinition":
            await self._wait_for_definition(content["spec"])
        return stored

    async def replace(self, resource: ApiResource, content: Object) -> Object:
        return await self._send("PUT", resource.path(self.namespace, content["metadata"]["name"]), content)

    async def replace_status(self, resource: ApiResource, content: Object) -> Object:
        path = f"{resource.path(self.namespace, content['metadata']['name'])}/status"
        return await self._send("PUT", path, content)

    async def delete(self, resource: ApiResource, name: str) -> None:
        answer = await self._http.delete(resource.path(self.namespace, name), params=DELETION)
        assert answer.status_code < 300, answer.text

    async def token(self, rules: Sequence[Rule]) -> str:
        name = f"{self.namespace}-{secrets.token_hex(4)}"
        await self._send("POST", SERVICE_ACCOUNTS.path(self.namespace), {"metadata": {"name": name}})
        role = [{"apiGroups": [rule.group], "resources": [rule.plural], "verbs": list(rule.verbs)} for rule in rules]
        await self._send("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": role})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}],
        }
        await self._send("POST", f"{RBAC}/clusterrolebindings", binding)
        self._created += [f"{RBAC}/clusterroles/{name}", f"{RBAC}/clusterrolebindings/{name}"]
        wanted = {(rule.group, rule.plural, verb) for rule in rules for verb in rule.verbs}

        async def are_applied() -> bool:
            return wanted <= {
                (group, plural, verb)
                for rule in await self.rules_of(name, self.namespace)
                for group in rule.get("apiGroups", ())
                for plural in rule["resources"]
                for verb in rule["verbs"]
            }

        await wait_until_async(are_applied, what=f"the permissions {rules}")
        return await self.account_token(name)

    async def account_token(self, account: str) -> str:
        """Return a bearer token of a service account of the namespace."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        path = f"{SERVICE_ACCOUNTS.path(self.namespace, account)}/token"
        answer = await self._send("POST", path, request)
        return str(answer["status"]["token"])

    async def rules_of(self, account: str, namespace: str) -> list[Object]:
        """Return the rules that the API server applies to a service account for the objects of a namespace.

        The account is of this cluster's namespace. The rules that every account has are part of the result.
        """
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated")
        user = f"system:serviceaccount:{self.namespace}:{account}"
        headers = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]
        review = {"kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
        answer = await self._send("POST", RULES_REVIEWS, review, headers)
        rules: list[Object] = answer["status"]["resourceRules"]
        return rules

    def user(self, token_file: Path) -> Path:
        cluster = self._config.cluster
        fields = {
            "certificate-authority": str(self._config.abs_file(cluster.certificate_auth))
            if cluster.certificate_auth
            else None,
            "certificate-authority-data": cluster.certificate_auth_data,
            "insecure-skip-tls-verify": cluster.insecure or None,
        }
        return write_kubeconfig(
            token_file.with_suffix(".kubeconfig"),
            cluster.server,
            {"tokenFile": str(token_file)},
            {name: value for name, value in fields.items() if value is not None},
        )

    def compact(self) -> None:
        etcd = os.environ.get(GIVEN_ETCD) if self._server is None else None
        compact(etcd or self._own_server(f", or {GIVEN_ETCD}").etcd)

    async def restart(self) -> None:
        server = self._own_server()
        await asyncio.to_thread(server.restart)

    def _own_server(self, otherwise: str = "") -> "KubeServer":
        if self._server is None:
            import pytest

            pytest.skip(f"needs an API server that the tests started themselves{otherwise}")
        return self._server

    async def _send(
        self,
        method: str,
        path: str,
        content: Object,
        headers: Sequence[tuple[str, str]] = (),
        *,
        may_exist: bool = False,
    ) -> Object:
        answer = await self._http.request(method, path, json=content, headers=list(headers))
        accepted = answer.status_code < 300 or (may_exist and answer.status_code == 409)
        assert accepted, f"{method} {path}: {answer.status_code} {answer.text}"
        stored: Object = answer.json()
        return stored

    async def _wait_for_definition(self, spec: Object) -> None:
        """Wait until a resource is served, and is in the list of the resources of its version."""
        version, plural = f"/apis/{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["plural"]

        async def is_served() -> bool:
            listed, objects = await self._http.get(version), await self._http.get(f"{version}/{plural}")
            return {listed.status_code, objects.status_code} == {200} and f'"{plural}"' in listed.text

        await wait_until_async(is_served, what=f"{version}/{plural} to be served")

    async def _finalize_namespace(self) -> None:
        """End the namespace, as the controller of namespaces does in a cluster that has one."""
        for resource in (SERVICE_ACCOUNTS, LEASES):
            await self._http.delete(resource.path(self.namespace))
        path = f"{NAMESPACES}/{self.namespace}"
        content = (await self._http.get(path)).json()
        await self._send("PUT", f"{path}/finalize", {**content, "spec": {"finalizers": []}})


class KubeServer:
    """Processes of a kube-apiserver and its etcd.

    Args:
        folder: an empty folder.
        etcd: the program.
        options: further options of kube-apiserver.
    """

    def __init__(self, folder: Path, etcd: Path, options: Sequence[str] = ()) -> None:
        self.folder = folder
        self._etcd = etcd
        self._options = options
        self._port = _three_ports()
        self.kubeconfig = folder / "kubeconfig"
        self._audit = folder / "audit.log"

    def start(self) -> None:
        """Start both and wait until they are ready."""
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        options = [
            "--watch-cache-sizes=replicasets.apps#0",  # with the cache, compaction gives no 410
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._audit}",
            *self._options,
        ]
        program = self.folder / "kube-apiserver"
        program.write_text(LAUNCHER.format(program=_program()))
        program.chmod(0o755)
        environment = {
            **os.environ,
            "ETCD": str(self._etcd),
            "APISERVER": str(program),
            "APISERVER_EXTRA": " ".join(options),
        }
        done = subprocess.run(
            ["bash", str(PARTS / "start"), str(self._port), str(self.folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=START_SECONDS,  # the script itself waits up to an hour
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """Kill both: a graceful end waits for open watches."""
        for program in ("apiserver", "etcd"):
            file = self.folder / f"{program}.pid"
            if file.exists():
                pid = int(file.read_text())
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not _runs(pid), what=f"the end of {program}")  # type: ignore[misc]
                file.unlink()

    def restart(self) -> None:
        """Restart both on the same data."""
        self.stop()
        self.start()

    @property
    def etcd(self) -> str:
        """Return the URL of etcd."""
        return f"http://127.0.0.1:{self._port + 1}"

    def requests_of(self, namespace: str, account: str) -> set[AuditedRequest]:
        """Return the requests of a service account for resources, in any order."""
        if not self._audit.exists():  # it is created by the first request
            return set()
        user = f"system:serviceaccount:{namespace}:{account}"
        complete = self._audit.read_text().rpartition("\n")[0]
        events = [json.loads(line) for line in complete.splitlines() if f'"{user}"' in line]
        return {_request(one) for one in events if "resource" in one.get("objectRef", {})}


def compact(etcd: str) -> None:
    """Expire all versions of an API server before now, in its etcd."""

    def call(method: str, body: Object) -> Any:
        with urllib.request.urlopen(f"{etcd}/v3/kv/{method}", json.dumps(body).encode(), timeout=30) as answer:
            return json.load(answer)

    key = {"key": base64.b64encode(b"gpufleet-test").decode()}
    stored = call("put", {**key, "value": ""})  # a newer revision than that of every object
    call("compaction", {"revision": stored["header"]["revision"], "physical": True})
    call("deleterange", key)


@contextlib.contextmanager
def kube_server(folder: Path, etcd: Path, options: Sequence[str] = ()) -> Iterator[KubeServer]:
    """Run a kube-apiserver until the block ends; arguments as for `KubeServer`."""
    server = KubeServer(folder, etcd, options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def tested_cluster(
    kind: str, folder: Path, server: Callable[[], KubeServer]
) -> AsyncIterator[FakeCluster | KubeCluster]:
    """Return the cluster of a kind: `fake`, `controlled`, `real` or `given`."""
    fakes = {"fake": FakeCluster, "controlled": ControlledCluster}
    if kind in fakes:
        async with FakeKubeApi() as api:
            yield fakes[kind](api, folder)
        return
    started = server() if kind == "real" else None
    kubeconfig = started.kubeconfig if started is not None else Path(os.environ[GIVEN])
    async with KubeCluster(kubeconfig, folder, started) as cluster:
        yield cluster


def _runs(pid: int) -> bool:
    """Return whether a process runs. It is a child of the init process, which may leave it as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _request(event: Object) -> AuditedRequest:
    """Return the request of an event of the audit log."""
    of = event["objectRef"]
    resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
    status = event["responseStatus"]["code"]
    return AuditedRequest(event["verb"], of.get("apiGroup", ""), resource, of.get("name", ""), status)


def _key(resource: ApiResource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def _program() -> Path:
    """Return the unpacked kube-apiserver."""
    program = peers.CACHE / "kube-apiserver"
    if not program.exists():
        partial = program.with_suffix(f".{os.getpid()}")
        subprocess.run(["zstd", "-q", "-d", "-f", str(PARTS / "kube-apiserver.zst"), "-o", str(partial)], check=True)
        partial.chmod(0o755)
        partial.rename(program)
    return program


def _three_ports() -> int:
    """Return a free port with two free ports after it."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in (first, first + 1, first + 2):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
