"""Who may use which route: one table. Pure.

A route that has no row is refused, whoever asks: a test holds the table and the routes together.
"""

from collections.abc import Mapping

from gpufleet.model.access import Principal, Role

BATCHES = "/v1/batches"
"""Where batches are posted."""

WRITE = "/api/v1/write"
"""Where remote write posts."""

METRICS, LOGS = "/v1/metrics", "/v1/logs"
"""Where OTLP is posted."""

QUERY = "/v1/query"
"""Where SQL is posted."""

OPEN: frozenset[Role] = frozenset()
"""No role is needed, and no token."""

_SENDER = frozenset({Role.SENDER})
_READS_ALL = frozenset({Role.OPERATOR, Role.ADMIN})
_READS_OWN = _READS_ALL | {Role.TENANT}
_ADMIN = frozenset({Role.ADMIN})
_ANY = frozenset(Role)

ACCESS: Mapping[tuple[str, str], frozenset[Role]] = {
    ("POST", BATCHES): _SENDER,  # of its own cluster
    ("POST", WRITE): _SENDER,  # of its own cluster
    ("POST", METRICS): _SENDER,
    ("POST", LOGS): _SENDER,
    ("GET", "/v1/allocations"): _READS_OWN,  # a tenant sees its own, and of others not even that they are
    ("GET", "/v1/allocations/{allocation_id}"): _READS_OWN,
    ("GET", "/v1/allocations/{allocation_id}/metrics"): _READS_OWN,
    ("GET", "/v1/allocations/{allocation_id}/series"): _READS_OWN,
    ("PUT", "/v1/allocations/{allocation_id}"): _ADMIN,
    ("DELETE", "/v1/allocations/{allocation_id}"): _ADMIN,
    ("GET", "/v1/clusters"): _READS_ALL,
    ("GET", "/v1/clusters/{cluster_id}"): _READS_ALL,
    ("PUT", "/v1/clusters/{cluster_id}"): _ADMIN,
    ("DELETE", "/v1/clusters/{cluster_id}"): _ADMIN,
    ("GET", "/v1/machines"): _READS_ALL,
    ("GET", "/v1/machines/{machine_id}"): _READS_ALL,
    ("GET", "/v1/machines/{machine_id}/processes"): _READS_ALL,  # every tenant's on the machine
    ("DELETE", "/v1/machines/{machine_id}"): _ADMIN,
    ("GET", "/v1/fleet"): _READS_ALL,
    ("GET", "/v1/nodes"): _READS_ALL,
    ("GET", "/v1/gpus"): _READS_ALL,
    ("GET", "/v1/gpus/{gpu_id}"): _READS_ALL,
    ("GET", "/v1/gpus/changes"): _READS_ALL,
    ("GET", "/v1/gpus/pools"): _READS_ALL,
    ("GET", "/v1/events"): _READS_OWN,  # of a tenant's own devices, in its own time
    ("GET", "/v1/usage"): _READS_OWN,  # of a tenant's own allocations
    ("GET", "/v1/senders"): _READS_ALL,
    ("GET", "/v1/audit"): _ADMIN,
    ("GET", QUERY): _ADMIN,
    ("POST", QUERY): _ADMIN,  # every tenant's readings
    ("GET", "/"): OPEN,  # links, and nothing about the fleet
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): _READS_ALL,
    ("GET", "/metrics"): _READS_ALL,
    ("GET", "/openapi.json"): _ANY,
    ("GET", "/openapi"): _ANY,
    ("GET", "/openapi/openapi.json"): _ANY,
    ("GET", "/openapi/{path}"): _ANY,
}
"""Method and path to the roles of which one is needed."""


def is_open(method: str, path: str) -> bool:
    """Whether this very path needs no token."""
    return ACCESS.get((method, path)) is OPEN


def refusal(method: str, route: str, principal: Principal) -> str | None:
    """Return why the principal may not use the route, or None if it may."""
    roles = ACCESS.get((method, route))
    if roles is None:
        return f"{method} {route} is open to nobody"
    if roles is OPEN or roles & principal.roles:
        return None
    return f"it takes a token of the role {' or '.join(sorted(roles))}"
