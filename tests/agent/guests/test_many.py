"""Many guests of one host, 16 of them hostile: the others stay fresh with one connection each.

One real sshd serves all good guests. Each has its own login, connection and pinned key there.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpufleet.simulate.dcgm.engine import SimulatedEngine
from gpufleet.simulate.dcgm.state import EngineFault, EngineState
from tests.support.guest_smi import GuestSmi
from tests.support.process_memory import memory_kib
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.profiles import examples
from tests.support.sshd import USER, Guest
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

GUESTS = examples(28, 64)
FAST = float(examples(5, 10))
PASSES = examples(2, 3)
"""Observed passes of every good guest while the hostile guests are active."""

MAX_RESIDENT_MIB = 250

ENGINE_FAULTS = (
    *(
        EngineFault.HUGE,
        EngineFault.WRONG_LENGTH,
        EngineFault.LONG_BODY,
        EngineFault.WRONG_COUNT,
        EngineFault.LONG_RECORD,
    ),
    *(EngineFault.REORDER, EngineFault.FLOOD, EngineFault.DRIP, EngineFault.ESCAPES, EngineFault.NO_REPLY),
)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept the connection and never answer."""
    await reader.read()
    writer.close()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send without end: neither SSH nor a metrics page."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"\x1b[2J a 1\n" * 5000)
            await writer.drain()


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an endless page, a few bytes at a time."""
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"a 1\n")
            await writer.drain()
            await asyncio.sleep(0.5)


class Hostile:
    """Servers on Unix sockets in a separate thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._thread.start()

    def engine(self, fault: EngineFault) -> str:
        state = EngineState.healthy(1)
        state.faults.add(fault)
        return self.serve(str(fault), SimulatedEngine(state).serve)

    def serve(self, name: str, serve: Serve) -> str:
        path = self.folder / name

        async def start() -> asyncio.Server:
            return await asyncio.start_unix_server(serve, path)

        self._servers.append(asyncio.run_coroutine_threadsafe(start(), self.loop).result(20))
        return f"unix://{path}"

    def listen(self, serve: Serve) -> int:
        async def start() -> asyncio.Server:
            return await asyncio.start_server(serve, "127.0.0.1", 0)

        server = asyncio.run_coroutine_threadsafe(start(), self.loop).result(20)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def guest_file(number: int, *channels: str) -> str:
    tables = "".join(f"[[channels]]\n{one}\n" for one in channels)
    return f'name = "vm-{number:02d}"\nvm_uuid = "{uid(number)}"\n{tables}'


def ssh(port: int, key: Path) -> str:
    return f'type = "ssh"\naddress = "127.0.0.1:{port}"\nuser = "{USER}"\nkey_file = "{key}"'


class Fleet:
    """Agent with good and hostile guests."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder / "guests.d"
        self.folder.mkdir()
        self.good = stack.enter_context(Guest())
        GuestSmi(self.good)
        self.misbehaving = stack.enter_context(Guest())
        self.misbehaving_smi = GuestSmi(self.misbehaving)
        self.hanging = stack.enter_context(Guest())
        GuestSmi(self.hanging).do("hang")
        hostile = Hostile(folder)
        stack.callback(hostile.stop)
        hostile_channels = [
            ssh(self.misbehaving.port, self.misbehaving.key_file),
            ssh(self.hanging.port, self.hanging.key_file),
            ssh(hostile.listen(never_answer), self.good.key_file),
            ssh(hostile.listen(flood), self.good.key_file),
            f'type = "metrics"\naddress = "{hostile.serve("endless", flood)}"',
            f'type = "metrics"\naddress = "{hostile.serve("slow", trickle)}"',
            *(f'type = "dcgm"\naddress = "{hostile.engine(fault)}"' for fault in ENGINE_FAULTS),
        ]
        self.hostile_uids = [uid(number) for number in range(len(hostile_channels))]
        for number, channel in enumerate(hostile_channels):
            (self.folder / f"{number}.toml").write_text(guest_file(number, channel))
        self.good_uids = [uid(number) for number in range(len(hostile_channels), GUESTS)]
        for number in range(len(hostile_channels), GUESTS):
            (self.folder / f"{number}.toml").write_text(guest_file(number, ssh(self.good.port, self.good.key_file)))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = folder / "agent.toml"
        config.write_text(f'guest_folder = "{self.folder}"\n[lanes]\nfast = {FAST}\n[readers.nvml]\nenabled = false\n')
        arguments = ["agent", "--config", str(config), "--listen", f"127.0.0.1:{port}", "--state", str(folder / "s")]
        self.agent = stack.enter_context(Gpufleet(arguments, folder / "agent.log", {}))
        self.agent.wait_for(f"{self.url}/readyz", 100)

    def guests(self) -> dict[str, dict[str, Any]]:
        return {one["vm_uuid"]: one for one in get_json(f"{self.url}/v1/snapshot", timeout=60)["guests"]}

    def connections(self, guest: Guest) -> int:
        """Count open connections of the agent to a guest's sshd."""
        rows = [line.split() for line in Path(f"/proc/{self.agent.process.pid}/net/tcp").read_text().splitlines()[1:]]
        return sum(row[2].endswith(f":{guest.port:04X}") and row[3] == "01" for row in rows)

    def resident_mib(self, name: str = "VmRSS") -> float:
        return memory_kib(name, self.agent.process.pid) / 1024


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def measured_at(guest: dict[str, Any]) -> str:
    return max(
        (one["readings"]["gpu_utilization_ratio"].get("measured_at", "") for one in guest["devices"]), default=""
    )


def logins(guest: Guest) -> int:
    return guest.log().count("Accepted publickey")


def test_hostile_guests_do_not_affect_the_others(fleet: Fleet) -> None:
    def all_well() -> bool:
        found = fleet.guests()
        return all(found.get(one, {}).get("state") == "ok" for one in fleet.good_uids)

    wait_until(all_well, seconds=300, what="every good guest to be read")
    fleet.misbehaving_smi.show(1, name="\x1b[2J\x1b]0;owned\x07")
    found = fleet.guests()
    assert len(found) == GUESTS
    first = [found[one]["host"]["readings"]["guest_first_answer_timestamp_seconds"]["value"] for one in fleet.good_uids]
    assert max(first) - min(first) > FAST / 2, "guests do not all start at once"

    seen: dict[str, set[str]] = {one: set() for one in fleet.good_uids}
    failures: list[str] = []

    def observed() -> bool:
        now = fleet.guests()
        for one in fleet.good_uids:
            seen[one].add(measured_at(now[one]))
            failures.extend(
                f"{now[one]['name']}: {now[one]['state']}, {reading}"
                for device in now[one]["devices"]
                for reading in (device["readings"]["gpu_utilization_ratio"],)
                if now[one]["state"] != "ok" or "value" not in reading
            )
        return all(len(times) > PASSES for times in seen.values())

    wait_until(observed, seconds=300, what="passes of every good guest")
    assert failures == []

    now = fleet.guests()
    states = {one: now[one]["state"] for one in fleet.hostile_uids}
    assert states[fleet.hostile_uids[1]] == "timeout"
    assert {states[one] for one in fleet.hostile_uids[2:6]} <= {
        "guest_unreachable",
        "guest_booting",
        "reader_failed",
        "timeout",
    }
    page = get_text(f"{fleet.url}/metrics", timeout=60)
    assert "\x1b" not in page + get_text(f"{fleet.url}/v1/snapshot", timeout=60)

    assert (fleet.connections(fleet.good), logins(fleet.good)) == (len(fleet.good_uids), len(fleet.good_uids))
    resident, peak = fleet.resident_mib(), fleet.resident_mib("VmHWM")
    print(f"resident {resident:.0f} MiB, at most {peak:.0f} MiB, with {GUESTS} guests")
    assert peak < MAX_RESIDENT_MIB

    removed = fleet.good_uids[: len(fleet.good_uids) // 2]
    for one in removed:
        (fleet.folder / f"{int(one[-12:], 16)}.toml").unlink()
    wait_until(
        lambda: fleet.connections(fleet.good) == len(fleet.good_uids) - len(removed), what="their connections to close"
    )
    wait_until(lambda: not set(removed) & set(fleet.guests()), what="the removed guests to disappear")
    for file in fleet.folder.iterdir():
        file.unlink()
    wait_until(lambda: not fleet.guests(), what="all guests to disappear")
    servers = (fleet.good, fleet.misbehaving, fleet.hanging)
    wait_until(lambda: sum(map(fleet.connections, servers)) == 0, what="all connections to close")
    assert fleet.agent.process.poll() is None
    assert "Traceback" not in (fleet.folder.parent / "agent.log").read_text()
