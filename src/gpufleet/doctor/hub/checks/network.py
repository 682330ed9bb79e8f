"""Who reaches the hub, and by what right: listener, certificate, tokens, and the clocks of those who send."""

import datetime as dt

from gpufleet.config.agent import parse_listen
from gpufleet.config.tls import is_loopback
from gpufleet.doctor.check import Check, Verdict
from gpufleet.doctor.hub.facts import Certificate, HubFacts
from gpufleet.model.access import Role, Token

SOON_DAYS = 21
"""What expires within this is told."""

AHEAD_SECONDS = 2.0
"""A sender's clock that is further ahead than this is wrong: nothing arrives before it was sent."""

BEHIND_SECONDS = 60.0
"""One that is further behind is wrong, or its newest batch was long on the way."""

NAMED = 3
"""How many of many are named."""


def check_listener(facts: HubFacts) -> Check:
    """Look at who can connect, and what is asked of them."""
    name, proves = "listener", "only who may can connect: loopback, or TLS and tokens"
    host, _ = parse_listen(facts.listen)
    guards = [word for word, on in (("TLS", facts.tls), ("tokens", facts.auth == "tokens")) if on]
    found = f"{facts.listen}, " + (" and ".join(guards) or "without TLS and tokens")
    if is_loopback(host) or len(guards) == 2:
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)
    mend = 'set [tls] and auth = "tokens", or listen on 127.0.0.1; see docs/security.md'
    found += ", reachable from other machines (insecure_listen)"
    return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)


def check_certificate(facts: HubFacts) -> Check:
    """Look at certificate and key: do they fit, until when, for which names, and who can read the key."""
    name, proves = "certificate", "clients that trust its authority accept it, by the name they use, for weeks to come"
    known = facts.certificate
    if known is None:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found="no [tls] is configured")
    if not isinstance(known, Certificate):
        mend = "give it a PEM certificate and its key without a passphrase, readable for its user"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=known, mend=mend)
    days = (known.not_after - facts.at) / dt.timedelta(days=1)
    found = f"for {', '.join(known.names) or 'no name'}, until {known.not_after:%Y-%m-%d %H:%M}Z"
    renew = "put a new pair in place of the files: the daemon takes it within a second, without a restart"
    if days <= 0:
        found = f"expired at {known.not_after:%Y-%m-%d %H:%M}Z"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=renew)
    found += f", {days:.0f} days"
    if known.right_name is False or not known.names:
        found += "; not for the name that it is asked by"
        mend = "issue it for every name and address that clients use (subjectAltName)"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if known.key_mode & 0o007:
        found += f"; everybody on this machine can use the key's file (mode {known.key_mode:04o})"
        mend = "chmod 640, owned by root and the daemon's group; then get a new key: this one may be known"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if days < SOON_DAYS:
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=renew)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_tokens(facts: HubFacts) -> Check:
    """Look for tokens that ran out or soon do."""
    name, proves = "tokens", "there are tokens, and none that is in use runs out soon"
    if facts.tokens is None:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found='auth = "none"')
    if isinstance(facts.tokens, str):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=facts.tokens)
    living = [one for one in facts.tokens if one.revoked_at is None]
    gone = [one for one in living if one.expires_at is not None and one.expires_at <= facts.at]
    soon_at = facts.at + dt.timedelta(days=SOON_DAYS)
    soon = [one for one in living if one.expires_at is not None and facts.at < one.expires_at <= soon_at]
    good = len(living) - len(gone)
    found = f"{good} are taken"
    found += f", {len(soon)} of them run out within {SOON_DAYS} days: {_named(soon)}" if soon else ""
    found += f"; {len(gone)} ran out: {_named(gone)}" if gone else ""
    if not any(one.role is Role.SENDER for one in living if one not in gone):
        mend = "gpufleet token create --role sender --cluster ID: until then nobody's batches are taken"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=f"{found}; none is a sender's", mend=mend)
    if soon or gone:
        mend = "gpufleet token rotate ID --overlap 24h --expires-in 90d, or revoke those that nobody uses"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_senders(facts: HubFacts) -> Check:
    """Compare the clocks of senders with the hub's, as far as their newest words tell."""
    name, proves = "sender_clocks", "measurements carry a time that fits the hub's"
    if not isinstance(facts.skews, dict):
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=facts.skews or "there are none")
    if not facts.skews:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="no sender was heard in the last hour")
    wrong = {sender: skew for sender, skew in facts.skews.items() if skew > AHEAD_SECONDS or skew < -BEHIND_SECONDS}
    if not wrong:
        found = f"{len(facts.skews):,} senders, none ahead by {AHEAD_SECONDS:g} s or behind by {BEHIND_SECONDS:g} s"
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)
    worst = sorted(wrong.items(), key=lambda item: -abs(item[1]))
    words = ", ".join(f"{sender} {skew:+,.0f} s" for sender, skew in worst[:NAMED])
    found = f"{len(wrong):,} of {len(facts.skews):,} senders are off: {words}" + (", …" if len(worst) > NAMED else "")
    mend = "see `gpufleet doctor` there; one that is behind may also have waited long for the hub"
    return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)


def _named(tokens: list[Token]) -> str:
    names = [f"{one.id} ({one.role}{f', {one.note}' if one.note else ''})" for one in tokens[:NAMED]]
    return ", ".join(names) + (", …" if len(tokens) > NAMED else "")


NETWORK_CHECKS = (check_listener, check_certificate, check_tokens, check_senders)
"""In the order of their weight."""
