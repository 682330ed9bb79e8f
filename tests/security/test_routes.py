"""Access table: every route with every role."""

import itertools
from typing import Any, cast

import pytest
from litestar import get

from gpufleet.hub.receive.counters import Counters
from gpufleet.model.access import LOCAL, Principal, Role
from gpufleet.web.hub.access import (
    ACCESS,
    BATCHES,
    BENCHMARKS,
    LOGS,
    METRICS,
    WRITE,
    Authenticator,
    denial_reason,
    is_open,
)
from gpufleet.web.hub.app import build_api
from tests.fakes.clock import FakeClock
from tests.security.guarded import Guarded, Reply

NONE, S, T, O, A = None, Role.SENDER, Role.TENANT, Role.OPERATOR, Role.ADMIN  # noqa: E741 - one letter a column

# A second copy on purpose: the enforced table is compared with it.
EXPECTED: dict[tuple[str, str], set[Role | None]] = {
    ("POST", "/v1/batches"): {S},
    ("POST", "/v1/benchmarks"): {S},
    ("GET", "/v1/benchmarks"): {O, A},
    ("GET", "/v1/benchmarks/{capture_id}"): {O, A},
    ("GET", "/v1/allocations"): {T, O, A},
    ("GET", "/v1/allocations/{allocation_id}"): {T, O, A},
    ("GET", "/v1/allocations/{allocation_id}/metrics"): {T, O, A},
    ("GET", "/v1/allocations/{allocation_id}/series"): {T, O, A},
    ("PUT", "/v1/allocations/{allocation_id}"): {A},
    ("DELETE", "/v1/allocations/{allocation_id}"): {A},
    ("GET", "/v1/clusters"): {O, A},
    ("GET", "/v1/clusters/{cluster_id}"): {O, A},
    ("GET", "/v1/clusters/{cluster_id}/contract"): {O, A},
    ("PUT", "/v1/clusters/{cluster_id}"): {A},
    ("DELETE", "/v1/clusters/{cluster_id}"): {A},
    ("GET", "/v1/machines"): {O, A},
    ("GET", "/v1/machines/{machine_id}"): {O, A},
    ("GET", "/v1/machines/{machine_id}/processes"): {O, A},
    ("GET", "/v1/machines/{machine_id}/series"): {O, A},
    ("GET", "/v1/machines/{machine_id}/probe/changes"): {O, A},
    ("DELETE", "/v1/machines/{machine_id}"): {A},
    ("GET", "/v1/fleet"): {O, A},
    ("POST", "/api/v1/write"): {S},
    ("POST", "/v1/metrics"): {S},
    ("POST", "/v1/logs"): {S},
    ("GET", "/v1/nodes"): {O, A},
    ("GET", "/v1/nodes/gpus"): {O, A},
    ("GET", "/v1/gpus"): {O, A},
    ("GET", "/v1/gpus/{gpu_id}"): {O, A},
    ("GET", "/v1/gpus/changes"): {O, A},
    ("GET", "/v1/gpus/pools"): {O, A},
    ("GET", "/v1/holders"): {O, A},
    ("GET", "/v1/events"): {T, O, A},
    ("GET", "/v1/usage"): {T, O, A},
    ("GET", "/v1/findings"): {T, O, A},
    ("GET", "/v1/findings/{finding_id}"): {T, O, A},
    ("PUT", "/v1/findings/{finding_id}/acknowledgement"): {O, A},
    ("DELETE", "/v1/findings/{finding_id}/acknowledgement"): {O, A},
    ("GET", "/v1/silences"): {O, A},
    ("POST", "/v1/silences"): {O, A},
    ("DELETE", "/v1/silences/{silence_id}"): {O, A},
    ("GET", "/v1/updates"): {T, O, A},
    ("GET", "/v1/senders"): {O, A},
    ("GET", "/v1/access"): {S, T, O, A},
    ("GET", "/v1/audit"): {A},
    ("GET", "/v1/query"): {A},
    ("POST", "/v1/query"): {A},
    ("GET", "/"): {NONE, S, T, O, A},
    ("GET", "/healthz"): {NONE, S, T, O, A},
    ("GET", "/readyz"): {O, A},
    ("GET", "/metrics"): {O, A},
    ("GET", "/openapi.json"): {S, T, O, A},
    ("GET", "/openapi"): {S, T, O, A},
    ("GET", "/openapi/openapi.json"): {S, T, O, A},
    ("GET", "/openapi/{path}"): {S, T, O, A},
}


