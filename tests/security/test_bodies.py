"""Decompression bombs sent to a hub process: rejected in bounded memory."""

import functools
import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, MAX_BODIES, pack
from tests.codecs.batch.bombs import NAMED_BOMBS
from tests.fakes.batches import body
from tests.security.daemons import Daemon, under_attack
from tests.support.profiles import examples
from tests.web.hub.site import now

GROWTH_MIB = 512
"""Maximum growth of peak resident memory by decompression. One message has at most 64 MiB."""


@pytest.fixture
def hub(daemon_of: Callable[[str, bool], Daemon]) -> Daemon:
    return daemon_of("hub", False)


@functools.cache
def bomb(name: str) -> bytes:
    return NAMED_BOMBS[name]()


@pytest.mark.parametrize("name", NAMED_BOMBS)
def test_bomb_is_rejected_in_bounded_memory(hub: Daemon, name: str) -> None:
    content = bomb(name)
    with under_attack(hub, growth_mib=GROWTH_MIB):
        reply = hub.post(content)
    assert (reply.status, reply.error) in ((400, "bad_batch"), (413, "too_large")), reply


def test_many_bombs_at_once_are_rejected(hub: Daemon) -> None:
    several = [bomb(name) for name in ("zeros", "events", "cells")] * examples(3, 8)
    with under_attack(hub, growth_mib=GROWTH_MIB), ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(hub.post, several))
    assert {reply.status for reply in replies} <= {400, 413, 503}


def test_bundle_of_small_bombs_is_rejected(hub: Daemon) -> None:
    small = zstandard.ZstdCompressor().compress(bytes(60 << 20))
    with under_attack(hub, growth_mib=GROWTH_MIB):
        reply = hub.post(pack([small] * MAX_BODIES), BUNDLE_CONTENT_TYPE)
    assert (reply.status, reply.error) == (413, "too_large")


def test_nested_frames_and_bundles_are_rejected(hub: Daemon) -> None:
    frame = body(1, now())
    with under_attack(hub):
        assert hub.post(zstandard.ZstdCompressor().compress(frame)).error == "bad_batch"
        reply = hub.post(pack([pack([frame]), frame]), BUNDLE_CONTENT_TYPE)
    assert [one["status"] for one in reply.document["answers"]] == [400, 200]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br", "gzip, gzip"])
def test_content_encoding_is_not_unpacked(hub: Daemon, coding: str) -> None:
    packed = gzip.compress(gzip.compress(bytes(64 << 20)))
    headers = {"Content-Encoding": coding}
    with under_attack(hub):
        assert hub.post(packed).error == "bad_batch"
        assert hub.post(packed, **headers).status == 415
        put = {**headers, "Content-Type": "application/json"}
        assert hub.request("/v1/allocations/x", hub.token, "PUT", packed, headers=put).status == 400


@pytest.mark.parametrize("text", [b"[" * 500_000, b'{"kind":' * 100_000, b'{"target":{"cluster":' + b"9" * 900_000])
def test_deep_or_endless_json_is_rejected(hub: Daemon, text: bytes) -> None:
    with under_attack(hub):
        reply = hub.request("/v1/allocations/x", hub.token, "PUT", text, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.error) == (400, "bad_request")
