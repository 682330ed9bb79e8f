"""`gpufleet who`: the holders of each device as a table and as JSON, and the holder column of `gpufleet snapshot`."""

import json
from typing import Any

import msgspec
import pytest

from gpufleet.cli.table import Layout, render
from gpufleet.cli.who import who_tables
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.exporters.table import TableExporter
from gpufleet.model.holdings import DeviceHolders, Holder, HolderKind, HolderState, UnresolvedDevice, UnresolvedDevices
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import to_ns
from tests.fakes.nvml.driver import FakeNvml
from tests.support.command import gpufleet
from tests.support.snapshots import example_snapshot, held_snapshot, holding

Pages = dict[str, tuple[int, bytes]]

HOSTILE = "a\x1b[2J\x07\nb\tc\x9bd\u202ee"
SOURCES = {"holders_kubelet": "available", "holders_slurm": "not_enabled: SLURM's commands are not installed"}


@pytest.fixture
def held(agent_pages: Pages, agent_url: str) -> str:
    """URL of an agent with holders."""
    serve(agent_pages, msgspec.structs.replace(held_snapshot(), capabilities=SOURCES))
    return agent_url


def serve(pages: Pages, snapshot: Snapshot) -> None:
    pages["/v1/snapshot"] = (200, encode_snapshot(snapshot))


def with_holders(*holders: DeviceHolders | None) -> Snapshot:
    """Return the example, its first devices with these holders and the others with none."""
    snapshot = example_snapshot()
    padded = (*holders, *[None] * (len(snapshot.devices) - len(holders)))
    devices = [
        msgspec.structs.replace(device, holders=one) for device, one in zip(snapshot.devices, padded, strict=True)
    ]
    return msgspec.structs.replace(snapshot, devices=tuple(devices), capabilities=SOURCES)


def rows(page: str) -> list[dict[str, str]]:
    """Return the rows of a table that is tab-separated."""
    titles, *lines = [line.split("\t") for line in page.splitlines()]
    return [dict(zip(titles, line, strict=True)) for line in lines]


def document(*arguments: str) -> Any:
    done = gpufleet("who", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_holder_of_each_device_is_a_row(held: str) -> None:
    done = gpufleet("who", "--agent", held)

    assert (done.returncode, done.stderr) == (0, "")
    assert [(row["gpu"], row["kind"], row["holder"], row["share"]) for row in rows(done.stdout)] == [
        ("0", "pod", 'ml/tr"ain\\0', "exclusive"),
        ("0:1/0", "pod", "ml/infer-a", "timeslice"),
        ("0:1/0", "pod", "ml/infer-b", "timeslice"),
        ("1", "pod", 'ml/tr"ain\\0', "exclusive"),
        ("-", "pod", "ml/virt-launcher-vm-x2x4z (vm vm)", "exclusive"),
    ]
    first = rows(done.stdout)[0]
    assert (first["methods"], first["verdict"], first["owner"]) == ("kubelet+process", "agreed", "Job train")
    assert (first["since"], first["container"], first["id"]) == ("1970-01-01T00:00:00Z", "main", "00000000-uid")


def test_json_has_the_holdings_of_each_device(held: str) -> None:
    devices = document("--agent", held)["devices"]

    assert [one["device"] for one in devices] == [device.key for device in held_snapshot().devices]
    assert {one["holders"]["state"] for one in devices} == {"held"}
    assert [one["holder"]["name"] for one in devices[1]["holders"]["holdings"]] == ["infer-a", "infer-b"]
    assert devices[3]["holders"]["holdings"][0]["parent"]["kind"] == "vm"


@pytest.mark.parametrize("query", ["GPU-00000001", "00000001", "0000:11:00.0", "1"])
def test_one_device_is_selected(held: str, query: str) -> None:
    assert [one["uuid"] for one in document(query, "--agent", held)["devices"]] == ["GPU-00000001-0000"]


def test_gpu_is_shown_with_its_mig_devices(agent_pages: Pages, agent_url: str) -> None:
    busy = DeviceHolders(state=HolderState.HELD, holdings=(holding(Holder(kind=HolderKind.JOB, id="12")),))
    snapshot = with_holders(None, busy)
    serve(agent_pages, snapshot)

    (shown,) = document("GPU-00000000", "--agent", agent_url)["devices"]
    assert shown["device"] == snapshot.devices[1].key


def test_unknown_device_is_an_error(held: str) -> None:
    done = gpufleet("who", "GPU-9999", "--agent", held)

    assert (done.returncode, done.stdout) == (1, "")
    assert "GPU-00000001-0000" in done.stderr


@pytest.mark.parametrize("state", [HolderState.FREE, HolderState.UNKNOWN])
def test_device_without_holder_has_its_state(agent_pages: Pages, agent_url: str, state: HolderState) -> None:
    why = "kubelet: does not answer" if state is HolderState.UNKNOWN else ""
    serve(agent_pages, with_holders(DeviceHolders(state=state, detail=why)))
    done = gpufleet("who", "--agent", agent_url)

    (row,) = rows(done.stdout)
    assert (row["gpu"], row["state"], row["holder"]) == ("0", state, "-")
    assert done.stderr == (f"{why}\n" if why else "")


def test_source_that_fails_is_named(agent_pages: Pages, agent_url: str) -> None:
    snapshot = msgspec.structs.replace(
        with_holders(DeviceHolders(state=HolderState.FREE)),
        capabilities={**SOURCES, "holders_processes": "partial: x", "holders_kubelet": "timeout: y", "push": "z"},
    )
    serve(agent_pages, snapshot)

    notes = gpufleet("who", "--agent", agent_url).stderr.splitlines()
    assert sorted(note.partition(":")[0] for note in notes) == ["kubelet", "processes"]


def test_missing_collection_of_holders_is_named(agent_url: str) -> None:
    done = gpufleet("who", "--agent", agent_url)

    assert (done.returncode, rows(done.stdout)) == (0, [])
    assert "[holders]" in done.stderr
    assert document("--agent", agent_url) == {"devices": [], "unresolved": None}


def with_unresolved(snapshot: Snapshot, *names: str) -> Snapshot:
    """Return the snapshot with these device names of the kubelet that identify no device."""
    pod = Holder(kind=HolderKind.POD, id="u", name="train-0", namespace="ml")
    devices = [UnresolvedDevice(source="kubelet", name=name, detail=f"no {name}", holder=pod) for name in names]
    unresolved = UnresolvedDevices(counts={"kubelet": len(names), "slurm": 0}, devices=tuple(devices[:4]))
    return msgspec.structs.replace(snapshot, unresolved=unresolved)


def test_names_without_a_device_are_counted_below_the_table(agent_pages: Pages, agent_url: str) -> None:
    free = with_holders(DeviceHolders(state=HolderState.FREE))
    serve(agent_pages, with_unresolved(free, *(f"GPU-{number}" for number in range(5))))

    (note,) = gpufleet("who", "--agent", agent_url).stderr.splitlines()
    assert note.startswith("5 ")
    assert "kubelet: GPU-0 (ml/train-0)" in note
    assert "2 more" in note
    unresolved = document("--agent", agent_url)["unresolved"]
    assert unresolved["counts"] == {"kubelet": 5, "slurm": 0}
    assert [one["name"] for one in unresolved["devices"]] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]


