"""Claims of jobs: devices, shares, unresolved names, bounded texts."""

import msgspec

from gpufleet.codecs.mig_minors import MigCapability
from gpufleet.holders.slurm.mapping import SlurmNodeGpus, claims_of
from gpufleet.holders.slurm.parse import parse_gres, parse_job
from gpufleet.holders.slurm.records import GpuFiles, JobRecord
from gpufleet.model.holdings import HolderKind, Method, Share
from gpufleet.ports.holder import HolderClaim, Naming
from tests.holders.slurm.recorded import listing, text

GPUS = SlurmNodeGpus(tuple(GpuFiles("h100", (f"/dev/nvidia{number}",)) for number in (3, 1, 0, 2)))
MIG = SlurmNodeGpus(
    (
        GpuFiles("1g", ("/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")),
        GpuFiles("1g", ("/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap40")),
        GpuFiles("1g", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30")),
        GpuFiles("1g", ("/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap30")),
    ),
    {30: MigCapability(2, 5), 31: MigCapability(2, 5, 0), 40: MigCapability(2, 6, 0)},
)


def job(gres: str, **changes: object) -> JobRecord:
    recorded = parse_job(text("job-two-nodes"), listing()[1])
    return msgspec.structs.replace(recorded, gres=(("n[1-2]", parse_gres(gres)),), **changes)


def names(claims: tuple[HolderClaim, ...]) -> list[tuple[Naming, str]]:
    return [(device.naming, device.text) for claim in claims for device in claim.devices]


def test_index_names_the_device_file_and_not_its_position() -> None:
    (claim,) = claims_of(job("gpu:h100:2(IDX:0-1)"), {"n1": GPUS})
    assert names((claim,)) == [(Naming.MINOR, "3"), (Naming.MINOR, "1")]
    assert (claim.method, claim.share, claim.resource) == (Method.SCHEDULER, Share.EXCLUSIVE, "gpu:h100")
    assert (claim.holder.kind, claim.holder.id) == (HolderKind.JOB, "1")


def test_several_nodes_of_a_machine_are_one_claim() -> None:
    other = SlurmNodeGpus((GpuFiles("h100", ("/dev/nvidia7",)),))
    (claim,) = claims_of(job("gpu:h100:1(IDX:0)"), {"n1": GPUS, "n2": other, "n3": GPUS})
    assert names((claim,)) == [(Naming.MINOR, "3"), (Naming.MINOR, "7")]


def test_unknown_order_and_missing_indexes_are_unresolved() -> None:
    for gpus, gres in (
        (SlurmNodeGpus(), "gpu:1(IDX:0)"),
        (GPUS, "gpu:1(IDX:9)"),
        (GPUS, "gpu:2(CNT:2)"),
        (SlurmNodeGpus((GpuFiles("mi300", ("/dev/dri/renderD128",)),)), "gpu:1(IDX:0)"),
        (SlurmNodeGpus((GpuFiles("", ()),)), "gpu:1(IDX:0)"),
    ):
        (claim,) = claims_of(job(gres), {"n1": gpus})
        assert [naming for naming, _ in names((claim,))] == [Naming.UNRESOLVED]


def test_mig_device_is_named_by_its_capabilities() -> None:
    claims = claims_of(job("gpu:1g:4(IDX:0-3)"), {"n1": MIG})
    assert {claim.share: names((claim,)) for claim in claims} == {
        Share.MIG: [(Naming.MIG_OF_MINOR, "2/5/0"), (Naming.MIG_OF_MINOR, "2/5")],
        Share.EXCLUSIVE: [(Naming.UNRESOLVED, "n1 gpu:1g IDX:1"), (Naming.UNRESOLVED, "n1 gpu:1g IDX:2")],
    }


def test_shares_have_their_replicas_where_they_are_printed() -> None:
    def shares(gres: str) -> list[tuple[Share, int, list[str]]]:
        claims = claims_of(job(gres), {"n1": GPUS})
        return [(claim.share, claim.replicas, [device.text for device in claim.devices]) for claim in claims]

    assert shares("shard:2(IDX:1)") == [(Share.TIMESLICE, 2, ["1"])]
    assert shares("shard:3(2/8,0/8,1/8)") == [(Share.TIMESLICE, 2, ["3"]), (Share.TIMESLICE, 1, ["0"])]
    assert shares("shard:3(IDX:0-1)") == [(Share.TIMESLICE, 0, ["3", "1"])]
    assert shares("mps:50(IDX:2)") == [(Share.MPS, 50, ["0"])]
    assert shares("nic:1(IDX:0),gpu:0(IDX:N/A)") == []


def test_texts_are_bounded_and_clean() -> None:
    listed = msgspec.structs.replace(listing()[2], name="\x1b[31m\n\u202e" + "n" * 10_000)
    (claim,) = claims_of(job("gpu:1(IDX:0)", listed=listed, user="u" * 10_000, array_task="1"), {"n1": GPUS})
    assert claim.holder.name.startswith("[31m?nn")
    assert max(len(claim.holder.name), len(claim.holder.user)) <= 256
    assert claim.holder.account == listed.account
