"""OpenAPI document of the hub: its responses to generated requests of every role conform to it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from gpufleet.config.hub import HubConfig
from gpufleet.model.access import Role
from gpufleet.model.finding import Severity
from gpufleet.model.stored.findings import FindingsState
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SqlFindings
from tests.fakes.batches import body
from tests.security.daemons import Daemon
from tests.support.findings import make_finding, transitions_of
from tests.support.profiles import examples
from tests.support.waiting import PATIENCE, wait_until
from tests.web.hub.site import now

CHECKS: list[Any] = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]

EXAMPLES: dict[Role | None, int] = {
    Role.ADMIN: examples(10, 40),
    Role.OPERATOR: examples(3, 10),
    Role.TENANT: examples(3, 10),
    Role.SENDER: examples(2, 5),
    None: examples(2, 5),
}
"""Requests per operation, valid and invalid."""

KNOWN: dict[str, list[Any]] = {
    "allocation_id": ["mine", "theirs", "past", "slice"],
    "cluster_id": ["local", "other", "past"],
    "gpu_id": ["GPU-0", "GPU-1", "GPU-none"],
    "metric": [["gpu_power_watts"], ["gpu_power_watts", "host_load_1m"], ["none"]],
    "step": ["1s", "1m", "0"],
    "start": ["2026-01-01T00:00:00Z"],
    "end": ["2026-01-01T01:00:00+01:00"],
    "cluster": ["local", "none"],
    "machine": ["node-a"],
    "allocation": ["mine", "theirs", "slice"],
    "view": ["gpu/GPU-0", "machine"],
    "kind": [["xid"], ["xid", "gpu_lost"]],
    "since": ["2026-01-01T00:00:00Z"],
    "until": ["2026-01-01T01:00:00+01:00"],
    "cursor": ["MTc2NzIyNTYwMDAwMDAwMDAwMC81", "k6Vsb2NhbKZub2RlLWGg"],
    "limit": [1, 1000],
    "code": [[79], [0, 31]],
    "gpu": ["GPU-0", "0000:1b:00.0"],
    "format": ["json", "csv", "arrow"],
    "rule": [["gpu.lost"], ["gpu.lost", "node.missing"]],
    "severity": [["critical"], ["warning", "info"]],
    "state": [["open", "unknown"], ["closed"], ["acknowledged"]],
    "scope": ["device", "allocation"],
    "subject": ["local", "local/m-1", "local/mine"],
}
"""Values that exist at the hub. Generated values alone would match no record."""

AT = 1_767_225_600_000_000_000

VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"

ALLOCATIONS: dict[str, dict[str, Any]] = {
    "mine": {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}, "tenant": "acme"},
    "theirs": {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-b"}, "tenant": "other"},
    "past": {"kind": "kubernetes_pod", "target": {"cluster": "local", "pod_uid": "0123456789abcdef0123456789abcdef"}},
    "slice": {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": VM}, "expected": {"H200": 1}},
}


CAPTURE = {
    "schema": "gpufleet.benchmark/1",
    "name": "metal",
    "version": "0.1.0",
    "started_at": "2026-01-01T00:00:00Z",
    "machine": {"name": "node-a", "source": "host_local_probe"},
}
"""Header of a benchmark capture, the part that the hub reads."""

FINDINGS = (
    make_finding("gpu.lost", "local/m-1/gpu/GPU-0", AT, severity=Severity.CRITICAL, evidence={"lost": "1"}),
    make_finding("node.missing", "local/m-1", AT + 1, closed_at=AT + 10**9),
    make_finding("allocation.partial", "local/mine", AT + 2),
)


def save_findings(hub: Daemon) -> None:
    """Store findings in the registry of the running hub."""
    database = Database.open(HubConfig(state=str(hub.process.log.parent)).registry_dsn)
    try:
        for one in FINDINGS:
            SqlFindings(database).save_findings(FindingsState(), transitions_of(one))
    finally:
        database.close()


@pytest.fixture(scope="module")
def hub(daemon_of: Callable[[str, bool], Daemon]) -> Daemon:
    """Return a hub with records of every kind."""
    hub = daemon_of("hub", False)

    def write(path: str, document: object, method: str = "PUT") -> None:
        headers = {"Content-Type": "application/json"}
        reply = hub.request(path, hub.token, method, json.dumps(document).encode(), headers=headers)
        assert reply.status in (200, 201), reply

    for name, spec in ALLOCATIONS.items():
        write(f"/v1/allocations/{name}", spec)
    for name in ("other", "past"):
        write(f"/v1/clusters/{name}", {"team": "x", "expected": {"H200": 8}})
    write("/v1/allocations/past", None, "DELETE")
    write("/v1/clusters/past", None, "DELETE")
    assert hub.post(body(1_000, now())).status == 200

    def ids() -> list[str]:
        machines = hub.request("/v1/machines", hub.token).document["items"]  # other tests may have posted more
        return [one["id"] for one in machines if one["machine"]["name"] == "node-a"]

    wait_until(ids, what="the batch to be stored")
    save_findings(hub)
    silence = hub.request(
        "/v1/silences",
        hub.token,
        "POST",
        b'{"rule": "gpu.lost", "duration": "1h"}',
        headers={"Content-Type": "application/json"},
    )
    headers = {"Content-Type": "application/json"}
    capture = json.dumps(CAPTURE).encode()
    posted = hub.request("/v1/benchmarks", hub.tokens[Role.SENDER], "POST", capture, headers=headers)
    KNOWN["capture_id"] = [posted.document["id"], "0" * 64]
    KNOWN["finding_id"] = [*(one.id for one in FINDINGS), "0" * 24]
    KNOWN["silence_id"] = [silence.document["id"], "0" * 16]
    KNOWN["machine_id"] = [*ids(), "none"]
    KNOWN["gpu_id"] = [f"local/{ids()[0]}/gpu/GPU-0", f"local/{ids()[0]}/gpu/GPU-1", "GPU-0", "GPU-none"]
    return hub


def operations(hub: Daemon) -> list[Any]:
    """Return all operations, the deleting ones last: a closed record cannot be written again.

    The stream of updates is left out, because its response has no end.
    """
    url = f"http://127.0.0.1:{hub.port}/openapi.json"
    schema = schemathesis.openapi.from_url(url, headers={"Authorization": f"Bearer {hub.token}"})
    found = []
    for one in schema.get_all_operations():
        assert isinstance(one, Ok), one
        if one.ok().label != "GET /v1/updates":
            found.append(one.ok())
    return sorted(found, key=lambda operation: operation.method.upper() == "DELETE")


ACKNOWLEDGEMENTS_AND_SILENCES = ("PUT /v1/findings/{finding_id}/acknowledgement", "POST /v1/silences")


def put_known(case: Any, data: st.DataObject) -> None:
    """Replace some generated values with existing ones."""
    for parameters in (case.path_parameters, case.query):
        for name in list(parameters or {}):
            if name in KNOWN and data.draw(st.booleans()):
                parameters[name] = data.draw(st.sampled_from(KNOWN[name]))
    if case.operation.label.endswith("/series") and data.draw(st.booleans()):
        case.query = {"metric": ["gpu_power_watts"], "step": data.draw(st.sampled_from(["1s", "1m", "6h"]))}
    if case.operation.label == "POST /v1/query" and data.draw(st.booleans()):
        case.body = {
            "sql": data.draw(st.sampled_from(["SELECT 1 AS a", "SELECT * FROM fleet_devices", "SELECT file('x')"]))
        }
    if case.operation.label in ACKNOWLEDGEMENTS_AND_SILENCES and data.draw(st.booleans()):
        more = {"rule": "gpu.frozen"} if "silences" in case.operation.label else {}
        case.body = {"duration": data.draw(st.sampled_from(["1h", "90d", "91d"])), "note": "x", **more}
        if case.path_parameters:  # else few requests have a valid body and an open finding
            case.path_parameters = {"finding_id": data.draw(st.sampled_from(KNOWN["finding_id"]))}
    if case.operation.label == "PUT /v1/allocations/{allocation_id}" and data.draw(st.booleans()):
        id_, case.body = data.draw(st.sampled_from(list(ALLOCATIONS.items())))
        case.path_parameters, case.query = {"allocation_id": id_}, {}


def send_generated(operation: Any, hub: Daemon, token: str | None, count: int) -> set[int]:
    """Send generated requests, check every response against the document, and return the statuses."""
    statuses: set[int] = set()
    strategy = operation.as_strategy(GenerationMode.POSITIVE)
    if operation.path_parameters or operation.query or operation.body:
        strategy |= operation.as_strategy(GenerationMode.NEGATIVE)

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy, data=st.data())
    def send_one(case: Any, data: st.DataObject) -> None:
        put_known(case, data)
        case.headers = {**(case.headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        answer = case.call(base_url=f"http://127.0.0.1:{hub.port}", timeout=20 * PATIENCE)
        if answer.status_code == 431:
            return  # a generated URL that the server refuses before the application
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    send_one()
    return statuses


@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", [None, *Role], ids=lambda role: role or "anonymous")
def test_answers_conform_to_the_openapi_document(hub: Daemon, role: Role | None) -> None:
    token = hub.tokens[role] if role else None
    seen: dict[str, set[int]] = {}
    for operation in operations(hub):
        statuses = send_generated(operation, hub, token, EXAMPLES[role])
        if role is Role.ADMIN and not statuses & {200, 201}:
            statuses = send_generated(operation, hub, token, 40)  # more examples: none matched an existing record
        seen[operation.label] = statuses
    assert len(seen) >= 20
    for label, statuses in seen.items():
        if role is Role.ADMIN:
            assert statuses & {200, 201}, f"{label} never succeeded: {statuses}"
        if role is None and "healthz" not in label:
            assert statuses == {401}, label
