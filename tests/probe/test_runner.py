"""Command runner: permitted commands, bounded outputs, and failures as outcomes."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from gpufleet.channels.local import LocalExec
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.probe.records import MAX_OUTPUT_TEXT
from gpufleet.probe.runner import (
    MAX_OUTPUT_BYTES,
    MAX_SECONDS,
    MAX_TOTAL_TEXT,
    CommandRunner,
    FixedCommand,
)
from tests.fakes.clock import FakeClock
from tests.fakes.commands import FakeCommands, printed
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi

SMI = FixedCommand(name="nvidia_smi", argv=("nvidia-smi",), timeout_seconds=1.0)


@pytest.mark.parametrize("argv", [("nvidia-smi", "--gpu-reset"), ("fio", "--version"), ("bandwidthTest", "--csv")])
async def test_refused_command_does_not_reach_the_channel(argv: tuple[str, ...]) -> None:
    channel = FakeCommands()
    runner = CommandRunner(channel, FakeClock())
    outcome = await runner.run(FixedCommand(name="reset", argv=argv))
    assert channel.calls == []
    assert outcome.absent is not None
    assert outcome.absent.reason is Reason.NOT_PERMITTED


async def test_output_is_stored_once_by_its_digest() -> None:
    runner = CommandRunner(FakeCommands(**{"nvidia-smi": printed("text", stderr="text")}), FakeClock())
    for _ in range(2):
        await runner.run(SMI)
    digest = hashlib.sha256(b"text").hexdigest()
    assert list(runner.outputs) == [digest]
    assert [(one.stdout, one.stderr, one.exit_code) for one in runner.records] == [(digest, digest, 0)] * 2


async def test_long_output_is_truncated_but_digested_whole() -> None:
    content = "ä" * (MAX_OUTPUT_TEXT + 1)
    runner = CommandRunner(FakeCommands(**{"nvidia-smi": printed(content)}), FakeClock())
    await runner.run(SMI)
    stored = runner.outputs[hashlib.sha256(content.encode()).hexdigest()]
    assert (stored.bytes, len(stored.text), stored.truncated) == (len(content) * 2, MAX_OUTPUT_TEXT, True)


async def test_texts_of_all_outputs_are_bounded_together() -> None:
    channel = FakeCommands()
    channel.answers["nvidia-smi"] = lambda _: printed(f"{len(channel.calls):09d}" + "x" * MAX_OUTPUT_TEXT)
    runner = CommandRunner(channel, FakeClock())
    for _ in range(MAX_TOTAL_TEXT // MAX_OUTPUT_TEXT + 3):
        await runner.run(SMI)
    assert sum(len(one.text) for one in runner.outputs.values()) == MAX_TOTAL_TEXT
    assert len(runner.outputs) == len(runner.records) + 1


@pytest.mark.parametrize("character", ["\0", "\U0001f600", "\xff"])
async def test_outputs_with_long_encodings_are_bounded_together(character: str) -> None:
    # JSON encodes a control character in six bytes. A document above its size limit could not be read again.
    channel = FakeCommands()
    channel.answers["nvidia-smi"] = lambda _: printed(f"{len(channel.calls):09d}" + character * MAX_OUTPUT_TEXT)
    runner = CommandRunner(channel, FakeClock())
    for _ in range(MAX_TOTAL_TEXT // MAX_OUTPUT_TEXT + 3):
        await runner.run(SMI)
    assert len(msgspec.json.encode([one.text for one in runner.outputs.values()])) < MAX_TOTAL_TEXT + 4096


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (printed("", code=127, stderr="nvidia-smi: not found\n"), Reason.NOT_ENABLED),
        (printed("", code=126), Reason.NOT_PERMITTED),
        (ChannelTimeoutError("nvidia-smi did not end"), Reason.TIMEOUT),
        (ChannelError("no"), Reason.READER_FAILED),
        (ChannelError("no", ChannelProblem.NOT_PERMITTED), Reason.NOT_PERMITTED),
        (printed(b"x" * (MAX_OUTPUT_BYTES + 1)), Reason.READER_FAILED),
    ],
)
async def test_failure_is_an_outcome_with_a_reason(answer: object, reason: Reason) -> None:
    runner = CommandRunner(FakeCommands(**{"nvidia-smi": answer}), FakeClock())  # type: ignore[arg-type]
    outcome = await runner.run(SMI)
    assert outcome.absent is not None
    assert (outcome.absent.reason, runner.records[0].absent) == (reason, reason)


async def test_no_command_is_started_after_the_time_of_a_capture() -> None:
    clock, channel = FakeClock(), FakeCommands(**{"nvidia-smi": printed("")})
    runner = CommandRunner(channel, clock)
    await runner.run(SMI)
    clock.advance(MAX_SECONDS + 1)
    outcome = await runner.run(SMI)
    assert outcome.absent is not None
    assert outcome.absent.reason is Reason.TIMEOUT
    assert len(channel.calls) == len(runner.records) == 1


@pytest.mark.parametrize("fault", [{"endless": True}, {"hang": True}, {"hang": True, "ignore_sigterm": True}])
async def test_endless_command_of_this_machine_is_ended(fault: dict[str, object], tmp_path: Path) -> None:
    fake = FakeNvidiaSmi(tmp_path)
    fake.fault("*", **fault)
    runner = CommandRunner(LocalExec(environment=fake.environment, grace_seconds=0.1), FakeClock())
    outcome = await runner.run(SMI)
    assert outcome.result is None
    assert outcome.absent is not None
    assert outcome.absent.reason in (Reason.TIMEOUT, Reason.READER_FAILED)
    assert runner.outputs == {}
