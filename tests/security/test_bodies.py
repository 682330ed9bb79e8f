"""Bodies that unpack to more than they may, at a hub as it is run: refused, in bounded memory, beside good clients."""

import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, MAX_BODIES, pack
from tests.codecs.batch.bombs import NAMED_BOMBS
from tests.fakes.batches import body
from tests.security.daemons import Daemon, under_attack
from tests.web.hub.site import now

GROWTH_MIB = 512
"""The most memory that unpacking one body after the other may take: 64 MiB of message, and what becomes of it."""


@pytest.fixture
def hub(daemon_of: Callable[[str, bool], Daemon]) -> Daemon:
    return daemon_of("hub", False)


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    return {name: make() for name, make in NAMED_BOMBS.items()}


@pytest.mark.parametrize("name", NAMED_BOMBS)
def test_a_bomb(hub: Daemon, bombs: dict[str, bytes], name: str) -> None:
    with under_attack(hub, growth_mib=GROWTH_MIB):
        reply = hub.post(bombs[name])
    assert (reply.status, reply.error) in ((400, "bad_batch"), (413, "too_large")), reply


def test_many_bombs_at_once(hub: Daemon, bombs: dict[str, bytes]) -> None:
    with under_attack(hub, growth_mib=GROWTH_MIB), ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(hub.post, [bombs["zeros"], bombs["events"], bombs["cells"]] * 8))
    assert {reply.status for reply in replies} <= {400, 413, 503}


def test_a_bundle_of_small_bombs(hub: Daemon) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(60 << 20))
    with under_attack(hub, growth_mib=GROWTH_MIB):
        reply = hub.post(pack([bomb] * MAX_BODIES), BUNDLE_CONTENT_TYPE)
    assert (reply.status, reply.error) == (413, "too_large")


def test_a_frame_in_a_frame_and_a_bundle_in_a_bundle(hub: Daemon) -> None:
    frame = body(1, now())
    with under_attack(hub):
        assert hub.post(zstandard.ZstdCompressor().compress(frame)).error == "bad_batch"
        reply = hub.post(pack([pack([frame]), frame]), BUNDLE_CONTENT_TYPE)
    assert [one["status"] for one in reply.document["answers"]] == [400, 200]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br", "gzip, gzip"])
def test_nobody_unpacks_what_http_would_have_packed(hub: Daemon, coding: str) -> None:
    packed = gzip.compress(gzip.compress(bytes(64 << 20)))
    headers = {"Content-Encoding": coding}
    with under_attack(hub):
        assert hub.post(packed).error == "bad_batch"
        assert hub.post(packed, **headers).status == 415
        put = {**headers, "Content-Type": "application/json"}
        assert hub.ask("/v1/allocations/x", hub.token, "PUT", packed, headers=put).status == 400


@pytest.mark.parametrize("text", [b"[" * 500_000, b'{"kind":' * 100_000, b'{"target":{"cluster":' + b"9" * 900_000])
def test_json_that_goes_deep_or_on_and_on(hub: Daemon, text: bytes) -> None:
    with under_attack(hub):
        reply = hub.ask("/v1/allocations/x", hub.token, "PUT", text, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.error) == (400, "bad_request")