def api() -> Any:
    authenticator = Authenticator(None, counters=Counters(), clock=FakeClock())
    nothing = cast("Any", None)  # no request reaches them
    return build_api(authenticator, nothing, nothing, nothing, nothing, nothing, nothing, nothing)


def test_routes_and_access_table_match() -> None:
    routes = {(method, route.path_format) for route in api().routes for method in route.methods if method != "OPTIONS"}
    endpoints = {("POST", path) for path in (BATCHES, BENCHMARKS, WRITE, METRICS, LOGS)}
    assert routes | endpoints == set(ACCESS) == set(EXPECTED)


@pytest.mark.parametrize("route", EXPECTED)
def test_access_table_allows_the_expected_roles(route: tuple[str, str]) -> None:
    for role in Role:
        principal = Principal(id="x", roles=frozenset({role}))
        assert (denial_reason(*route, principal) is None) == (role in EXPECTED[route]), role
    assert is_open(*route) == (NONE in EXPECTED[route])
    assert denial_reason(*route, LOCAL) is None


async def test_route_without_access_row_is_refused() -> None:
    called = False

    @get("/v1/unlisted", sync_to_thread=False)
    def unlisted() -> str:
        nonlocal called
        called = True
        return "secret"

    application = api()
    application.register(unlisted)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/unlisted", "raw_path": b"/v1/unlisted"}
    await application({**scope, "headers": [], "query_string": b"", "auth": LOCAL}, receive, send)
    assert (sent[0]["status"], called) == (403, False)


async def test_each_role_on_each_route(site: Guarded) -> None:
    for role in [NONE, *Role]:
        secret = site.secrets[role] if role else None
        for (method, route), expected in EXPECTED.items():
            path = route.replace("{allocation_id}", "x").replace("{cluster_id}", "x").replace("{machine_id}", "x")
            path = path.replace("{gpu_id}", "x").replace("{path}", "x")
            path = path.replace("{capture_id}", "x").replace("{finding_id}", "x").replace("{silence_id}", "x")
            reply: Reply = await site.request(path, secret, method)
            if role in expected:
                assert reply.status not in (401, 403), f"{method} {path}"
            else:
                assert reply.status == (403 if role else 401), f"{method} {path}"
                assert reply.error == ("forbidden" if role else "no_token"), role


async def test_path_variants_do_not_bypass_access_control(site: Guarded) -> None:
    for path in [
        "//v1/nodes",
        "/v1/nodes/",
        "/v1//nodes",
        "/%76%31/nodes",
        "/v1/nodes?x=/healthz",
        "/healthz/../v1/nodes",
    ]:
        assert (await site.request(path)).status == 401, path
        assert (await site.request(path, site.secrets[Role.SENDER])).status in (403, 404), path


async def test_method_variants_do_not_bypass_access_control(site: Guarded) -> None:
    for method in ["HEAD", "OPTIONS", "PATCH", "POST", "TRACE", "PUT", "DELETE"]:
        assert (await site.request("/v1/nodes", None, method)).status == 401, method
        assert (await site.request("/v1/nodes", site.secrets[Role.TENANT], method)).status in (204, 403, 405), method


async def test_other_methods_of_findings_by_role(site: Guarded) -> None:
    routes = {path for _, path in EXPECTED if path.startswith(("/v1/findings", "/v1/silences"))}
    for role, route in itertools.product([NONE, *Role], sorted(routes)):
        own = {method for method, path in EXPECTED if path == route} | {"OPTIONS"}
        own |= {"HEAD"} if "GET" in own else set()
        secret, path = site.secrets[role] if role else None, route.format(finding_id="x", silence_id="x")
        got = await site.request(path, secret)
        for method in ("HEAD", "OPTIONS", "PATCH", "TRACE"):
            reply = await site.request(path, secret, method)
            expected = 401 if role is NONE else 204 if method == "OPTIONS" else 405
            assert reply.status == (got.status if method == "HEAD" else expected), (role, method, path)
            if reply.status in (204, 405):
                assert set(reply.headers["allow"].split(", ")) == own, (role, method, path)
