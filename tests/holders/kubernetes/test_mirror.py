"""Local copies of resources: states, back-off, limits, and equality with the server after random histories."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.mirror import DENIED_SECONDS, REPLAY_SECONDS, ResourceMirror
from gpufleet.holders.kubernetes.resources import ApiResource
from gpufleet.model.kubernetes import CopyState
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeKubeApi, Object, Rule
from tests.support.waiting import wait_until_async

KEY = ("", "v1", "configmaps")
CONFIG_MAPS = ApiResource(*KEY)


class Value(msgspec.Struct, frozen=True):
    name: str
    value: int


class _ValueMetadata(msgspec.Struct):
    name: str


class _ValueMap(msgspec.Struct):
    metadata: _ValueMetadata
    data: dict[str, int]


def to_value(data: bytes | msgspec.Raw) -> Value | None:
    """Return None for a negative value: such an object is not needed."""
    found = msgspec.json.decode(data, type=_ValueMap)
    value = found.data["value"]
    return Value(found.metadata.name, value) if value >= 0 else None


def content(name: str, value: object) -> Object:
    return {"metadata": {"name": name, "namespace": "test"}, "data": {"value": value}}


def expected(api: FakeKubeApi) -> dict[str, Value]:
    return {
        stored["metadata"]["uid"]: Value(stored["metadata"]["name"], stored["data"]["value"])
        for stored in api.objects(KEY)
        if isinstance(stored["data"]["value"], int) and stored["data"]["value"] >= 0
    }


class Delays:
    """Sleep of a mirror: notes each delay, advances the clock by it, and waits a moment."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0.001)


class Site:
    """Fake server, connection and mirror."""

    def __init__(self, api: FakeKubeApi, connection: ApiConnection, options: dict[str, Any]) -> None:
        self.api = api
        self.clock = FakeClock()
        self.delays = Delays(self.clock)
        self.mirror = ResourceMirror(
            connection, CONFIG_MAPS, to_value, self.clock, sleep=self.delays, jitter=lambda: 0.0, **options
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self.mirror.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def wait_for_equality(self) -> None:
        async def equal() -> bool:
            return dict(self.mirror.records) == expected(self.api)

        await wait_until_async(equal, what="a copy that equals the server")

    async def wait_for_watch(self) -> None:
        async def watching() -> bool:
            return self.api.watches == 1

        await wait_until_async(watching, what="a watch")

    async def cut(self) -> None:
        """End the watch, and wait for the next one."""
        requests = len(self.api.requests)
        self.api.cut()

        async def watching() -> bool:
            return len(self.api.requests) > requests and self.api.watches == 1

        await wait_until_async(watching, what="the next watch")

    async def mark(self) -> None:
        """Send an object without a version that the server does not have, and wait until the copy has it."""
        metadata = {"uid": "mark", "name": "mark", "namespace": "test"}
        self.api.send(KEY, {"type": "ADDED", "object": {"metadata": metadata, "data": {"value": 0}}})

        async def marked() -> bool:
            return "mark" in self.mirror.records

        await wait_until_async(marked, what="the mark")

    async def wait_for_state(self, state: CopyState) -> None:
        async def reached() -> bool:
            return self.mirror.status.state is state

        await wait_until_async(reached, what=state)


@contextlib.asynccontextmanager
async def new_site(folder: Path, *, token: str = "", rules: Sequence[Rule] = (), **options: Any) -> AsyncIterator[Site]:
    async with FakeKubeApi() as api:
        if token:
            api.tokens[token] = tuple(rules)
        kubeconfig = api.kubeconfig(folder, token) if token else api.kubeconfig(folder)
        connection = ApiConnection(ApiAccess(kubeconfig=str(kubeconfig), timeout_seconds=5))
        running = Site(api, connection, options)
        try:
            yield running
        finally:
            await running.stop()
            await connection.close()


STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5), st.sampled_from([1, 2, 3, -1, "bad"])),
    st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["cut", "compact", "bookmark", "restart", "fault", "reset", "wait"])),
    st.tuples(st.just("gone_as_status"), st.booleans()),
)


