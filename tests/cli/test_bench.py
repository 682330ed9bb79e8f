"""`gpufleet bench` as a process: captures of this machine, comparisons and reports."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from gpufleet.bench.document import encode_benchmark
from gpufleet.bench.folder import read_capture, write_capture
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi
from tests.support.benchmarks import document, measured, noisy
from tests.support.command import gpufleet
from tests.support.hostile import CONTROLS, HOSTILE
from tests.web.hub.site import running_site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with a capture of a bare-metal machine, and of a slower one with another label."""
    captures = tmp_path / "captures"
    captures.mkdir()
    write_capture(captures, document(*noisy("a", repeats=10), name="metal", labels={"hugepages": "on"}))
    write_capture(captures, document(*noisy("b", repeats=10, factor=0.2), name="vm", labels={"hugepages": "off"}))
    return captures


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.json"))


def test_capture_of_this_machine_is_written(tmp_path: Path) -> None:
    fake = FakeNvidiaSmi(tmp_path)
    fake.fault("*", stdout="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", code=9)
    out = tmp_path / "out" / "captures"
    done = gpufleet(
        "bench", "capture", "--host", "--name", "one", "--label", "hugepages=on", "--repeat", "2",
        "--out", str(out), "--json", env=fake.environment,
    )  # fmt: skip
    assert done.returncode == 0
    (path,) = out.glob("one-*.json")
    assert json.loads(done.stdout) == json.loads(path.read_bytes())
    found = read_capture(path).document
    assert found.labels == {"hugepages": "on"}
    assert {one.absent for one in found.measurements if one.tool == "nvidia-smi"} == {"no_driver"}
    assert str(path) in done.stderr


def test_capture_prints_facts_and_measurements(tmp_path: Path) -> None:
    done = gpufleet("bench", "capture", "--repeat", "1", "--out", str(tmp_path), env={"PATH": str(tmp_path)})
    assert done.returncode == 0
    rows = {line.split("\t")[0]: line.split("\t") for line in done.stdout.splitlines()}
    assert rows["host_cpus"][2] == str(len(os.sched_getaffinity(0))) or int(rows["host_cpus"][2]) > 0
    assert rows["nvidia_smi_cold"][3].startswith("not_enabled")


@pytest.mark.parametrize(
    "options",
    [
        ["--label", "hugepages"],
        ["--label", "Huge=1"],
        ["--label", "a=1", "--label", "a=2"],
        ["--label", "a=\x1b[2J"],
        ["--name", "x" * 129],
        ["--repeat", "0"],
        ["--repeat", "101"],
        ["--fio", "a:b"],
        ["--ib-peer", "--all"],
        ["--host", "--guest", "train-0"],
    ],
)
def test_wrong_option_of_capture_is_a_usage_error(options: list[str], tmp_path: Path) -> None:
    done = gpufleet("bench", "capture", "--out", str(tmp_path / "out"), *options)
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


def test_unwritable_folder_fails_before_the_capture(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = gpufleet("bench", "capture", "--out", str(tmp_path / "file" / "out"))
    assert done.returncode == 1
    assert "probe" not in done.stderr


def test_comparison_is_printed_in_each_format(folder: Path) -> None:
    table = gpufleet("bench", "compare", *files(folder))
    assert table.returncode == 0
    rows = [line.split("\t") for line in table.stdout.splitlines()]
    assert [row[5] for row in rows if row[0].startswith("fio_")] == ["worse"] * 12
    assert ["label hugepages", "on", "off"] in rows
    record = json.loads(gpufleet("bench", "compare", *files(folder), "--format", "json").stdout)
    assert {one["verdict"] for one in record["measurements"]} == {"worse"}
    assert gpufleet("bench", "compare", *files(folder), "--format", "md").stdout.startswith("# ")
    assert gpufleet("bench", "compare", *files(folder), "--format", "html").stdout.startswith("<!doctype html>")


def test_report_is_printed_in_each_format(folder: Path) -> None:
    table = gpufleet("bench", "report", str(folder))
    assert table.returncode == 0
    assert [line.split("\t")[2] for line in table.stdout.splitlines()[1:3]] == ["off", "on"]
    assert len(json.loads(gpufleet("bench", "report", str(folder), "--json").stdout)["measurements"]) == 12
    assert gpufleet("bench", "report", str(folder), "--format", "md").stdout.startswith("# ")
    assert gpufleet("bench", "report", str(folder), "--format", "html").stdout.startswith("<!doctype html>")


def test_report_names_unusable_files_and_fails(folder: Path) -> None:
    (folder / "forged.json").write_text("{}")
    done = gpufleet("bench", "report", str(folder))
    assert done.returncode == 1
    assert "forged.json" in done.stderr
    assert "fio_0" in done.stdout


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema":"gpufleet.benchmark/2"}', b"\x1b[2J"])
def test_file_that_is_no_capture_is_an_error(content: bytes, folder: Path) -> None:
    (folder / "forged.json").write_bytes(content)
    done = gpufleet("bench", "compare", files(folder)[0], str(folder / "forged.json"))
    assert done.returncode == 1
    assert "forged.json" in done.stderr
    assert not CONTROLS & set(done.stderr)


def test_captures_that_are_not_comparable_are_an_error(folder: Path) -> None:
    other = measured("fio_0", values=(1.0,) * 5, tool_version="3.36")
    known = files(folder)[0]
    done = gpufleet("bench", "compare", known, str(write_capture(folder, document(other))))
    assert done.returncode == 1
    assert "3.36" in done.stderr


def test_comparison_of_one_capture_is_a_usage_error(folder: Path) -> None:
    assert gpufleet("bench", "compare", files(folder)[0]).returncode == 2


@pytest.mark.parametrize("format", ["table", "json", "md", "html"])
def test_hostile_texts_do_not_reach_the_terminal(format: str, folder: Path) -> None:  # noqa: A002
    hostile = document(*noisy("c"), name=HOSTILE, labels={"x": HOSTILE})
    (folder / "hostile.json").write_bytes(encode_benchmark(hostile))
    for arguments in (["compare", *files(folder)], ["report", str(folder)]):
        done = gpufleet("bench", *arguments, "--format", format)
        assert not (CONTROLS - set("\t\u2028")) & set(done.stdout + done.stderr)


async def test_posted_capture_is_in_the_hub(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    options = ("--repeat", "1", "--out", str(tmp_path / "out"), "--post", "--config", str(config))
    environment = {"PATH": str(tmp_path)}
    async with running_site(tmp_path) as site:
        config.write_text(f'state = "{tmp_path}"\n[hub]\nurl = "{site.hub.url}"\n')
        done = await asyncio.to_thread(gpufleet, "bench", "capture", *options, env=environment)
        assert done.returncode == 0, done.stderr
        (path,) = (tmp_path / "out").glob("*.json")
        _, (record,) = await site.request("/v1/benchmarks")
        assert (record["cluster"], record["bytes"]) == ("local", path.stat().st_size)
        assert (await site.text(f"/v1/benchmarks/{record['id']}")).encode() == path.read_bytes()
        config.write_text(f'cluster = "other"\n{config.read_text()}')
        refused = await asyncio.to_thread(gpufleet, "bench", "capture", *options, env=environment)
        assert (refused.returncode, "not served here" in refused.stderr) == (1, True)
        assert len(list((tmp_path / "out").glob("*.json"))) == 2  # the file remains
        assert len((await site.request("/v1/benchmarks"))[1]) == 1


def test_post_without_a_hub_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("")
    done = gpufleet(
        "bench", "capture", "--post", "--config", str(tmp_path / "agent.toml"), "--out", str(tmp_path / "out")
    )
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
