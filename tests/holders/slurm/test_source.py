"""The SLURM holder source over recorded and made answers: failures, changes, requests."""

from collections.abc import Sequence

import pytest

from gpufleet.holders.slurm import SlurmHolders
from gpufleet.holders.slurm.fetch import environment
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelTimeoutError, HolderError
from gpufleet.ports.channel import ExecResult, FetchPlan, FetchResult
from gpufleet.ports.holder import Naming
from tests.holders.slurm.recorded import DELIMITER, text

A = "gpu-a100-01"
GRES_CONF = "Name=gpu Type=h100 File=/dev/nvidia[3,1]\nName=gpu Type=h100 File=/dev/nvidia[0,2]\n"


class Controller:
    """SLURM's commands with recorded answers for one node and four jobs."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | ExecResult | ChannelError] = {
            "aliases vm": f"{A}\n".encode(),
            f"node {A}": text("node-busy"),
            "job 1": text("job-two-nodes"),
            "job 2": text("job-hostile"),
            "job 3_7": text("job-array"),
            "job 4": text("job-without-gpu"),
            "config": text("config"),
            "squeue": text("listing"),
        }
        self.commands: list[str] = []

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        key = "squeue" if argv[0] == "squeue" else " ".join(argv[argv.index("show") + 1 :] if "show" in argv else argv)
        self.commands.append(key)
        answer = self.answers.get(key, ExecResult(exit_code=1, stdout=b"", stderr=text("no-job.stderr")))
        if isinstance(answer, ChannelError):
            raise answer
        if isinstance(answer, ExecResult):
            return answer
        if key == "squeue":
            delimiter = argv[-1].partition("%")[0]
            answer = answer.replace(DELIMITER.encode(), delimiter.encode())
        return ExecResult(exit_code=0, stdout=answer, stderr=b"")


class Folder:
    """Files of this machine."""

    def __init__(self, **files: str) -> None:
        self.files = {"/srv/slurm/gres.conf": GRES_CONF, **files}

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        found = {path: self.files[path].encode() for path in plan.files if path in self.files}
        return FetchResult(files=found, errors={path: "ENOENT" for path in plan.files if path not in self.files})


def source_of(controller: Controller, folder: Folder | None = None, **options: object) -> SlurmHolders:
    return SlurmHolders(controller, folder or Folder(), host="vm", **options)  # type: ignore[arg-type]


async def test_report_without_change_requests_node_and_jobs_only() -> None:
    controller = Controller()
    source = source_of(controller)
    report = await source.report()
    assert (report.complete, report.detail, report.living) == (True, "", None)
    assert report.nodes == {A}
    assert {claim.holder.id: [device.text for device in claim.devices] for claim in report.claims} == {
        "1": ["3"],
        "2": ["1", "0"],
        "3": ["2"],
    }
    controller.commands.clear()
    assert await source.report() == report
    assert controller.commands == [f"node {A}", "job 1", "job 2", "job 3_7"]


async def test_job_has_the_slurm_cluster_of_its_controller() -> None:
    controller = Controller()
    source = source_of(controller)
    assert {claim.holder.slurm_cluster for claim in (await source.report()).claims} == {"test"}
    controller.answers["config"] = text("config").replace(b"= test", b"= Other")
    assert {claim.holder.slurm_cluster for claim in (await source.report()).claims} == {"test"}
    controller.answers[f"node {A}"] = text("node-busy").replace(b"SlurmdStartTime=", b"SlurmdStartTime=9")
    assert {claim.holder.slurm_cluster for claim in (await source.report()).claims} == {"other"}


async def test_ended_job_is_replaced_by_the_listed_one() -> None:
    controller = Controller()
    source = source_of(controller)
    await source.report()
    new = text("job-array").replace(b"JobId=3 ArrayJobId=3 ArrayTaskId=7 ", b"JobId=9 ")
    controller.answers["job 3_7"] = ExecResult(exit_code=1, stdout=b"", stderr=text("no-job.stderr"))
    controller.answers["job 9"] = new
    controller.answers["squeue"] = text("listing").replace(
        f"{DELIMITER}3{DELIMITER}3_7".encode(), f"{DELIMITER}9{DELIMITER}9".encode()
    )
    report = await source.report()
    assert report.complete
    assert {claim.holder.id for claim in report.claims} == {"1", "2", "9"}


async def test_unlisted_gpus_make_the_report_incomplete() -> None:
    controller = Controller()
    del controller.answers["job 2"]
    report = await source_of(controller).report()
    assert not report.complete
    assert {claim.holder.id for claim in report.claims} == {"1", "3"}
    assert report.detail


async def test_malformed_job_does_not_hide_the_others() -> None:
    controller = Controller()
    controller.answers["job 2"] = text("job-array")
    report = await source_of(controller).report()
    assert not report.complete
    assert {claim.holder.id for claim in report.claims} == {"1", "3"}


async def test_idle_node_needs_one_request() -> None:
    controller = Controller()
    controller.answers[f"node {A}"] = text("node-idle")
    source = source_of(controller, nodes=(A,))
    assert await source.report() == await source.report()
    assert controller.commands == [f"node {A}"] * 2
    assert (await source.report()).complete


@pytest.mark.parametrize(
    ("key", "answer", "reason"),
    [
        ("aliases vm", ExecResult(exit_code=127, stdout=b"", stderr=b"scontrol: not found"), Reason.NOT_ENABLED),
        ("aliases vm", ExecResult(exit_code=126, stdout=b"", stderr=b"scontrol: no"), Reason.NOT_PERMITTED),
        (
            "aliases vm",
            ExecResult(exit_code=1, stdout=b"", stderr=b"fatal: Could not establish a configuration source"),
            Reason.NOT_ENABLED,
        ),
        (f"node {A}", ExecResult(exit_code=1, stdout=text("no-node"), stderr=b""), Reason.NOT_ENABLED),
        (f"node {A}", ChannelTimeoutError("scontrol did not end"), Reason.TIMEOUT),
        (f"node {A}", ChannelError("scontrol printed too much"), Reason.READER_FAILED),
        (f"node {A}", b"\xff\x00", Reason.READER_FAILED),
        (f"node {A}", ExecResult(exit_code=1, stdout=b"", stderr=b"Unable to contact"), Reason.READER_FAILED),
        ("squeue", ChannelTimeoutError("squeue did not end"), Reason.TIMEOUT),
        ("squeue", b"", Reason.NOT_PERMITTED),
        ("squeue", b"noise", Reason.READER_FAILED),
        ("job 1", ExecResult(exit_code=1, stdout=b"", stderr=b"Access denied"), Reason.NOT_PERMITTED),
    ],
)
async def test_failure_has_its_reason(key: str, answer: bytes | ExecResult | ChannelError, reason: Reason) -> None:
    controller = Controller()
    if answer != b"noise":
        controller.answers[key] = answer
    else:
        controller.answers[key] = f"{DELIMITER}1{DELIMITER}".encode()
    with pytest.raises(HolderError) as error:
        await source_of(controller).report()
    assert error.value.absence is reason


SLURMD = "slurmd -N gpu-a100-01 -G"
PRINTED = "".join(
    f"slurmd: Gres Name=gpu Type=h100 Count=1 Index={n} ID=7696487 File=/dev/nvidia{n} (null)\n" for n in (3, 1, 0, 2)
)


@pytest.mark.parametrize(
    ("conf", "slurmd", "resolved"),
    [
        ("AutoDetect=nvml\n", PRINTED, True),
        ("Name=gpu Type=h100 File=/dev/nvidia[0-1]\n", PRINTED, True),
        (None, PRINTED, True),
        ("AutoDetect=nvml\n", PRINTED.partition("\n")[2], False),
        ("AutoDetect=nvml\n", None, False),
        ("Include missing.conf\n", None, False),
    ],
)
async def test_slurmd_lists_gpus_that_gres_conf_does_not(conf: str | None, slurmd: str | None, resolved: bool) -> None:
    controller = Controller()
    if slurmd is not None:
        controller.answers[SLURMD] = ExecResult(exit_code=0, stdout=b"", stderr=slurmd.encode())
    folder = Folder()
    if conf is None:
        del folder.files["/srv/slurm/gres.conf"]
    else:
        folder.files["/srv/slurm/gres.conf"] = conf
    report = await source_of(controller, folder).report()
    namings = {device.naming for claim in report.claims for device in claim.devices}
    assert namings == ({Naming.MINOR} if resolved else {Naming.UNRESOLVED})
    assert (report.complete, bool(report.detail)) == (True, not resolved)


def test_environment_has_no_variable_that_changes_the_output() -> None:
    base = {"SQUEUE_STATES": "PD", "SLURM_CLUSTERS": "other", "SLURM_TIME_FORMAT": "relative", "HOME": "/root"}
    assert environment(base) == {"HOME": "/root", "SLURM_TIME_FORMAT": "%s"}
    assert environment(base, conf="/opt/slurm.conf")["SLURM_CONF"] == "/opt/slurm.conf"