@settings(max_examples=25)
@given(steps=st.lists(STEP, max_size=25), page=st.integers(1, 4))
def test_mirror_equals_the_server_after_random_histories(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], page: int
) -> None:
    async def run() -> None:
        async with new_site(tmp_path_factory.getbasetemp(), page_objects=page) as running:
            running.start()
            seen: dict[str, Value] = {}
            for step in steps:
                await perform(running.api, step)
                if step[0] == "wait":
                    await running.wait_for_equality()
                    replay(running.mirror, seen)
            await running.wait_for_equality()
            replay(running.mirror, seen)
            assert {value.name: value for value in expected(running.api).values()} == seen

    asyncio.run(run())


async def perform(api: FakeKubeApi, step: tuple[Any, ...]) -> None:
    match step:
        case ("put", number, value):
            api.put(KEY, content(f"m{number}", value))
        case ("delete", number):
            if any(stored["metadata"]["name"] == f"m{number}" for stored in api.objects(KEY)):
                api.delete(KEY, "test", f"m{number}")
        case ("restart",):
            await api.stop()
            await api.start()
        case ("fault",):
            api.faults.append(503)
        case ("reset",):
            api.faults.append(0)
            api.cut()
        case ("gone_as_status", value):
            api.gone_as_status = value
        case ("cut" | "compact" | "bookmark",):
            getattr(api, step[0])()
    await asyncio.sleep(0)


def replay(mirror: ResourceMirror[Value], seen: dict[str, Value]) -> None:
    """Apply the changes to `seen`; each must fit what was there."""
    changes = mirror.take_changes()
    for value in changes.removed:
        assert seen.pop(value.name) == value
    for value in changes.added:
        assert value.name not in seen
        seen[value.name] = value
    for before, value in changes.changed:
        assert seen[value.name] == before != value
        seen[value.name] = value


async def test_invalid_object_costs_only_itself(tmp_path: Path) -> None:
    async with new_site(tmp_path) as running:
        running.api.put(KEY, content("m1", 1))
        running.api.put(KEY, content("m2", "bad"))
        running.start()
        await running.wait_for_equality()
        assert (running.mirror.status.objects, running.mirror.status.rejected) == (1, 1)
        assert "test/m2" in running.mirror.status.example
        running.api.put(KEY, content("m1", "bad"))
        await running.wait_for_equality()
        assert (running.mirror.status.objects, running.mirror.status.rejected) == (0, 2)
        running.api.put(KEY, content("m1", 3))
        running.api.delete(KEY, "test", "m2")
        await running.wait_for_equality()
        assert (running.mirror.status.objects, running.mirror.status.rejected) == (1, 0)


async def test_outage_keeps_the_last_state_and_its_time(tmp_path: Path) -> None:
    async with new_site(tmp_path) as running:
        running.api.put(KEY, content("m1", 1))
        running.start()
        await running.wait_for_watch()
        running.clock.advance(100)
        await running.mark()
        current_at = running.clock.now_ns()
        running.clock.advance(100)
        await running.api.stop()
        await running.wait_for_state(CopyState.STALE)
        status = running.mirror.status
        assert status.since == current_at
        assert status.detail
        assert [value.name for value in running.mirror.records.values()] == ["m1", "mark"]
        await running.api.start()
        running.api.put(("", "v1", "nodes"), {"metadata": {"name": "n"}})
        running.api.compact()
        running.api.put(KEY, content("m1", 2))
        await running.wait_for_equality()
        await running.wait_for_state(CopyState.SYNCED)


async def test_watch_that_opens_again_is_current_after_the_replay_only(tmp_path: Path) -> None:
    async with new_site(tmp_path) as running:
        running.start()
        await running.wait_for_watch()
        await running.api.stop()
        await running.wait_for_state(CopyState.STALE)
        await running.api.start()
        await running.wait_for_watch()
        assert running.mirror.status.state is CopyState.STALE

        async def synced() -> bool:
            running.clock.advance(REPLAY_SECONDS)
            return running.mirror.status.state is CopyState.SYNCED

        await wait_until_async(synced, what=CopyState.SYNCED)


