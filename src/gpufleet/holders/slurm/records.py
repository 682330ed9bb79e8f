"""Records of SLURM's answers."""

import msgspec


class ClusterConfig(msgspec.Struct, frozen=True):
    """Configuration of a SLURM cluster. Texts are empty if they are not printed.

    Attributes:
        cluster: its name (`ClusterName`), in lower case as in SLURM's accounting.
        folder: folder of slurm.conf.
    """

    cluster: str = ""
    folder: str = ""


class GresUse(msgspec.Struct, frozen=True):
    """An item of a GRES list, such as `gpu:h100:2(IDX:0-1)`.

    Attributes:
        name: `gpu`, `mps` or `shard`, or any other.
        type: type within the name, or empty.
        count: configured or used number.
        indexes: indexes on the node, or empty if none are printed.
        counts: number per index, in the order of `indexes`, where it is printed (shards and MPS).
    """

    name: str
    type: str
    count: int
    indexes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


class SlurmNodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node as `scontrol show node` prints it.

    Attributes:
        name: SLURM's node name.
        configured: GRES of the configuration, in SLURM's order.
        used: GRES of running jobs, or None if this SLURM does not print it.
        completing: whether a job is being cleaned up on the node.
        slurmd_started: start time of slurmd as printed, or empty.
    """

    name: str
    configured: tuple[GresUse, ...]
    used: tuple[GresUse, ...] | None
    completing: bool
    slurmd_started: str


class ListedJob(msgspec.Struct, frozen=True):
    """A job as squeue lists it: its ids, and the texts that users can choose freely.

    Attributes:
        id: job id.
        selector: id that selects this job alone: `8_3` in an array, `25+1` in a heterogeneous job.
        account, wckey, name: as printed.
    """

    id: int
    selector: str
    account: str
    wckey: str
    name: str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as `scontrol show job` prints it. Texts are as printed, not bounded.

    Attributes:
        listed: the job in the listing.
        array_job, array_task: array ids, or empty.
        het_job, het_offset: heterogeneous job that this job is a component of, and its place there, or empty.
        user, qos, partition: as printed; empty if SLURM has none.
        state: job state, such as `RUNNING`.
        started: start time in nanoseconds since 1970, or None.
        nodes: number of nodes, or 0.
        gpus: number of GPUs of the whole job, or 0.
        gres: GRES of each line: host list and items.
    """

    listed: ListedJob
    array_job: str
    array_task: str
    het_job: str
    het_offset: str
    user: str
    qos: str
    partition: str
    state: str
    started: int | None
    nodes: int
    gpus: int
    gres: tuple[tuple[str, tuple[GresUse, ...]], ...]


class GpuFiles(msgspec.Struct, frozen=True):
    """An entry of SLURM's list of GPUs of a node.

    Attributes:
        type: GRES type, or empty.
        files: device files; several for a MIG device.
    """

    type: str
    files: tuple[str, ...]
