"""HTTP client of the million-GPU load, against a server with all responses of a hub."""

import asyncio
from typing import Self

import msgspec

from benchmarks.light_http import Connection, Response
from benchmarks.million_load import BUNDLE, NODES_PER_CLUSTER, Load, Order, clusters, senders
from gpufleet.codecs.batch import decode
from gpufleet.codecs.bundle import BodyAnswer, BundleAnswer, unpack


def head(status: int, length: int, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} Text\r\nContent-Type: application/json\r\n{more}content-length: {length}\r\n\r\n".encode()
    )


class Server:
    """Server that sends prepared responses in the given pieces. An empty response closes the connection."""

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while self.answers:
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(request.partition("Content-Length: ")[2].partition("\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                pieces = self.answers.pop(0)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if not pieces:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def test_client_reads_split_responses_and_reconnects() -> None:
    async def run() -> list[Response]:
        async with Server([head(200, 4) + b"taken"[:4]], [head(503, 2, "Retry-After: 2\r\n")[:30]], []) as server:
            server.answers[1] += [head(503, 2, "Retry-After: 2\r\n")[30:], b"n", b"o"]
            server.answers.append([head(200, 0)])
            connection = Connection(server.port, "/v1/batches", "text/plain")
            found = [await connection.post(b"body") for _ in range(4)]
            connection.close()
            assert server.bodies == [b"body"] * 4
            return found

    assert asyncio.run(run()) == [
        Response(200, 0.0, b"take"),
        Response(503, 2.0, b"no"),
        Response(0, 0.0, b""),
        Response(200, 0.0, b""),
    ]


def test_light_sender_retries_503_and_counts_4xx() -> None:
    def bundle_response(*statuses: int) -> list[bytes]:
        content = msgspec.json.encode(BundleAnswer([BodyAnswer(status=one) for one in statuses]))
        return [head(200, len(content)) + content]

    async def run() -> None:
        async with Server(bundle_response(200, 503, 400), bundle_response(200)) as server:
            nodes = senders(3)
            done = await Load(server.port, nodes).run(Order(nodes=3))
            assert (done.acknowledged, done.retried, done.refused) == (2, 1, 1)
            first, second = map(unpack, server.bodies)
            assert [decode(one).sender for one in first] == ["node-000000", "node-000001", "node-000002"]
            assert second == [first[1]]

    asyncio.run(run())


def test_plan_has_every_node_once_per_period() -> None:
    nodes = senders(600)
    plan = list(Load(0, nodes)._plan(Order(nodes=600, seconds=30.0)))
    assert [len(nodes) for _, nodes in plan] == [BUNDLE, BUNDLE, 600 - 2 * BUNDLE] * 2
    assert [due for due, _ in plan] == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
    assert [*plan[0][1], *plan[1][1], *plan[2][1]] == nodes


def test_million_gpu_fleet_fits_the_default_clusters() -> None:
    assert len(clusters(125_000)) == 16
    assert NODES_PER_CLUSTER < 10_000
