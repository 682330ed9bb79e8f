"""The SLURM holder source: which job has which GPU of this machine, as the controller reports it."""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.codecs import mig_minors
from gpufleet.holders.slurm.fetch import TIMEOUT_SECONDS, SlurmCommands, UnknownNodeError
from gpufleet.holders.slurm.gres_conf import (
    MAX_INCLUDES,
    includes,
    order,
    parse_gres_conf,
    parse_slurmd_gres,
)
from gpufleet.holders.slurm.mapping import DEVICE_GRES, SlurmNodeGpus, claims_of
from gpufleet.holders.slurm.parse import gres_on
from gpufleet.holders.slurm.records import (
    ClusterConfig,
    GpuFiles,
    GresUse,
    JobRecord,
    ListedJob,
    SlurmNodeRecord,
)
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, HolderError, WireError
from gpufleet.model.text import bounded
from gpufleet.ports.channel import Exec, FetchPlan, Files
from gpufleet.ports.holder import HolderClaim, HolderReport

MAX_NODES = 64
"""Maximum number of SLURM nodes of one machine."""

MAX_JOBS = 256
"""Maximum number of jobs that are read in one report."""

RETRY_REPORTS = 20
"""Reports between two attempts to read the GPUs of a node, after a failure."""

FOLDERS = ("/run/slurm/conf", "/etc/slurm")
"""Folders of gres.conf, searched after the folder of the slurm.conf that the controller reports."""

_HOLDING_STATES = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)
_COMPLETING = "COMPLETING"


class GpusInUse(msgspec.Struct, frozen=True):
    """Number of a GRES in use on a node, 0 for shares of GPUs, and its indexes."""

    count: int
    indexes: frozenset[int]


