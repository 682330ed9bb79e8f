"""Checks of a node's connection to its hub, in the order in which an agent needs them."""

import datetime as dt
from collections.abc import Callable

from gpufleet.doctor.connection import (
    NOT_TRIED,
    DeliveryState,
    HubConnection,
    HubRefusal,
    TlsFailure,
    TlsProblem,
    TlsSession,
)
from gpufleet.doctor.facts import EXPIRY_WARNING_DAYS, CheckResult, CheckVerdict, NodeFacts
from gpufleet.model.access import CallerAccess, PostRefusal, Role

MAX_CLOCK_SECONDS = 5.0
"""Difference between the clocks of node and hub from which the check warns; it is known to 2 s."""

MISSED_HEARTBEATS = 3
"""Heartbeats without an acknowledgement after which delivery has failed."""

LONG_BACKLOG = 100
"""Queued batches from which a draining backlog is reported."""

TLS_FIXES = {
    TlsProblem.NAME: "use a name of the certificate in [hub] url, or issue one for this name: "
    "gpufleet hub certificate --name NAME, on the hub's host",
    TlsProblem.TIME: "check this node's clock; otherwise renew the hub's certificate",
    TlsProblem.CHAIN: "set [hub] ca to the PEM file of the CA that signed the hub's certificate",
    TlsProblem.CA_FILE: "set [hub] ca to a PEM file that the agent's user can read",
    TlsProblem.PROTOCOL: "check the port; if the hub uses plain HTTP, write http:// in [hub] url",
}
"""Remedy of each TLS problem."""

SENDER_FIX = (
    "on the hub's host: gpufleet token create --role sender --cluster {cluster}; then write it to [hub] token_file"
)

_Outcome = tuple[CheckVerdict, str, str]
_Judge = Callable[[HubConnection], _Outcome]


def check_hub_name(facts: NodeFacts) -> CheckResult:
    """Check that the hub's name resolves."""

    def judge(hub: HubConnection) -> _Outcome:
        if isinstance(hub.addresses, str):
            return CheckVerdict.FAILED, hub.addresses, "check the name in [hub] url, and /etc/resolv.conf or /etc/hosts"
        return CheckVerdict.OK, ", ".join(hub.addresses), ""

    return _checked(facts, "hub_name", "the hub's name resolves to an address", judge)


def check_hub_tcp(facts: NodeFacts) -> CheckResult:
    """Check that the hub's port accepts connections."""

    def judge(hub: HubConnection) -> _Outcome:
        if hub.peer is not None:
            return CheckVerdict.OK, f"{hub.peer} accepts connections", ""
        if hub.peer_error == NOT_TRIED:
            return CheckVerdict.UNKNOWN, NOT_TRIED, ""
        return (
            CheckVerdict.FAILED,
            hub.peer_error,
            "check that the hub runs, its `listen`, and firewalls between here and it",
        )

    return _checked(facts, "hub_tcp", "the hub's port accepts connections from this node", judge)


def check_hub_tls(facts: NodeFacts) -> CheckResult:
    """Check the hub's certificate: name, validity and chain."""

    def judge(hub: HubConnection) -> _Outcome:
        match hub.tls:
            case None:
                return CheckVerdict.NOT_APPLICABLE, "[hub] url is plain HTTP", ""
            case TlsFailure(problem=problem, detail=detail):
                return CheckVerdict.FAILED, detail, TLS_FIXES[problem]
            case TlsSession(version=version, not_after=not_after):
                days = (not_after - hub.at) / dt.timedelta(days=1)
                found = f"{version}, certificate until {not_after:%Y-%m-%d %H:%M}Z, {days:.0f} days"
                if days < EXPIRY_WARNING_DAYS:
                    return CheckVerdict.WARNING, found, "renew the hub's certificate"
                return CheckVerdict.OK, found, ""
            case reason:
                failed = CheckVerdict.UNKNOWN if reason == NOT_TRIED else CheckVerdict.FAILED
                return failed, reason, "" if reason == NOT_TRIED else "see the hub's log"

    proves = "the hub's certificate is for its name, valid now, and signed by a trusted CA"
    return _checked(facts, "hub_tls", proves, judge)


def check_hub_token(facts: NodeFacts) -> CheckResult:
    """Check that the hub accepts the token, and that only the agent can read it."""

    def judge(hub: HubConnection) -> _Outcome:
        fix = SENDER_FIX.format(cluster=hub.cluster)
        match hub.answer:
            case HubRefusal(status=401, error=error, detail=detail):
                return CheckVerdict.FAILED, f"{error}: {detail}", fix
            case HubRefusal(status=404, detail=detail):
                found = f"there is no hub at this URL: {detail}"
                return CheckVerdict.FAILED, found, "set [hub] url to the root of the hub, without the path of a page"
            case HubRefusal(status=status, error=error, detail=detail):
                return CheckVerdict.UNKNOWN, f"it answers {status} {error}: {detail}", "see the hub's log"
            case CallerAccess() as access if Role.SENDER not in access.roles:
                return CheckVerdict.FAILED, f"token {access.id} has the role {', '.join(access.roles)}", fix
            case CallerAccess() as access:
                if hub.token_file is not None and (hub.token_mode or 0) & 0o007:
                    found = f"every user of this machine can read {hub.token_file} (mode {hub.token_mode:04o})"
                    return (
                        CheckVerdict.FAILED,
                        found,
                        "chmod 640, owned by root and the agent's group; rotate the token",
                    )
                if hub.token_file is None:
                    return CheckVerdict.OK, "the hub requires no token", ""
                return CheckVerdict.OK, f"token {access.id} is a sender's", ""
            case reason:
                return (
                    CheckVerdict.UNKNOWN if reason == NOT_TRIED else CheckVerdict.FAILED,
                    str(reason),
                    "" if reason == NOT_TRIED else "check [hub] url and [hub] token_file",
                )

    return _checked(facts, "hub_token", "the hub accepts this node's token as a sender's", judge)


