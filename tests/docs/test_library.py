"""docs/library.md: its examples run, with a fake driver, a recording and a hub."""

import asyncio
import re
from pathlib import Path

import pytest

import gpufleet
from gpufleet.codecs.snapshot_json import encode_snapshot
from tests.fakes.batches import body
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.recordings import write_recording
from tests.support.snapshots import example_snapshot
from tests.web.hub.site import now, running_site

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_documented_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in FakeNvml(tmp_path, Scenario.healthy(2)).environment.items():
        monkeypatch.setenv(name, value)
    write_recording(tmp_path / "node.rec", [encode_snapshot(example_snapshot())] * 3)
    (tmp_path / "token").write_text("gpf_example\n")
    async with running_site(tmp_path / "state") as site:
        await site.post(body(1, now()))
        target = {"cluster": "local", "machine": "node-a"}
        spec = {"kind": "bare_metal", "target": target, "valid_from": "2020-01-01T00:00:00Z"}
        assert (await site.request("/v1/allocations/my-vm", "PUT", spec))[0] == 201
        printed = []
        for example in EXAMPLES:
            script = example.replace("https://hub.example:8470", site.hub.url).replace(', ca="ca.pem"', "")
            await asyncio.to_thread(exec, compile(script, "docs/library.md", "exec"), {"__name__": "example"})
            printed.append(capsys.readouterr().out)
    snapshot, _, watched, watched_async, decoded, queried, series, queried_async, failed = printed
    assert snapshot.count("NVIDIA H200") == 2
    assert watched_async in watched
    assert len(decoded.splitlines()) == 3
    assert "host_local_probe" in queried
    powers = [line.split() for line in series.splitlines()]
    assert powers
    assert all(gpu.startswith("local/m-") and float(power) > 0 and unit == "watts" for gpu, power, unit in powers)
    assert queried.splitlines()[0] in queried_async
    assert failed.startswith("no response")


def test_every_method_and_function_is_documented() -> None:
    methods = [name for name in vars(gpufleet.Hub) if not name.startswith(("_", "a"))] + ["allocation", "allocations"]
    functions = ["snapshot", "asnapshot", "devices", "vgpus", "watch"]
    assert [name for name in (*methods, *functions) if f"`{name}(" not in PAGE.replace("`await ", "`")] == []


def test_documented_errors_are_public() -> None:
    table = PAGE.split("| error | cause |")[1].split("\n\n")[0]
    errors = set(re.findall(r"`(\w+Error)`", table))
    assert errors == {name for name in gpufleet.__all__ if name.endswith("Error")} - {"GpufleetError"}
    assert all(issubclass(getattr(gpufleet, name), gpufleet.GpufleetError) for name in errors)