class SlurmHolders:
    """Reports the jobs that have GPUs of this machine, allocated and idle ones included.

    A report without a change costs one request for each node and one for each job with GPUs there. All jobs of the
    cluster are requested only if the GPUs in use differ from those of the known jobs, or are shared: SLURM 22.05
    counts the shards in use wrongly.

    Args:
        commands: runs SLURM's commands, in the environment of `fetch.environment`.
        files: reads gres.conf and the driver's table of MIG capabilities.
        host: short name of this machine.
        nodes: SLURM's node names of this machine, or empty to look them up by `host`.
        folder: folder of gres.conf, or empty to search it.
        timeout_seconds: timeout of each command.
    """

    def __init__(
        self,
        commands: Exec,
        files: Files,
        *,
        host: str,
        nodes: Sequence[str] = (),
        folder: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._slurm = SlurmCommands(commands, timeout_seconds=timeout_seconds)
        self._files = files
        self._host = host
        self._configured = tuple(dict.fromkeys(nodes))[:MAX_NODES]
        self._folder = folder.rstrip("/")
        self._names = self._configured
        self._jobs: dict[int, JobRecord] = {}
        self._without: set[int] = set()  # running jobs without GPUs here
        self._tables: dict[str, tuple[SlurmNodeRecord, SlurmNodeGpus, int]] = {}
        self._config: tuple[tuple[tuple[str, str], ...], ClusterConfig] | None = None
        self._reports = 0

    @property
    def name(self) -> str:
        """Return `slurm`."""
        return "slurm"

    async def report(self) -> HolderReport:
        """Return the claims of the jobs on this machine.

        Raises:
            HolderError: `not_enabled` if SLURM is not installed or this machine is no node; `not_permitted` if the jobs
                are hidden from this user; `timeout` or `reader_failed` if the controller does not answer.
        """
        self._reports += 1
        try:
            nodes = await self._nodes()
            jobs, problems = await self._current_jobs(nodes)
        except WireError as error:
            raise HolderError(Reason.READER_FAILED, str(error)) from error
        claims: list[HolderClaim] = []
        tables: dict[str, SlurmNodeGpus] = {}
        if jobs:
            config = await self._current_config(nodes)
            tables = {node.name: await self._table(node, config) for node in nodes}
            for job in jobs.values():
                claims += claims_of(job, tables, config.cluster)
        details = [*problems, *(f"{name}: {table.detail}" for name, table in tables.items() if table.detail)]
        return HolderReport(
            claims=tuple(claims),
            complete=not problems,
            nodes=frozenset(node.name for node in nodes),
            detail=bounded("; ".join(details), 500),
        )

    async def close(self) -> None:
        """Drop the known jobs and nodes."""
        self._names = self._configured
        self._jobs, self._without, self._tables, self._config = {}, set(), {}, None

    async def _nodes(self) -> list[SlurmNodeRecord]:
        """Return the nodes of this machine."""
        names = self._names or (await self._slurm.node_names(self._host))[:MAX_NODES] or (self._host,)
        try:
            nodes = [await self._slurm.node(name) for name in names]
        except UnknownNodeError as error:
            await self.close()
            message = f"SLURM has no node {str(error)!r}: set the node name if it is not that of the host"
            raise HolderError(Reason.NOT_ENABLED, message) from error
        self._names = names
        return nodes

    async def _current_jobs(self, nodes: list[SlurmNodeRecord]) -> tuple[dict[int, JobRecord], list[str]]:
        """Return the jobs with GPUs on the nodes, and what could not be read."""
        completing = any(node.completing for node in nodes)
        printed = all(node.used is not None for node in nodes)
        if printed and not _used(nodes) and not (completing and self._jobs):
            self._jobs = {}
            return {}, []
        known = [job.listed for job in self._jobs.values()]
        problems: list[str] = []
        jobs: dict[int, JobRecord] = {}
        if known and printed:
            jobs, problems = await self._read_jobs(known, nodes)
        if problems or not printed or _shared(nodes) or not _agree(nodes, jobs):
            jobs, problems = await self._list_jobs(nodes, printed=printed)
        self._jobs = jobs
        return jobs, problems

    async def _list_jobs(
        self, nodes: list[SlurmNodeRecord], *, printed: bool
    ) -> tuple[dict[int, JobRecord], list[str]]:
        """List the jobs on the nodes and read those that can have GPUs."""
        listing = await self._slurm.listing(tuple(node.name for node in nodes))
        self._without &= {listed.id for listed in listing}
        wanted = [listed for listed in listing if listed.id not in self._without]
        jobs, problems = await self._read_jobs(wanted[:MAX_JOBS], nodes)
        if len(wanted) > MAX_JOBS:
            problems.append(f"more than {MAX_JOBS} jobs on this machine")
        if not printed or _agree(nodes, jobs):
            return jobs, problems
        again = await self._nodes()  # a job can have started or ended between the two requests
        if _agree(again, jobs):
            return jobs, problems
        self._without = set()
        if not listing and _used(again):
            message = (
                f"SLURM reports GPUs of {again[0].name} in use, but lists no job: with PrivateData=jobs, "
                "give this user the operator level in SLURM, or run the agent as SlurmUser"
            )
            raise HolderError(Reason.NOT_PERMITTED, message)
        return jobs, [*problems, "the GPUs in use differ from those of the listed jobs"]

    async def _read_jobs(
        self, wanted: Sequence[ListedJob], nodes: list[SlurmNodeRecord]
    ) -> tuple[dict[int, JobRecord], list[str]]:
        """Read jobs; return those with GPUs on the nodes, and what could not be read."""
        jobs: dict[int, JobRecord] = {}
        problems: list[str] = []
        for listed in wanted:
            try:
                job = await self._slurm.job(listed)
                if job is None or job.state not in _HOLDING_STATES:
                    continue
                has_gpus = any(_device_gres(job, node.name) for node in nodes)
                known = self._jobs.get(listed.id)
                if job.state == _COMPLETING and not has_gpus and known is not None:
                    job = _completing_job(job, known, nodes)
                    has_gpus = bool(job.gres)
            except WireError as error:
                problems.append(str(error))
                continue
            if has_gpus:
                jobs[listed.id] = job
            elif job.state == "RUNNING":
                self._without.add(listed.id)
        return jobs, problems

    async def _current_config(self, nodes: Sequence[SlurmNodeRecord]) -> ClusterConfig:
        """Return the configuration of the cluster, read again if a slurmd was restarted."""
        started = tuple((node.name, node.slurmd_started) for node in nodes)
        if self._config is None or self._config[0] != started:
            self._config = started, await self._slurm.config()
        return self._config[1]

    async def _table(self, node: SlurmNodeRecord, config: ClusterConfig) -> SlurmNodeGpus:
        """Return the GPUs of a node, read again if slurmd was restarted or the configuration changed."""
        before = self._tables.get(node.name)
        if before is not None:
            seen, table, at = before
            unchanged = (seen.slurmd_started, seen.configured) == (node.slurmd_started, node.configured)
            if unchanged and (not table.detail or self._reports - at < RETRY_REPORTS):
                return table
        table = await self._read_table(node, config)
        self._tables[node.name] = (node, table, self._reports)
        return table

    async def _read_table(self, node: SlurmNodeRecord, config: ClusterConfig) -> SlurmNodeGpus:
        details: list[str] = []
        for read in (self._gres_conf_entries, self._slurmd_entries):
            try:
                entries = await read(node, config)
                if entries is not None:
                    return SlurmNodeGpus(order(entries, node.configured), await self._capabilities(entries))
            except (WireError, HolderError, ChannelError) as error:
                details.append(str(error))
        return SlurmNodeGpus(detail="the order of the GPUs is unknown: " + "; ".join(details))

    async def _gres_conf_entries(self, node: SlurmNodeRecord, config: ClusterConfig) -> tuple[GpuFiles, ...] | None:
        """Return the entries of gres.conf, or None without a file, or if slurmd detects the GPUs."""
        folders = (self._folder,) if self._folder else (config.folder, *FOLDERS)
        for folder in filter(None, dict.fromkeys(folders)):
            texts = await self._gres_conf(folder)
            if texts:
                return parse_gres_conf(texts, "gres.conf", node.name)
        return None

    async def _gres_conf(self, folder: str) -> dict[str, str]:
        """Return gres.conf and its included files by name, or nothing if the folder has none."""
        texts: dict[str, str] = {}
        wanted = ["gres.conf"]
        while wanted and len(texts) <= MAX_INCLUDES:
            paths = {name: name if name.startswith("/") else f"{folder}/{name}" for name in wanted}
            fetched = await self._files.fetch(FetchPlan(files=tuple(paths.values())))
            read = {name: fetched.files[path] for name, path in paths.items() if path in fetched.files}
            texts |= {name: content.decode(errors="replace") for name, content in read.items()}
            wanted = list(dict.fromkeys(file for name in read for file in includes(texts[name]) if file not in texts))
        return texts

    async def _slurmd_entries(self, node: SlurmNodeRecord, _config: ClusterConfig) -> tuple[GpuFiles, ...] | None:
        return parse_slurmd_gres(await self._slurm.slurmd_gres(node.name))

    async def _capabilities(self, entries: Sequence[GpuFiles]) -> dict[int, mig_minors.MigCapability]:
        if all(len(entry.files) <= 1 for entry in entries):
            return {}
        fetched = await self._files.fetch(FetchPlan(files=(mig_minors.PATH,)))
        return mig_minors.parse_mig_minors(fetched.files.get(mig_minors.PATH, b""))


def _device_gres(job: JobRecord, node: str) -> list[GresUse]:
    return [item for item in gres_on(job, node) if item.name in DEVICE_GRES and item.count]


def _completing_job(job: JobRecord, known: JobRecord, nodes: list[SlurmNodeRecord]) -> JobRecord:
    """Return the job with the GPUs that it had on the nodes that are still being cleaned up.

    SLURM empties the GRES of a job when it ends, but gives the GPUs of a node to no other job before its epilog ends.
    """
    gres = tuple((node.name, tuple(_device_gres(known, node.name))) for node in nodes if node.completing)
    return msgspec.structs.replace(job, gres=tuple((name, items) for name, items in gres if items))


def _used(nodes: Sequence[SlurmNodeRecord]) -> dict[tuple[str, str], GpusInUse]:
    """Return the GPUs in use by node and GRES name. Types are left out: a job's shards are printed without them."""
    return _totals((node.name, item) for node in nodes for item in node.used or ())


def _shared(nodes: Sequence[SlurmNodeRecord]) -> bool:
    """Return whether shares of GPUs are in use."""
    return any(name != "gpu" for _, name in _used(nodes))


def _agree(nodes: Sequence[SlurmNodeRecord], jobs: dict[int, JobRecord]) -> bool:
    """Return whether the jobs have exactly the GPUs that the nodes report in use.

    Completing jobs are counted either all or not at all.
    """
    running = [job for job in jobs.values() if job.state != _COMPLETING]
    used = _used(nodes)
    return any(
        _totals((node.name, item) for node in nodes for job in chosen for item in _device_gres(job, node.name)) == used
        for chosen in (running, list(jobs.values()))
    )


def _totals(items: Iterable[tuple[str, GresUse]]) -> dict[tuple[str, str], GpusInUse]:
    totals: dict[tuple[str, str], GpusInUse] = {}
    for node, item in items:
        if item.name in DEVICE_GRES and item.count:
            before = totals.get((node, item.name), GpusInUse(0, frozenset()))
            count = before.count + (item.count if item.name == "gpu" else 0)
            totals[node, item.name] = GpusInUse(count, before.indexes | frozenset(item.indexes))
    return totals
