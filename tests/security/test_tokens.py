"""Tokens of clients: missing, invalid, expired, revoked and rotated."""

import asyncio
import datetime as dt
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.model.access import Role
from tests.security.guarded import Guarded

HOUR = dt.timedelta(hours=1)
PATH = "/v1/nodes"


async def test_request_without_token_gets_a_challenge(site: Guarded) -> None:
    reply = await site.request(PATH)
    assert (reply.status, reply.error) == (401, "no_token")
    assert reply.headers["www-authenticate"] == 'Bearer realm="gpufleet"'
    assert (await site.request(PATH, site.secrets[Role.OPERATOR])).status == 200


async def test_unknown_or_malformed_token_is_rejected(site: Guarded) -> None:
    for header in [
        "Bearer",
        "Bearer ",
        "Basic Z3BmOng=",
        "gpf_aaaaaaaaaaaa_" + "a" * 43,
        "Bearer gpf_aaaaaaaaaaaa_" + "a" * 43,
        "Bearer gpf__",
        "Bearer " + "x" * 8000,
        "Bearer \xff\xfe",
        "Bearer ../../etc/passwd",
        "Bearer ' OR 1=1 --",
    ]:
        reply = await site.request(PATH, headers={"Authorization": header})
        assert reply.status == 401, header
        assert reply.error in ("no_token", "bad_token"), header
        assert "www-authenticate" in reply.headers, header


async def test_wrong_secret_and_unknown_id_get_the_same_answer(site: Guarded) -> None:
    good = site.secrets[Role.ADMIN]
    wrong = [good[:-1] + ("a" if good[-1] != "a" else "b"), "gpf_" + "a" * 12 + good[16:], good + "a", good[:-1]]
    replies = {
        (reply.status, reply.body, *reply.headers.items()) for reply in [await site.request(PATH, w) for w in wrong]
    }
    assert len(replies) == 1
    assert replies.pop()[0] == 401


async def test_two_authorization_headers_are_rejected(site: Guarded) -> None:
    good = site.secrets[Role.ADMIN]
    reader, writer = await asyncio.open_connection("127.0.0.1", site.hub.port)
    lines = f"GET {PATH} HTTP/1.1\r\nHost: x\r\n" + 2 * f"Authorization: Bearer {good}\r\n" + "\r\n"
    writer.write(lines.encode())
    assert b" 401 " in await reader.readline()
    writer.close()


async def test_expired_token_is_rejected(site: Guarded) -> None:
    _, secret = await site.make(Role.OPERATOR, expires_at=site.clock.now() + HOUR)
    assert (await site.request(PATH, secret)).status == 200
    site.clock.ahead = HOUR
    reply = await site.request(PATH, secret)
    assert (reply.status, reply.error) == (401, "expired_token")
    assert 'error="invalid_token"' in reply.headers["www-authenticate"]


async def test_revoked_token_is_rejected_by_a_running_hub(site: Guarded) -> None:
    token, secret = await site.make(Role.OPERATOR)
    site.tokens.revoke(token.id, site.clock.now())
    assert (await site.until_refused(secret)).error == "revoked_token"


async def test_revocation_is_shown_only_with_the_right_secret(site: Guarded) -> None:
    token, secret = await site.make(Role.OPERATOR)
    site.tokens.revoke(token.id, site.clock.now())
    await site.until_refused(secret)
    assert (await site.request(PATH, f"gpf_{token.id}_{'a' * 43}")).error == "bad_token"


async def test_rotated_token_is_valid_until_the_overlap_ends(site: Guarded) -> None:
    token, old = await site.make(Role.OPERATOR)
    _, new = site.tokens.rotate(token.id, site.clock.now(), overlap=HOUR)
    await site.make(Role.OPERATOR)  # now the hub has loaded the rotation
    assert (await site.request(PATH, old)).status == 200
    assert (await site.request(PATH, new)).status == 200
    site.clock.ahead = HOUR
    assert (await site.request(PATH, old)).error == "expired_token"
    assert (await site.request(PATH, new)).status == 200


async def test_failures_are_counted_and_logged_once(site: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpufleet"):
        for _ in range(50):
            await site.request(PATH)
        await site.request(PATH, site.secrets[Role.SENDER])
    assert len([one for one in caplog.records if one.message.startswith("rejected")]) == 1
    assert not any(site.secrets[Role.SENDER] in one.getMessage() for one in caplog.records)
    page = (await site.request("/metrics", site.secrets[Role.OPERATOR])).body.decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["gpufleet_hub_unauthenticated_requests_total", "no_token"] == 50
    assert found["gpufleet_hub_forbidden_requests_total",] == 1


async def test_body_of_an_unauthenticated_request_is_not_read(site: Guarded) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.hub.port)
    writer.write(b"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 10)  # to the end: the hub closes
    assert b" 401 " in answer
    writer.close()