def test_no_note_if_every_name_has_a_device(agent_pages: Pages, agent_url: str) -> None:
    serve(agent_pages, with_unresolved(with_holders(DeviceHolders(state=HolderState.FREE))))
    assert gpufleet("who", "--agent", agent_url).stderr == ""


def hostile_snapshot() -> Snapshot:
    pod = Holder(kind=HolderKind.POD, id=HOSTILE, name=HOSTILE, namespace=HOSTILE, user=HOSTILE)
    own = msgspec.structs.replace(holding(pod, parent=pod), container=HOSTILE)
    snapshot = with_holders(DeviceHolders(state=HolderState.UNKNOWN, detail=HOSTILE, holdings=(own,)))
    snapshot = msgspec.structs.replace(snapshot, capabilities={"holders_kubelet": f"timeout: {HOSTILE}"})
    return with_unresolved(snapshot, HOSTILE)


@pytest.mark.parametrize("command", [("who",), ("who", "--wide"), ("who", "no-such"), ("snapshot",), ("why", "0")])
def test_control_characters_of_a_name_are_not_written(
    agent_pages: Pages, agent_url: str, command: tuple[str, ...]
) -> None:
    serve(agent_pages, hostile_snapshot())
    done = gpufleet(*command, "--agent", agent_url)

    written = done.stdout.replace("\t", "") + done.stderr
    assert [line for line in written.splitlines() if not line.isprintable()] == []
    assert not set(written) & set("\x1b\x07\x9b")


def test_control_characters_of_a_name_are_escaped_in_json(agent_pages: Pages, agent_url: str) -> None:
    serve(agent_pages, hostile_snapshot())
    done = gpufleet("who", "--json", "--agent", agent_url)

    assert done.stdout.rstrip("\n").isprintable()
    assert json.loads(done.stdout)["devices"][0]["holders"]["holdings"][0]["holder"]["name"] == HOSTILE


def test_hostile_names_do_not_make_rows_on_a_terminal() -> None:
    snapshot = hostile_snapshot()
    page = render(who_tables(snapshot, [snapshot.devices[0]]), Layout(wide=True), width=200)

    assert len(page.text.splitlines()) == 2
    assert all(line.isprintable() for line in (page.text + page.notes).splitlines())


def test_start_of_a_holding_is_unknown_without_an_agent(fake: FakeNvml) -> None:
    snapshot = held_snapshot()
    own = msgspec.structs.replace(holding(Holder(kind=HolderKind.JOB, id="1")), since=to_ns(snapshot.measured_at) + 1)
    device = msgspec.structs.replace(
        snapshot.devices[0], holders=DeviceHolders(state=HolderState.HELD, holdings=(own,))
    )
    shown = msgspec.structs.replace(snapshot, devices=(device,))

    (row,) = rows(render(who_tables(shown, [device], began=snapshot.measured_at), Layout(), width=None).text)
    assert row["since"] == "-"
    assert gpufleet("who", env=fake.environment).returncode == 0


def test_snapshot_has_a_column_of_holders() -> None:
    page = TableExporter(width=240).render(held_snapshot()).decode()
    titles, *lines = [line.rstrip() for line in page.splitlines() if line.startswith(("#", "0 ", "– ", "1 "))]

    assert titles.endswith("holder")
    assert [line.rpartition("  ")[2].strip() for line in lines] == [
        'ml/tr"ain\\0',
        "ml/infer-a, ml/infer-b",
        'ml/tr"ain\\0',
        "ml/virt-launcher-vm-x2x4z (vm vm)",
    ]


def test_column_of_holders_needs_a_device_with_known_holders() -> None:
    assert "holder" not in TableExporter(width=240).render(example_snapshot()).decode()


def test_last_holders_of_an_unknown_device_are_marked_and_bounded() -> None:
    pods = [holding(Holder(kind=HolderKind.POD, id=str(number), name=f"p{number}")) for number in range(5)]
    unknown = DeviceHolders(state=HolderState.UNKNOWN, holdings=tuple(pods))
    page = TableExporter(width=240).render(with_holders(unknown, DeviceHolders(state=HolderState.FREE))).decode()

    assert "unknown (last p0, p1, p2 and 2 more)" in page
    assert "free" in page