def check_hub_cluster(facts: NodeFacts) -> CheckResult:
    """Check that the hub accepts batches of the node's cluster."""

    def judge(hub: HubConnection) -> _Outcome:
        if not isinstance(hub.answer, CallerAccess):
            return CheckVerdict.UNKNOWN, NOT_TRIED, ""
        match hub.answer.refusal:
            case PostRefusal.OTHER_CLUSTER:
                found = f"the token is for {hub.answer.cluster!r}, and `cluster` is {hub.cluster!r}"
                return CheckVerdict.FAILED, found, "set `cluster`, or use a token of this cluster"
            case PostRefusal.FOREIGN_CLUSTER:
                fix = f"register it: gpufleet cluster put {hub.cluster} --hub {hub.url}"
                return CheckVerdict.FAILED, f"the hub does not serve {hub.cluster!r}", fix
            case PostRefusal.NOT_A_SENDER:
                return CheckVerdict.UNKNOWN, NOT_TRIED, ""
        return CheckVerdict.OK, f"batches of {hub.cluster!r} are accepted", ""

    return _checked(facts, "hub_cluster", "the hub accepts batches of this node's cluster", judge)


def check_hub_clock(facts: NodeFacts) -> CheckResult:
    """Compare the node's clock with the hub's."""

    def judge(hub: HubConnection) -> _Outcome:
        if hub.clock_ahead is None:
            return CheckVerdict.UNKNOWN, NOT_TRIED, ""
        found = f"{abs(hub.clock_ahead):.0f} s {'ahead of' if hub.clock_ahead > 0 else 'behind'} the hub's"
        if abs(hub.clock_ahead) > MAX_CLOCK_SECONDS:
            return CheckVerdict.WARNING, found, "run chronyd, systemd-timesyncd or a PTP client on both"
        return CheckVerdict.OK, "the clocks of node and hub agree within seconds", ""

    return _checked(facts, "hub_clock", "this node's clock agrees with the hub's", judge)


def check_hub_delivery(facts: NodeFacts) -> CheckResult:
    """Check the last acknowledgement and the backlog."""

    def judge(hub: HubConnection) -> _Outcome:
        state = hub.delivery
        if not isinstance(state, DeliveryState):
            return CheckVerdict.UNKNOWN, state, ""
        backlog = _backlog_text(state)
        if state.agent_error:
            fix = "start the agent, or pass its configuration with --config"
            verdict = CheckVerdict.WARNING if state.records else CheckVerdict.UNKNOWN
            return verdict, f"{backlog}; the agent does not respond: {state.agent_error}", fix
        fix = "see the checks above and the agent's log: journalctl -u gpufleet-agent"
        if state.last_success is None:
            found = f"no acknowledgement since the agent's start, {state.failures:,} failures; {backlog}"
            return (CheckVerdict.FAILED if state.failures else CheckVerdict.UNKNOWN), found, fix
        age = (hub.at - state.last_success).total_seconds()
        found = f"last acknowledgement {max(0.0, age):,.0f} s ago; {backlog}"
        if age > MISSED_HEARTBEATS * hub.heartbeat_seconds:
            return CheckVerdict.FAILED, found, fix
        if state.records is None:
            return CheckVerdict.WARNING, found, "check the disk and the permissions of the agent's spool"
        if state.records >= LONG_BACKLOG:
            return CheckVerdict.WARNING, found, "wait until it is sent; `[spool] backfill_per_second` limits the rate"
        return CheckVerdict.OK, found, ""

    return _checked(facts, "hub_delivery", "the hub acknowledges this node's batches, without a backlog", judge)


def _backlog_text(state: DeliveryState) -> str:
    if state.records is None or state.bytes is None:
        return "unknown backlog: the agent cannot open its spool"
    return f"{state.records:,} batches of {state.bytes / (1 << 20):,.1f} MiB queued" if state.records else "no backlog"


def _checked(facts: NodeFacts, name: str, proves: str, judge: _Judge) -> CheckResult:
    """Return the outcome of `judge`, or why the check does not apply."""
    if facts.hub is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if not facts.hub.url:
        found = "no [hub] url is configured: nothing is pushed"
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=found)
    verdict, found, fix = judge(facts.hub)
    return CheckResult(name=name, verdict=verdict, proves=proves, found=found, fix=fix)


CONNECTION_CHECKS = (
    check_hub_name,
    check_hub_tcp,
    check_hub_tls,
    check_hub_token,
    check_hub_cluster,
    check_hub_clock,
)
"""Checks of the connection itself, which need no agent."""

HUB_CHECKS = (*CONNECTION_CHECKS, check_hub_delivery)
"""All checks, in the order of repair."""
