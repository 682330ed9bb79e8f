"""Lists of an API server with hostile objects and answers."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from gpufleet.holders.kubernetes import listing
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.listing import decode_event, decode_object, list_objects
from gpufleet.holders.kubernetes.owners import OwnerWalk
from gpufleet.holders.kubernetes.parse.dynamic_resources import parse_claim
from gpufleet.holders.kubernetes.resources import RESOURCE_CLAIMS
from gpufleet.model.errors import KubernetesApiError
from gpufleet.model.holdings import Owner
from gpufleet.model.kubernetes import ChainEnd
from tests.fakes.clock import FakeClock
from tests.holders.kubernetes.conftest import handling

Answer = Callable[[str, Mapping[str, str]], bytes]


@contextlib.asynccontextmanager
async def answering(folder: Path, answer: Answer) -> AsyncIterator[ApiConnection]:
    """Return a connection to a server that sends what `answer` returns for a path and its parameters."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=answer(request.path, request.query))

    async with handling(folder, handle) as kubeconfig:
        connection = ApiConnection(ApiAccess(kubeconfig=str(kubeconfig), timeout_seconds=10))
        try:
            yield connection
        finally:
            await connection.close()


def claim(name: str, parameters: bytes = b"{}") -> bytes:
    """Return a claim with an allocated GPU, and parameters of its user for the driver."""
    return (
        b'{"metadata":{"uid":"u-%s","namespace":"ml","name":"%s"},"spec":{"devices":{"config":[{"opaque":{"parameters":'
        b'%s}}]}},"status":{"allocation":{"devices":{"results":[{"driver":"gpu.nvidia.com","pool":"p","device":"d"}]}}}}'
    ) % (name.encode(), name.encode(), parameters)


def page(*items: bytes, more: str = "") -> bytes:
    head = b'{"metadata":{"resourceVersion":"1","continue":"%s"},"items":[' % more.encode()
    return head + b",".join(items) + b"]}"


DEEP = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
"""Parameters of 10,006 bytes. Kubernetes permits 10,240."""


async def test_deep_parameters_of_a_claim_cost_nothing(tmp_path: Path) -> None:
    async with answering(tmp_path, lambda _, __: page(claim("a"), claim("b", DEEP))) as connection:
        found = await list_objects(connection, RESOURCE_CLAIMS, parse_claim, max_objects=10)
    assert ([one.name for one in found.records.values()], found.problems) == (["a", "b"], {})


def test_deep_parameters_of_an_event_cost_nothing() -> None:
    event = decode_event(b'{"type":"ADDED","object":%s}' % claim("a", DEEP))
    assert decode_object(event.object, parse_claim).record is not None


def test_claim_at_the_limit_of_the_decoder_is_read() -> None:
    """The limit counts the callers, too: one of two decodings of an object can exceed it."""
    for levels in range(850, 1_010):
        data = msgspec.Raw(claim("a", b"[" * levels + b"]" * levels))
        assert decode_object(data, parse_claim).record is not None


async def test_owner_with_deep_metadata_is_read(tmp_path: Path) -> None:
    kinds = b'{"resources":[{"name":"workflows","kind":"Workflow"}]}'
    owner = b'{"metadata":{"uid":"u","name":"w","managedFields":[{"fieldsV1":%s}]}}' % DEEP

    async with answering(tmp_path, lambda path, _: owner if path.endswith("/w") else kinds) as connection:
        controller = Owner(kind="Workflow", name="w", uid="u", api_version="argoproj.io/v1alpha1")
        assert (await OwnerWalk(connection, FakeClock()).chain("ml", controller)).end is ChainEnd.TOP


async def test_large_objects_are_read_in_smaller_pages(tmp_path: Path) -> None:
    limits: list[int] = []
    names = [f"c{number:02}" for number in range(20)]

    def answer(_: str, query: Mapping[str, str]) -> bytes:
        limits.append(int(query["limit"]))
        first = int(query.get("continue", "0"))
        end = min(first + limits[-1], len(names))
        more = "" if end == len(names) else str(end)
        return page(*(claim(name, b'"%s"' % (b"x" * 1_000)) for name in names[first:end]), more=more)

    async with answering(tmp_path, answer) as connection:
        found = await list_objects(
            connection, RESOURCE_CLAIMS, parse_claim, max_objects=100, page_objects=16, page_bytes=4_000
        )
        assert sorted(one.name for one in found.records.values()) == names
        assert limits[:2] == [16, 2]
        with pytest.raises(KubernetesApiError):
            await list_objects(connection, RESOURCE_CLAIMS, parse_claim, max_objects=100, page_bytes=500)


async def test_list_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_PAGES", 5)
    async with answering(tmp_path, lambda _, __: page(more="again")) as connection:
        with pytest.raises(KubernetesApiError, match="5 pages"):
            await list_objects(connection, RESOURCE_CLAIMS, parse_claim, max_objects=100)
