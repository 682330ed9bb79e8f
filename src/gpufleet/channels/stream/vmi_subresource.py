"""VSOCK of KubeVirt's virtual machines through the API server: a WebSocket to the subresource `vsock`."""

import asyncio
import base64
import secrets

from wsproto.frame_protocol import CloseReason, FrameProtocol, Opcode, ParseFailed
from wsproto.utilities import generate_accept_token

from gpufleet.model.errors import ChannelError, ChannelProblem, KubernetesApiError
from gpufleet.model.text import bounded
from gpufleet.ports.vsock import UpgradeClient, UpgradedStream, VsockTarget

API = "/apis/subresources.kubevirt.io/v1"
PROTOCOL = "plain.kubevirt.io"
DIAL_SECONDS = 10.0
CHUNK_BYTES = 64 << 10
MAX_DETAIL = 300

_NORMAL = (CloseReason.NORMAL_CLOSURE, CloseReason.GOING_AWAY, CloseReason.NO_STATUS_RCVD)
"""Close codes of a normal end."""

_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONTINUATION)

_PROBLEMS = {
    400: ChannelProblem.NOT_ENABLED,  # the virtual machine has no VSOCK
    401: ChannelProblem.NOT_PERMITTED,
    403: ChannelProblem.NOT_PERMITTED,
    404: ChannelProblem.NO_SUCH_VM,
    409: ChannelProblem.NOT_UP,  # it does not run
    500: ChannelProblem.NO_LISTENER,  # virt-handler cannot connect to the port
}


class SubresourceVsock:
    """Connects through the API server and virt-handler. It needs no access to the node."""

    def __init__(self, api: UpgradeClient, *, timeout_seconds: float = DIAL_SECONDS) -> None:
        self._api, self._timeout = api, timeout_seconds

    async def connect(self, target: VsockTarget, port: int) -> "WebSocketStream":
        """Open a stream. Raises ChannelError."""
        name = f"{target.namespace}/{target.name}, vsock port {port}, through the API"
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        path = f"{API}/namespaces/{target.namespace}/virtualmachineinstances/{target.name}/vsock"
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": PROTOCOL,
        }
        try:
            async with asyncio.timeout(self._timeout):
                stream = await self._api.upgrade(path, {"port": str(port), "tls": "false"}, headers)
        except TimeoutError:
            message = f"{name}: no answer in {self._timeout:g} s"
            raise ChannelError(message, ChannelProblem.TIMEOUT) from None
        except KubernetesApiError as error:
            problem = _PROBLEMS.get(error.status, ChannelProblem.UNREACHABLE)
            raise ChannelError(f"{name}: {bounded(str(error), MAX_DETAIL)}", problem) from None
        accepted, protocol = stream.headers.get("sec-websocket-accept"), stream.headers.get("sec-websocket-protocol")
        if accepted != generate_accept_token(key.encode()).decode() or protocol != PROTOCOL:
            await stream.close()
            message = f"{name}: the answer is not a WebSocket with the protocol {PROTOCOL}"
            raise ChannelError(message, ChannelProblem.PROTOCOL)
        return WebSocketStream(stream, name)


class WebSocketStream:
    """The Stream port over the binary messages of a WebSocket."""

    def __init__(self, stream: UpgradedStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._frames = FrameProtocol(client=True, extensions=[])
        self._received = bytearray()
        self._end: tuple[int, str] | None = None  # code and reason of the peer's close frame
        self._is_closed = False

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError if the peer is gone."""
        await self._stream.send(bytes(self._frames.send_data(data)))

    async def receive(self, most: int) -> bytes:
        """Receive 1 to `most` bytes, or empty bytes at the end of the stream. Raises ChannelError."""
        while not self._received:
            if self._end is not None:
                return self._ended(*self._end)
            chunk = await self._stream.receive(CHUNK_BYTES)
            if not chunk:
                return b""
            try:
                reply = self._take(chunk)
            except ParseFailed as error:
                raise ChannelError(f"{self._name}: {error}", ChannelProblem.PROTOCOL) from None
            if reply:
                await self._stream.send(reply)
        found = bytes(self._received[:most])
        del self._received[:most]
        return found

    async def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ChannelError if the stream ends before that."""
        data = bytearray()
        while len(data) < count:
            chunk = await self.receive(count - len(data))
            if not chunk:
                message = f"{self._name}: the stream ended after {len(data)} of {count} bytes"
                raise ChannelError(message, ChannelProblem.ENDED)
            data += chunk
        return bytes(data)

    async def close(self) -> None:
        """Close the connection; a second close has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(1.0):
                await self._stream.send(bytes(self._frames.close(CloseReason.NORMAL_CLOSURE)))
        except (TimeoutError, ChannelError):
            pass
        finally:
            await self._stream.close()

    def _take(self, chunk: bytes) -> bytes:
        """Take bytes of the server; return the bytes to send in return. Frames after a close frame are ignored."""
        reply = b""
        self._frames.receive_bytes(chunk)
        for frame in self._frames.received_frames():
            payload = frame.payload
            if frame.opcode is Opcode.CLOSE:
                assert isinstance(payload, tuple)
                code, reason = int(payload[0]), str(payload[1] or "")
                self._end = code, reason
                return reply + self._frames.close(code)
            assert not isinstance(payload, tuple)
            content = payload.encode() if isinstance(payload, str) else bytes(payload)
            if frame.opcode in _DATA:
                self._received += content
            elif frame.opcode is Opcode.PING:
                reply += self._frames.pong(content)
        return reply

    def _ended(self, code: int, reason: str) -> bytes:
        """Return the end of the stream. Raises ChannelError if the server closed it for an error."""
        if code not in _NORMAL:
            message = f"{self._name}: closed with {int(code)}: {bounded(reason, MAX_DETAIL)}"
            raise ChannelError(message, ChannelProblem.ENDED)
        return b""
