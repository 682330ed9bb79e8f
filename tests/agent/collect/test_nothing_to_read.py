"""Machines without GPUs: a GPU reader has nothing to read there, which is not a failure."""

import logging
import os
from pathlib import Path

import pytest

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.publish.batches import PendingReport
from gpufleet.exporters.table import TableExporter
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.machine import PciFunction
from gpufleet.model.status import ReaderState
from gpufleet.runtime import SystemClock
from tests.fakes.readers import ScriptedReader
from tests.support.passes import World, function

NO_LIBRARY = Absent(Reason.NO_LIBRARY, "libnvidia-ml.so.1: cannot open shared object file")
OTHER_GPU = function(0, "ast", vendor=0x1A03)


def world_without_gpus(
    inventory: tuple[PciFunction, ...] | None, failure: Absent = NO_LIBRARY
) -> tuple[World, PendingReport]:
    world, pending = World({"host": (Lane.SLOW,), "nvml": (Lane.FAST,)}), PendingReport()
    pending.add(world.failed("nvml", Lane.FAST, failure))
    if inventory is not None:
        world.passed(
            "host", Lane.SLOW, world.sample("host", Lane.SLOW, None, {"host_load_1m": 1.0}), inventory=inventory
        )
    return world, pending


@pytest.mark.parametrize("reason", [Reason.NO_LIBRARY, Reason.NO_DRIVER, Reason.NO_SUPPORTED_GPU])
@pytest.mark.parametrize("inventory", [(), (OTHER_GPU,)])
def test_reader_is_ok_on_a_machine_without_nvidia_gpu(inventory: tuple[PciFunction, ...], reason: Reason) -> None:
    world, pending = world_without_gpus(inventory, Absent(reason, "detail"))
    snapshot = assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})
    (report,) = [one for one in snapshot.readers if one.reader == "nvml"]
    assert (report.state, report.failures, report.error_class, report.last_error) == (
        ReaderState.OK,
        0,
        reason,
        "detail",
    )
    assert snapshot.capabilities["nvml"] == f"{reason}: detail", "the reason remains visible"
    (sent,) = pending.take(snapshot, world.clock.now_ns(), world.state.judged).readers
    assert (sent.state, sent.last_error) == (ReaderState.OK, "detail")
    page = TableExporter(width=120).render(snapshot).decode()
    assert "nvml     nothing to read on this machine" in page
    assert "failed" not in page


@pytest.mark.parametrize(
    ("inventory", "failure"),
    [
        ((function(0, "nvidia"),), NO_LIBRARY),
        ((function(0, "vfio-pci"),), NO_LIBRARY),
        ((function(0, None),), Absent(Reason.NO_DRIVER)),
        (None, NO_LIBRARY),
        ((), Absent(Reason.READER_FAILED, "defect")),
        ((), Absent(Reason.TIMEOUT, "hung")),
    ],
)
def test_reader_fails_if_a_gpu_exists_or_the_bus_is_unknown(
    inventory: tuple[PciFunction, ...] | None, failure: Absent
) -> None:
    world, _ = world_without_gpus(inventory, failure)
    snapshot = assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})
    (report,) = [one for one in snapshot.readers if one.reader == "nvml"]
    assert report.state is ReaderState.FAILED


@pytest.mark.parametrize(("excused", "level"), [(True, logging.INFO), (False, logging.WARNING), (None, None)])
async def test_missing_gpu_is_logged_once_at_its_level(
    excused: bool | None, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpufleet")
    loop = ReaderLoop(
        ScriptedReader.always("nvml", ReaderError(Reason.NO_LIBRARY, "none")),
        intervals={Lane.FAST: 1.0},
        timeout_seconds=5,
        clock=SystemClock(),
        report=lambda _: None,
        nothing_to_read=lambda _: excused,
    )
    await loop.run_pass(Lane.FAST)
    await loop.run_pass(Lane.FAST)
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])


@pytest.mark.skipif(
    any((device / "vendor").read_text() == "0x10de\n" for device in Path("/sys/bus/pci/devices").glob("*")),
    reason="this machine has an NVIDIA GPU",
)
@pytest.mark.skipif(not os.path.isdir("/sys/bus/pci/devices"), reason="this machine does not list a PCI bus")  # noqa: PTH112
def test_agent_on_this_machine_without_gpu_logs_no_warning(tmp_path: Path) -> None:
    from tests.support.processes import Gpufleet, free_port, get_json
    from tests.support.waiting import wait_until

    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = ["agent", "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path)]
    with Gpufleet(arguments, tmp_path / "log") as agent:
        agent.wait_for(f"{url}/readyz")
        wait_until(
            lambda: all(one["state"] == "ok" for one in get_json(f"{url}/v1/snapshot")["readers"]),
            what="every lane to be ok",
        )
        wait_until(lambda: "nothing to read on this machine" in agent.log.read_text(), what="the message in the log")
        assert '"warning"' not in agent.log.read_text()
