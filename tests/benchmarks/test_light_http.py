"""The client that makes the load of a million GPUs, against a server that says all that a hub may say."""

import asyncio
from typing import Self

import msgspec

from benchmarks.light_http import Answered, Connection
from benchmarks.million_load import BUNDLE, NODES_A_CLUSTER, Load, Order, clusters, senders
from gpufleet.codecs.batch import decode
from gpufleet.codecs.bundle import BodyAnswer, BundleAnswer, unpack


def head(status: int, length: int, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} Words\r\nContent-Type: application/json\r\n{more}content-length: {length}\r\n\r\n".encode()
    )


class Server:
    """Answers each request with the next of some answers, in the pieces that it is given; empty closes."""

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
                asked = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(asked.partition("Content-Length: ")[2].partition("\r\n")[0])
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


def test_it_reads_answers_in_any_pieces_and_connects_again() -> None:
    async def run() -> list[Answered]:
        async with Server([head(200, 4) + b"taken"[:4]], [head(503, 2, "Retry-After: 2\r\n")[:30]], []) as server:
            server.answers[1] += [head(503, 2, "Retry-After: 2\r\n")[30:], b"n", b"o"]
            server.answers.append([head(200, 0)])
            connection = Connection(server.port, "/v1/batches", "text/plain")
            found = [await connection.post(b"body") for _ in range(4)]
            connection.close()
            assert server.bodies == [b"body"] * 4
            return found

    assert asyncio.run(run()) == [
        Answered(200, 0.0, b"take"),
        Answered(503, 2.0, b"no"),
        Answered(0, 0.0, b""),
        Answered(200, 0.0, b""),
    ]


def test_light_sender_retries_503_and_counts_4xx() -> None:
    def told(*statuses: int) -> list[bytes]:
        content = msgspec.json.encode(BundleAnswer([BodyAnswer(status=one) for one in statuses]))
        return [head(200, len(content)) + content]

    async def run() -> None:
        async with Server(told(200, 503, 400), told(200)) as server:
            nodes = senders(3)
            done = await Load(server.port, nodes).run(Order(nodes=3))
            assert (done.acknowledged, done.again, done.refused) == (2, 1, 1)
            first, second = map(unpack, server.bodies)
            assert [decode(one).sender for one in first] == ["node-000000", "node-000001", "node-000002"]
            assert second == [first[1]]

    asyncio.run(run())


def test_a_plan_has_every_node_once_a_period_in_posts_of_a_relay() -> None:
    nodes = senders(600)
    plan = list(Load(0, nodes)._plan(Order(nodes=600, seconds=30.0)))
    assert [len(nodes) for _, nodes in plan] == [BUNDLE, BUNDLE, 600 - 2 * BUNDLE] * 2
    assert [due for due, _ in plan] == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
    assert [*plan[0][1], *plan[1][1], *plan[2][1]] == nodes


def test_million_gpu_fleet_fits_the_default_clusters() -> None:
    assert len(clusters(125_000)) == 16
    assert NODES_A_CLUSTER < 10_000
