"""KubeVirt's subresource `vsock` on an API server: permission by token, answers of virt-handler, and a guest."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Self

from aiohttp import WSMsgType, web

from gpufleet.ports.channel import Dialer, Stream
from tests.fakes.kube_api import write_kubeconfig

PATH = "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/vsock"
TOKEN = "vsock-token"
PING = b"keep alive"


class FakeVsockApi:
    """Server of the subresource.

    Attributes:
        guest: returns a dialer of a port of the guest; None means that everything is sent back.
        status: answered instead of an upgrade; 0 means none.
        token: bearer token of clients.
        protocol: subprotocol that the server speaks.
        close_code: sent at once after the upgrade; 0 means none.
        requests: path and query of each request.
        pongs: contents of the pongs of clients. A ping comes before everything that is sent back; KubeVirt's virt-api
            sends none on this subresource.
    """

    def __init__(self) -> None:
        self.guest: Callable[[int], Dialer] | None = None
        self.token = TOKEN
        self.status, self.protocol, self.close_code = 0, "plain.kubevirt.io", 0
        self.requests: list[str] = []
        self.pongs: list[bytes] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(PATH, self.handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def kubeconfig(self, folder: Path, token: str = TOKEN) -> Path:
        return write_kubeconfig(folder / "vsock.kubeconfig", self.url, {"token": token})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of the subresource."""
        self.requests.append(str(request.rel_url))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.status = 403
        if self.status:
            body = {"kind": "Status", "code": self.status, "reason": "Fault", "message": "a fault of the test"}
            return web.json_response(body, status=self.status)
        ws = web.WebSocketResponse(protocols=(self.protocol,), autoping=False)
        await ws.prepare(request)
        if self.close_code:
            await ws.close(code=self.close_code, message=b"dial failed")
            return ws
        await self._relay(ws, int(request.query["port"]))
        return ws

    async def _relay(self, ws: web.WebSocketResponse, port: int) -> None:
        if self.guest is None:
            async for message in ws:
                if message.type is WSMsgType.PONG:
                    self.pongs.append(bytes(message.data))
                elif message.type is WSMsgType.BINARY:
                    await ws.ping(PING)
                    await ws.send_bytes(message.data)
            return
        stream = await self.guest(port).dial()
        task = asyncio.create_task(_send(stream, ws))
        try:
            async for message in ws:
                if message.type is WSMsgType.BINARY:
                    await stream.send(message.data)
        finally:  # the server cancels the handler of an open connection at its end
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.close()


async def _send(stream: Stream, ws: web.WebSocketResponse) -> None:
    while data := await stream.receive(1 << 16):
        await ws.send_bytes(data)
    await ws.close()