async def test_delays_grow_while_the_server_rejects(tmp_path: Path) -> None:
    async with new_site(tmp_path) as running:
        running.api.faults = [500] * 6
        running.start()
        await running.wait_for_watch()
        assert running.delays.seconds == [0.5, 1.0, 2.0, 4.0, 7.5, 7.5]


async def test_expired_version_is_listed_again_without_delay(tmp_path: Path) -> None:
    for gone_as_status in (False, True):
        async with new_site(tmp_path) as running:
            running.api.gone_as_status = gone_as_status
            running.start()
            await running.wait_for_watch()
            running.api.put(KEY, content("m1", 1))
            await running.wait_for_equality()
            running.api.put(("", "v1", "nodes"), {"metadata": {"name": "n"}})
            running.api.compact()
            running.api.cut()
            running.api.put(KEY, content("m2", 2))
            await running.wait_for_equality()
            assert running.delays.seconds == []


async def test_watches_that_end_at_once_are_paced(tmp_path: Path) -> None:
    async with new_site(tmp_path) as running:
        running.start()
        for _ in range(3):
            await running.wait_for_watch()
            await running.cut()
        assert running.delays.seconds == [1.0, 2.0, 4.0]


async def test_bookmark_replaces_the_version(tmp_path: Path) -> None:
    async with new_site(tmp_path) as running:
        running.start()
        await running.wait_for_watch()
        running.api.put(("", "v1", "nodes"), {"metadata": {"name": "n"}})
        running.api.bookmark()
        await running.mark()
        requests = len(running.api.requests)
        running.api.compact()
        await running.cut()
        assert len(running.api.requests) == requests + 1


async def test_version_of_the_future_is_listed_again(tmp_path: Path) -> None:
    async with new_site(tmp_path) as running:
        running.start()
        await running.wait_for_watch()
        event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "999999"}}}
        running.api.send(KEY, event)
        running.api.cut()  # as after a restore of etcd from a backup
        running.api.put(KEY, content("m1", 1))
        await running.wait_for_equality()


@pytest.mark.parametrize(
    "line", [{"type": "ERROR", "object": {"code": 500}}, {"type": "ERROR", "object": 7}, {"kind": "no event"}, []]
)
async def test_malformed_stream_is_listed_or_opened_again(tmp_path: Path, line: Any) -> None:
    async with new_site(tmp_path) as running:
        running.start()
        await running.wait_for_watch()
        running.api.send(KEY, line)
        running.api.put(KEY, content("m1", 1))
        await running.wait_for_equality()


async def test_forbidden_resource_is_tried_again_later(tmp_path: Path) -> None:
    async with new_site(tmp_path, token="limited") as running:
        running.api.put(KEY, content("m1", 1))
        running.start()
        await running.wait_for_state(CopyState.FORBIDDEN)
        assert running.delays.seconds[0] == pytest.approx(0.75 * DENIED_SECONDS)
        running.api.tokens["limited"] = (Rule("", "configmaps", ("list", "watch")),)
        await running.wait_for_equality()
        await running.wait_for_state(CopyState.SYNCED)


async def test_objects_beyond_the_limit_are_left_out_and_counted_later(tmp_path: Path) -> None:
    async with new_site(tmp_path, max_objects=2) as running:
        running.start()
        await running.wait_for_watch()
        for n in range(3):
            running.api.put(KEY, content(f"m{n}", n))

        async def overflowed() -> bool:
            return not running.mirror.status.is_complete

        await wait_until_async(overflowed, what="an incomplete copy")
        assert running.mirror.status.objects == 2
        running.api.delete(KEY, "test", "m0")
        running.api.cut()
        await running.wait_for_equality()
        assert running.mirror.status.is_complete
