"""Command runner: permitted commands, bounded outputs, and failures as outcomes."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.document import MAX_OUTPUT_TEXT
from gpufleet.bench.fio import JOBS
from gpufleet.bench.perftest import TESTS
from gpufleet.bench.runner import (
    MAX_OUTPUT_BYTES,
    MAX_SECONDS,
    MAX_TOTAL_TEXT,
    CommandRunner,
    FixedCommand,
    check_command,
)
from gpufleet.channels.local import LocalExec
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from tests.fakes.clock import FakeClock
from tests.fakes.commands import FakeCommands, printed
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi

READ = ("fio", *JOBS[0].arguments("/data/file", direct=True))
SMI = FixedCommand(name="nvidia_smi", argv=("nvidia-smi",), timeout_seconds=1.0)


def test_commands_of_workloads_are_permitted() -> None:
    for job in JOBS:
        check_command(("fio", *job.arguments("/dev/nvme0n1", direct=True)))
    for test in TESTS:
        check_command((test.program, *test.arguments("node-2.example")))
        check_command((test.program, *test.arguments("fe80::1")))


@pytest.mark.parametrize(
    "argv",
    [
        ("sh", "-c", "true"),
        ("nvidia-smi", "-pm", "1"),
        ("nvidia-smi", "--gpu-reset"),
        ("systemctl", "start", "ssh.service"),
        ("docker", "run", "x"),
        tuple(part for part in READ if part != "--readonly"),
        tuple(part for part in READ if part != "--allow_file_create=0"),
        tuple(part.replace("--rw=read", "--rw=write") for part in READ),
        tuple(part.replace("--rw=read", "--rw=randrw") for part in READ),
        (*READ, "--rw=write"),
        (*READ, "--rw=randread"),
        (*READ, "--filename=/dev/sdb"),
        (*READ, "--exec_prerun=rm"),
        (*READ, "/etc/passwd"),
        tuple(part.replace("/data/file", "/data/file:/dev/sdb") for part in READ),
        ("ib_write_bw", "--output=x", "peer"),
        ("nvbandwidth", "--json", "--testcase", "a b"),
        ("stat", "-f", "/"),
    ],
)
def test_other_commands_are_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(ChannelError) as caught:
        check_command(argv)
    assert caught.value.problem is ChannelProblem.NOT_PERMITTED


@given(st.sampled_from(["write", "randwrite", "trim", "rw", "randrw", "readwrite", "trimwrite", "randtrim"]))
def test_writing_jobs_of_fio_are_refused(rw: str) -> None:
    with pytest.raises(ChannelError):
        check_command(tuple(part.replace("--rw=read", f"--rw={rw}") for part in READ))


async def test_refused_command_does_not_reach_the_channel() -> None:
    channel = FakeCommands()
    runner = CommandRunner(channel, FakeClock())
    outcome = await runner.run(FixedCommand(name="reset", argv=("nvidia-smi", "--gpu-reset")))
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
