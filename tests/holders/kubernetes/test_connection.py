"""Connection to an API server: credentials, their replacement, errors and limits."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from aiohttp import web

from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ConfigError, KubernetesApiError
from tests.fakes.kube_api import ADMIN, FakeKubeApi, write_kubeconfig
from tests.holders.kubernetes.conftest import handling

KUBE_SYSTEM = "/api/v1/namespaces/kube-system"


async def get(access: ApiAccess, path: str = KUBE_SYSTEM, **options: int) -> bytes:
    connection = ApiConnection(access)
    try:
        return await connection.get(path, **options)  # type: ignore[arg-type]
    finally:
        await connection.close()


async def test_service_account_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST"):
        ApiConnection(ApiAccess(service_account=tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(ConfigError) as missing:
        ApiConnection(ApiAccess(service_account=tmp_path))
    assert missing.value.source == str(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "clusters: 3", '{"clusters": [], "contexts": [], "users": []}'])
def test_invalid_kubeconfig_names_the_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        ApiConnection(ApiAccess(kubeconfig=str(file)))
    assert error.value.source == str(file)


async def test_replaced_kubeconfig_is_loaded_after_a_rejection(tmp_path: Path) -> None:
    async with FakeKubeApi() as api:
        file = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"token": "expired"})
        connection = ApiConnection(ApiAccess(kubeconfig=str(file)))
        with pytest.raises(KubernetesApiError) as rejected:
            await connection.get(KUBE_SYSTEM)
        assert (rejected.value.status, rejected.value.absence) == (401, Reason.NOT_PERMITTED)
        file.write_text("{")
        with pytest.raises(KubernetesApiError):
            await connection.get(KUBE_SYSTEM)
        write_kubeconfig(file, api.url, {"token": ADMIN})
        assert b"kube-system" in await connection.get(KUBE_SYSTEM)
        await connection.close()


async def test_exec_plugin_supplies_the_token_and_its_failure_is_named(tmp_path: Path) -> None:
    async with FakeKubeApi() as api:
        answer = tmp_path / "answer"
        answer.write_text(json.dumps({"status": {"token": ADMIN}}))
        plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "cat", "args": [str(answer)]}
        file = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"exec": plugin})
        assert b"kube-system" in await get(ApiAccess(kubeconfig=str(file)))
        for broken in ("", "{}", "[]"):
            answer.write_text(broken)
            with pytest.raises(KubernetesApiError) as error:
                await get(ApiAccess(kubeconfig=str(file)))
            assert str(file) in str(error.value)
        answer.unlink()
        with pytest.raises(KubernetesApiError):
            await get(ApiAccess(kubeconfig=str(file)))


async def test_rejection_has_status_code_and_retry_time(tmp_path: Path) -> None:
    async with FakeKubeApi() as api:
        access = ApiAccess(kubeconfig=str(api.kubeconfig(tmp_path)))
        with pytest.raises(KubernetesApiError) as missing:
            await get(access, "/api/v1/namespaces/other")
        assert (missing.value.status, missing.value.code) == (404, "NotFound")
        api.faults = [429]
        with pytest.raises(KubernetesApiError) as limited:
            await get(access)
        assert (limited.value.status, limited.value.retry_after) == (429, 7)


async def test_larger_response_than_the_limit_is_an_error(tmp_path: Path) -> None:
    async with FakeKubeApi() as api:
        access = ApiAccess(kubeconfig=str(api.kubeconfig(tmp_path)))
        with pytest.raises(KubernetesApiError, match="10 bytes"):
            await get(access, max_bytes=10)


async def test_response_without_end_is_an_error(tmp_path: Path) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    async with handling(tmp_path, drip) as kubeconfig:
        with pytest.raises(KubernetesApiError, match=r"0\.2 s"):
            await get(ApiAccess(kubeconfig=str(kubeconfig), request_seconds=0.2))


async def test_unreachable_server_is_an_error_without_status(tmp_path: Path) -> None:
    async with FakeKubeApi() as api:
        access = ApiAccess(kubeconfig=str(api.kubeconfig(tmp_path)))
    with pytest.raises(KubernetesApiError) as error:
        await get(access)
    assert (error.value.status, error.value.absence) == (0, Reason.READER_FAILED)


async def test_request_cancelled_in_the_handshake_closes_its_connection(tmp_path: Path) -> None:
    hello, end = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            hello.set()
        end.set()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        kubeconfig = write_kubeconfig(tmp_path / "config", url, {"token": ADMIN}, {"insecure-skip-tls-verify": True})
        connection = ApiConnection(ApiAccess(kubeconfig=str(kubeconfig)))
        request = asyncio.create_task(connection.get("/version"))
        await hello.wait()
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await end.wait()
        assert end.is_set()
        await connection.close()
