"""The kubelet source against a kubelet that serves its protocol on a real socket."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from gpufleet.holders.kubelet import KubeletHolders
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import HolderKind, Share
from gpufleet.ports.holder import HolderSource, Naming
from tests.fakes.kubelet import (
    FakeClaimedDevice,
    FakeContainer,
    FakeKubelet,
    FakePod,
    FakeResourceClaim,
    node_folder,
)
from tests.support import recorded_kubelet
from tests.support.postgres import UNPRIVILEGED_UID
from tests.support.waiting import wait_until

GPU = "GPU-7f5e7c15-0000-4000-8000-000000000001"
OLD, NEW = "22d54f99-e6f4-491c-8bd5-9e689d993bd9", "9b2d7a10-3c0c-44b5-a9f7-0a8a3f0a1c44"


@pytest.fixture
def root() -> Iterator[Path]:
    with node_folder() as folder:
        yield folder


@pytest.fixture
def kubelet(root: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(root) as server:
        yield server


@pytest.fixture
async def source(root: Path) -> AsyncIterator[KubeletHolders]:
    opened = KubeletHolders(root)
    yield opened
    await opened.close()


def pod(uid: str = OLD, name: str = "db-0", *ids: str, container_id: str = "") -> FakePod:
    devices = {"nvidia.com/gpu": ids or (GPU,)}
    return FakePod("ml", name, uid, [FakeContainer("train", devices, id=container_id), FakeContainer("log")])


async def absence(source: HolderSource) -> Reason:
    with pytest.raises(HolderError) as caught:
        await source.report()
    return caught.value.absence


async def test_pod_and_container_are_reported_by_id(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.place(pod(container_id="a" * 64))
    kubelet.place(FakePod("ml", "web", NEW, [FakeContainer("nginx")]))
    report = await source.report()
    (claim,) = report.claims
    assert (claim.holder.id, claim.holder.name, claim.holder.namespace) == (OLD, "db-0", "ml")
    assert (claim.container, claim.container_id, claim.resource) == ("train", "a" * 64, "nvidia.com/gpu")
    assert [(device.naming, device.text) for device in claim.devices] == [(Naming.UUID, GPU)]
    assert report.lists is HolderKind.POD
    assert report.listed == frozenset({(HolderKind.POD, OLD), (HolderKind.POD, NEW)})
    assert report.complete
    assert not report.observes
    assert report.living is None
    assert report.started_at == kubelet.socket.stat().st_mtime_ns


async def test_pod_recreated_under_its_name_has_its_own_uid(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    first, second = pod(OLD), pod(NEW)
    kubelet.place(first)
    assert [claim.holder.id for claim in (await source.report()).claims] == [OLD]
    kubelet.remove(first, keeps_logs=True)
    kubelet.place(second, has_folders=False)
    assert [claim.holder.id for claim in (await source.report()).claims] == ["ml/db-0"]
    kubelet.make_folders(second)
    assert [claim.holder.id for claim in (await source.report()).claims] == [NEW]


async def test_one_call_is_made_for_a_report_and_the_connection_is_kept(
    kubelet: FakeKubelet, source: KubeletHolders
) -> None:
    kubelet.place(pod())
    sessions = {(await source.report()).session for _ in range(3)}
    assert kubelet.calls == 3
    assert len(sessions) == 1


async def test_shared_device_has_its_number_of_replicas(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.place(pod(OLD, "db-0", f"{GPU}::2"))

    async def totals() -> list[tuple[int, int]]:
        return [(claim.replicas, claim.total_replicas) for claim in (await source.report()).claims]

    assert await totals() == [(1, 0)]  # a kubelet before 1.23
    kubelet.allocatable = {"nvidia.com/gpu": [f"{GPU}::{number}" for number in range(4)]}
    assert await totals() == [(1, 4)]
    kubelet.allocatable = None
    assert await totals() == [(1, 4)]  # a rejected call does not change it
    kubelet.restart(first=())
    assert await totals() == [(1, 0)]


async def test_restarted_kubelet_is_another_session(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.place(pod())
    before = await source.report()
    kubelet.restart(first=[b""])
    during, after = await source.report(), await source.report()
    assert (len(before.claims), len(during.claims), len(after.claims)) == (1, 0, 1)
    assert before.session != during.session == after.session


async def test_kubelet_that_is_down_is_reported_and_recovers(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.place(pod())
    await source.report()
    kubelet.stop()
    assert await absence(source) is Reason.READER_FAILED
    kubelet.start()
    assert len((await source.report()).claims) == 1


async def test_socket_without_kubelet_is_reported(root: Path, kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.stop()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(kubelet.socket))  # a killed kubelet leaves its socket
    assert await absence(source) is Reason.READER_FAILED


async def test_machine_without_kubelet_is_not_enabled(root: Path, source: KubeletHolders) -> None:
    assert await absence(source) is Reason.NOT_ENABLED


async def test_file_in_place_of_the_socket_is_reported(root: Path, source: KubeletHolders) -> None:
    path = root / "var/lib/kubelet/pod-resources/kubelet.sock"
    path.parent.mkdir(parents=True)
    path.touch()
    assert await absence(source) is Reason.READER_FAILED


async def test_hanging_kubelet_times_out_and_recovers(root: Path, kubelet: FakeKubelet) -> None:
    source = KubeletHolders(root, timeout_seconds=0.05)
    kubelet.place(pod())
    kubelet.hang()
    assert await absence(source) is Reason.TIMEOUT
    kubelet.release()
    patient = KubeletHolders(root)
    assert len((await patient.report()).claims) == 1
    await source.close()
    await patient.close()


async def test_abandoned_report_is_not_repeated_while_it_runs(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.hang()
    task = asyncio.create_task(source.report())
    await asyncio.to_thread(wait_until, lambda: kubelet.calls == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await absence(source) is Reason.TIMEOUT
    assert kubelet.calls == 1
    kubelet.release()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.READER_FAILED),
        (grpc.StatusCode.PERMISSION_DENIED, Reason.NOT_PERMITTED),
        (grpc.StatusCode.UNAUTHENTICATED, Reason.NOT_PERMITTED),
        (grpc.StatusCode.UNIMPLEMENTED, Reason.INCOMPATIBLE_VERSION),
        (grpc.StatusCode.UNKNOWN, Reason.READER_FAILED),
        (grpc.StatusCode.UNAVAILABLE, Reason.READER_FAILED),
    ],
)
async def test_refused_call_has_a_reason(
    kubelet: FakeKubelet, source: KubeletHolders, code: grpc.StatusCode, reason: Reason
) -> None:
    kubelet.fault = code, "\x1b[31m" + "x" * 2_000
    with pytest.raises(HolderError) as caught:
        await source.report()
    assert caught.value.absence is reason
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    kubelet.fault = None
    assert (await source.report()).claims == ()


async def test_rate_limit_is_a_failed_report(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.place(pod())
    kubelet.tokens = 1
    assert len((await source.report()).claims) == 1
    assert await absence(source) is Reason.READER_FAILED


async def test_kubelet_with_the_old_api_only_is_incompatible(root: Path, source: KubeletHolders) -> None:
    with FakeKubelet(root, versions=["v1alpha1"]):
        assert await absence(source) is Reason.INCOMPATIBLE_VERSION


@pytest.mark.parametrize("answer", [b"\xff\xff", b"\x0a\x05", b"\0" * (17 << 20)], ids=["key", "length", "size"])
async def test_malformed_answer_is_a_failed_report(kubelet: FakeKubelet, source: KubeletHolders, answer: bytes) -> None:
    kubelet.answer = answer
    assert await absence(source) is Reason.READER_FAILED


def test_socket_without_permission_is_not_permitted(root: Path, kubelet: FakeKubelet) -> None:
    root.chmod(0o755)
    kubelet.socket.chmod(0)
    code = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from gpufleet.holders.kubelet import KubeletHolders\n"
        "from gpufleet.model.errors import HolderError\n"
        f"os.getuid() or os.setuid({UNPRIVILEGED_UID})\n"
        "try: asyncio.run(KubeletHolders(Path(sys.argv[1])).report())\n"
        "except HolderError as error: print(error.absence)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == Reason.NOT_PERMITTED, done.stderr


async def test_source_is_usable_after_close(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    kubelet.place(pod())
    await source.report()
    await source.close()
    await source.close()
    assert len((await source.report()).claims) == 1


async def test_claimed_device_is_named_by_its_specification(
    root: Path, kubelet: FakeKubelet, source: KubeletHolders
) -> None:
    claim = FakeResourceClaim("g", (FakeClaimedDevice("gpu-1", ("k8s.gpu.nvidia.com/claim=gpu-1",)),))
    kubelet.place(FakePod("ml", "a", OLD, [FakeContainer("train", claims=[claim])]))
    (unresolved,) = (await source.report()).claims
    assert [device.naming for device in unresolved.devices] == [Naming.UNRESOLVED]
    (root / "run/cdi").mkdir(parents=True)
    (root / "run/cdi/claim.json").write_text(
        '{"kind": "k8s.gpu.nvidia.com/claim", "devices": [{"name": "gpu-1", "containerEdits":'
        ' {"deviceNodes": [{"path": "/dev/nvidia6"}]}}]}'
    )
    (named,) = (await source.report()).claims
    assert [(device.naming, device.text) for device in named.devices] == [(Naming.MINOR, "6")]
    assert (named.share, named.claim) == (Share.DRA, "ml/g")


async def test_network_card_of_a_pod_is_not_reported(root: Path, kubelet: FakeKubelet, source: KubeletHolders) -> None:
    (root / "sys/bus/pci/devices/0000:3b:00.0").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:3b:00.0/class").write_text("0x020000\n")
    devices = {"nvidia.com/hostdev": ["0000:3b:00.0"], "nvidia.com/GH100": ["0000:5e:00.0"]}
    kubelet.place(FakePod("ml", "a", OLD, [FakeContainer("train", devices)]))
    (claim,) = (await source.report()).claims
    assert [device.text for device in claim.devices] == ["0000:5e:00.0"]


LISTS = recorded_kubelet.answers("List")


async def test_every_recorded_answer_is_reported_over_the_socket(kubelet: FakeKubelet, source: KubeletHolders) -> None:
    for _, answer in LISTS:
        kubelet.answer = recorded_kubelet.files()[answer["bin"]]
        report = await source.report()
        held = {(claim.holder.namespace, claim.holder.name) for claim in report.claims}
        assert report.complete
        assert {f"{namespace}/{name}" for namespace, name in held} <= {id_ for _, id_ in report.listed}


def test_libraries_are_imported_only_where_there_is_a_socket(root: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from gpufleet.holders.kubelet import KubeletHolders\n"
        "from gpufleet.model.errors import HolderError\n"
        "try: asyncio.run(KubeletHolders(Path(sys.argv[1])).report())\n"
        "except HolderError: print(sorted({'grpc', 'yaml', 'google.protobuf'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
