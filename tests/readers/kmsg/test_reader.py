"""Kernel log reader over a file, a FIFO and the real log."""

import errno
import os
from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.readers.kmsg import KmsgReader
from gpufleet.readers.kmsg.fetch import KernelLog
from gpufleet.readers.kmsg.reader import MAX_EVENTS
from tests.fakes.clock import FakeClock

UUID = "GPU-b850f46d-d5ea-c752-ddf3-c697cfb5f0ad"
XID = "NVRM: Xid (PCI:0000:1b:00): {code}, pid=7, name=x, detail"
BOOTED = 3600


def line(seq: int, text: str, *, seconds: float = 100, priority: int = 4) -> str:
    return f"{priority},{seq},{int(seconds * 1e6)},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n"


class Kernel:
    """Kernel log in a file, and a reader of it."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.path = folder / "kmsg"
        self.path.write_text("".join(lines))
        self.clock = FakeClock()
        began = self.clock.monotonic()
        self.reader = KmsgReader(
            self.clock,
            path=self.path,
            since_boot=lambda: int((BOOTED + self.clock.monotonic() - began) * 1e9),
        )
        self.booted_at = self.clock.now_ns() - BOOTED * 10**9

    def write(self, *lines: str) -> None:
        with self.path.open("a") as file:
            file.write("".join(lines))

    async def events(self) -> tuple[Event, ...]:
        return (await self.reader.read(Lane.EVENT)).events

    async def lost(self) -> object:
        (sample,) = (await self.reader.read(Lane.SLOW)).samples
        return sample.values["host_kernel_log_lost_messages_total"]


async def test_messages_since_boot_are_read_before_new_ones(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, line(1, "Linux version 6"), line(2, XID.format(code=79), seconds=200))
    (first,) = await kernel.events()
    assert (first.kind, first.code, first.at) == ("xid", 79, kernel.booted_at + 200 * 10**9)
    assert first.view is not None
    assert (first.view.key, first.view.pci_address) == ("gpu/pci/0000:1b:00.0", "0000:1b:00.0")
    assert first.attributes == {
        "message": "detail",
        "pid": "7",
        "sources": "kmsg",
        "log_seq": "2",
    }
    assert await kernel.events() == ()
    kernel.clock.advance(10)
    kernel.write(line(3, XID.format(code=31), seconds=BOOTED + 9))
    (second,) = await kernel.events()
    assert (second.code, second.at) == (31, kernel.booted_at + (BOOTED + 9) * 10**9)


async def test_uuid_of_an_address_is_taken_from_the_log(tmp_path: Path) -> None:
    named = line(1, f"NVRM: GPU at PCI:0000:1b:00: {UUID}")
    (event,) = await Kernel(tmp_path, named, line(2, XID.format(code=48))).events()
    assert event.view is not None
    assert event.view.key == f"gpu/{UUID}"


@pytest.mark.parametrize(("stamped", "expected"), [(9, 9), (-5000, 0), (+5000, 10)])
async def test_message_time_lies_between_two_passes(tmp_path: Path, stamped: int, expected: int) -> None:
    kernel = Kernel(tmp_path)
    await kernel.events()
    kernel.clock.advance(10)
    kernel.write(line(1, XID.format(code=79), seconds=max(0, BOOTED + stamped)))
    (event,) = await kernel.events()
    assert event.at == kernel.booted_at + (BOOTED + expected) * 10**9


async def test_messages_written_by_processes_are_ignored(tmp_path: Path) -> None:
    forged = line(1, XID.format(code=79), priority=1 << 3 | 4)
    kernel = Kernel(tmp_path, forged, line(2, XID.format(code=31)))
    assert [event.code for event in await kernel.events()] == [31]


async def test_missing_sequence_numbers_are_counted_as_lost(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, line(10, "a"), line(11, "b"), line(15, XID.format(code=79)))
    assert len(await kernel.events()) == 1
    assert await kernel.lost() == 3


async def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    whole = line(1, XID.format(code=79))
    kernel = Kernel(tmp_path, whole[:20])
    assert await kernel.events() == ()
    kernel.write(whole[20:])
    assert [event.code for event in await kernel.events()] == [79]


async def test_storm_is_read_in_bounded_passes_without_loss(tmp_path: Path) -> None:
    storm = [line(seq, XID.format(code=31)) for seq in range(2 * MAX_EVENTS + 5)]
    kernel = Kernel(tmp_path, *storm)
    sizes = []
    while events := await kernel.events():
        sizes.append(len(events))
    assert sum(sizes) == len(storm)
    assert max(sizes) <= MAX_EVENTS + 1000


async def test_old_messages_beyond_a_full_pass_keep_their_time(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, *(line(seq, XID.format(code=31)) for seq in range(2 * MAX_EVENTS + 5)))
    times = set()
    while events := await kernel.events():
        times |= {event.at for event in events}
        kernel.clock.advance(1)
    assert times == {kernel.booted_at + 100 * 10**9}


async def test_endless_line_is_bounded(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "x" * 1_000_000)
    assert await kernel.events() == ()
    kernel.write("\n", line(1, XID.format(code=79)))
    assert [event.code for event in await kernel.events()] == [79]


async def test_missing_log_is_an_absence_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel(tmp_path)
    kernel.path.unlink()
    for _ in range(3):
        assert await kernel.events() == ()
    lost = await kernel.lost()
    assert isinstance(lost, Absent)
    assert lost.reason is Reason.NOT_SUPPORTED
    assert str(kernel.path) in lost.detail
    assert len(caplog.records) == 1
    kernel.path.write_text(line(1, XID.format(code=79)))
    assert [event.code for event in await kernel.events()] == [79]
    assert await kernel.lost() == 0


async def test_fifo_can_replace_the_log(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.path.unlink()
    os.mkfifo(kernel.path)
    assert await kernel.events() == ()  # no writer: the read does not block
    with kernel.path.open("w") as writer:
        writer.write(line(1, XID.format(code=79)))
        writer.flush()
        assert [event.code for event in await kernel.events()] == [79]
        assert await kernel.events() == ()
    await kernel.reader.close()


async def test_reopened_reader_starts_at_the_oldest_message(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, line(1, XID.format(code=79)))
    before = await kernel.events()
    await kernel.reader.close()
    assert await kernel.events() == before


def test_overwritten_records_are_counted_and_reading_continues(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    answers: list[bytes | OSError] = [b"6,1,1,-;a\n", OSError(errno.EPIPE, ""), b"6,9,9,-;b\n", BlockingIOError()]

    def read(_: int, __: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    log = KernelLog(tmp_path / "kmsg", read)
    assert log.lines(100) == [b"6,1,1,-;a", b"6,9,9,-;b"]
    assert log.overruns == 1
    log.close()
    log.close()


async def test_real_kernel_log_is_read() -> None:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error.strerror}")
    log = KernelLog(Path("/dev/kmsg"))
    lines = log.lines(100_000)
    log.close()
    assert any(line[:1].isdigit() for line in lines)
    reader = KmsgReader(FakeClock())
    done = await reader.read(Lane.EVENT)
    (sample,) = (await reader.read(Lane.SLOW)).samples
    await reader.close()
    assert sample.values["host_kernel_log_lost_messages_total"] == 0
    assert all(event.attributes["sources"] == "kmsg" for event in done.events)
