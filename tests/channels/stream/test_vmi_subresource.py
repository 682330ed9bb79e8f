"""VSOCK through the Kubernetes API, over the real client, with a fake API server."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.channels.stream.vmi_subresource import SubresourceVsock, WebSocketStream
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.vsock import VsockTarget
from tests.fakes.vsock_api import PING, FakeVsockApi

TARGET = VsockTarget(uid="u", namespace="ml", name="train-0", cid=42, pods=())


@pytest.fixture
async def api() -> AsyncIterator[FakeVsockApi]:
    async with FakeVsockApi() as started:
        yield started


@contextlib.asynccontextmanager
async def client(api: FakeVsockApi, folder: Path, token: str = "vsock-token") -> AsyncIterator[SubresourceVsock]:
    connection = ApiConnection(ApiAccess(kubeconfig=str(api.kubeconfig(folder, token))))
    try:
        yield SubresourceVsock(connection)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def connected(api: FakeVsockApi, folder: Path) -> AsyncIterator[WebSocketStream]:
    async with client(api, folder) as vsock:
        stream = await vsock.connect(TARGET, 5555)
        try:
            yield stream
        finally:
            await stream.close()
            await stream.close()


async def test_bytes_are_carried_both_ways(api: FakeVsockApi, tmp_path: Path) -> None:
    async with connected(api, tmp_path) as stream:
        for data in (b"a", bytes(range(256)) * 1024):  # the server sends a ping before each
            await stream.send(data)
            assert await stream.receive_exactly(len(data)) == data
    assert api.pongs[0] == PING
    path = "/apis/subresources.kubevirt.io/v1/namespaces/ml/virtualmachineinstances/train-0/vsock"
    assert api.requests == [f"{path}?port=5555&tls=false"]


async def test_received_bytes_are_bounded_by_the_caller(api: FakeVsockApi, tmp_path: Path) -> None:
    async with connected(api, tmp_path) as stream:
        await stream.send(b"abcdef")
        assert await stream.receive(4) == b"abcd"
        assert await stream.receive(4) == b"ef"


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (400, ChannelProblem.NOT_ENABLED),
        (401, ChannelProblem.NOT_PERMITTED),
        (403, ChannelProblem.NOT_PERMITTED),
        (404, ChannelProblem.NO_SUCH_VM),
        (500, ChannelProblem.NO_LISTENER),
        (503, ChannelProblem.UNREACHABLE),
        (200, ChannelProblem.UNREACHABLE),
    ],
)
async def test_rejections_are_channel_problems(
    api: FakeVsockApi, tmp_path: Path, status: int, problem: ChannelProblem
) -> None:
    api.status = status
    async with client(api, tmp_path) as vsock:
        with pytest.raises(ChannelError) as rejected:
            await vsock.connect(TARGET, 5555)
    assert rejected.value.problem is problem


async def test_permission_is_its_own(api: FakeVsockApi, tmp_path: Path) -> None:
    async with client(api, tmp_path, "other-token") as vsock:
        with pytest.raises(ChannelError) as rejected:
            await vsock.connect(TARGET, 5555)
    assert rejected.value.problem is ChannelProblem.NOT_PERMITTED


async def test_other_protocol_is_refused(api: FakeVsockApi, tmp_path: Path) -> None:
    api.protocol = "other"
    async with client(api, tmp_path) as vsock:
        with pytest.raises(ChannelError) as refused:
            await vsock.connect(TARGET, 5555)
    assert refused.value.problem is ChannelProblem.PROTOCOL


@pytest.mark.parametrize("code", [1000, 1011])
async def test_end_and_error_are_distinguished(api: FakeVsockApi, tmp_path: Path, code: int) -> None:
    api.close_code = code
    async with connected(api, tmp_path) as stream:
        if code == 1000:
            assert await stream.receive(1) == b""
        else:
            with pytest.raises(ChannelError) as ended:
                await stream.receive(1)
            assert ended.value.problem is ChannelProblem.ENDED


async def test_missing_server_is_unreachable(api: FakeVsockApi, tmp_path: Path) -> None:
    async with client(api, tmp_path) as vsock:
        await api.__aexit__()
        with pytest.raises(ChannelError) as missing:
            await vsock.connect(TARGET, 5555)
    assert missing.value.problem is ChannelProblem.UNREACHABLE
    await api.__aenter__()
