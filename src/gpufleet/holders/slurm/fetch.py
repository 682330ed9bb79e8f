"""Execution of scontrol, squeue and slurmd over any channel that can run commands."""

import re
from collections.abc import Mapping
from secrets import token_hex

from gpufleet.holders.slurm.parse import parse_config, parse_job, parse_listing, parse_names, parse_node
from gpufleet.holders.slurm.records import ClusterConfig, JobRecord, ListedJob, SlurmNodeRecord
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelTimeoutError, HolderError
from gpufleet.model.text import bounded
from gpufleet.ports.channel import Exec, ExecResult

MAX_OUTPUT_BYTES = 8 << 20
"""Maximum output of a command. A job on 1,000 different nodes prints less than 100 kB."""

TIMEOUT_SECONDS = 15.0
"""Timeout of a command. Without its controller, SLURM 22.05 gives up after 9 s."""

_SCONTROL = ("scontrol", "-a", "-d", "-o", "show")
_UNSET = re.compile(r"SQUEUE_|SCONTROL_|SLURM_(?:CLUSTERS|TIME_FORMAT|JSON|YAML|FEDERATION)")
_NOT_FOUND, _NOT_ALLOWED = 127, 126


class UnknownNodeError(Exception):
    """The controller has no node of this name."""


def environment(base: Mapping[str, str], *, conf: str = "") -> dict[str, str]:
    """Return the environment of the channel's commands.

    Args:
        base: environment of this process; variables that change SLURM's output are left out.
        conf: path of slurm.conf if it is not at SLURM's own place.
    """
    kept = {name: value for name, value in base.items() if not _UNSET.match(name)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", **({"SLURM_CONF": conf} if conf else {})}


class SlurmCommands:
    """SLURM's commands on one machine.

    Args:
        channel: runs the commands, in `environment`.
        timeout_seconds: timeout of each command.
    """

    def __init__(self, channel: Exec, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._channel = channel
        self._timeout = timeout_seconds

    async def node_names(self, host: str) -> tuple[str, ...]:
        """Return SLURM's names of the nodes on a host; no request to the controller.

        Raises:
            HolderError: if SLURM is not installed or not configured here.
        """
        return parse_names(_checked(await self._run(*_SCONTROL, "aliases", host)))

    async def node(self, name: str) -> SlurmNodeRecord:
        """Return a node; a request for this node only.

        Raises:
            UnknownNodeError: if there is no such node.
            HolderError: if the controller does not answer.
            WireError: if the answer is malformed.
        """
        result = await self._run(*_SCONTROL, "node", name)
        if result.exit_code and b" not found" in result.stdout + result.stderr and result.exit_code < _NOT_ALLOWED:
            raise UnknownNodeError(name)
        return parse_node(_checked(result), name)

    async def listing(self, nodes: tuple[str, ...]) -> tuple[ListedJob, ...]:
        """Return the running, suspended, completing and configuring jobs on nodes.

        The controller sends all jobs of the cluster, which squeue then filters. Call it only if the jobs changed.

        Raises:
            HolderError: if the controller does not answer.
            WireError: if the answer is malformed.
        """
        delimiter = token_hex(8)
        form = "".join(f"{delimiter}{field}" for field in ("%A", "%i", "%a", "%w", "%j", ""))
        return parse_listing(
            _checked(await self._run("squeue", "-a", "-h", "-w", ",".join(nodes), "-o", form)), delimiter
        )

    async def job(self, listed: ListedJob) -> JobRecord | None:
        """Return a job, or None if the controller no longer has it; a request for this job only.

        Raises:
            HolderError: if the controller does not answer.
            WireError: if the answer is malformed.
        """
        result = await self._run(*_SCONTROL, "job", listed.selector)
        if result.exit_code and b"nvalid job id" in result.stdout + result.stderr:
            return None
        return parse_job(_checked(result), listed)

    async def config(self) -> ClusterConfig:
        """Return the configuration of the cluster as the controller reports it.

        Raises:
            HolderError: if the controller does not answer.
        """
        return parse_config(_checked(await self._run("scontrol", "show", "config")))

    async def slurmd_gres(self, node: str) -> bytes:
        """Return the GRES that slurmd finds for a node.

        Raises:
            HolderError: if slurmd is not installed here, or may not be run.
        """
        result = await self._run("slurmd", "-N", node, "-G")
        _checked(result)
        return result.stderr + result.stdout

    async def _run(self, *argv: str) -> ExecResult:
        try:
            return await self._channel.run(argv, timeout_seconds=self._timeout, max_output_bytes=MAX_OUTPUT_BYTES)
        except ChannelTimeoutError as error:
            raise HolderError(Reason.TIMEOUT, str(error)) from error
        except ChannelError as error:
            raise HolderError(Reason.READER_FAILED, str(error)) from error


def _checked(result: ExecResult) -> bytes:
    """Return the output of a command that succeeded. Raises HolderError."""
    if result.exit_code == 0:
        return result.stdout
    message = bounded(" ".join((result.stderr or result.stdout).decode(errors="replace").split()), 300)
    if result.exit_code == _NOT_FOUND:
        raise HolderError(Reason.NOT_ENABLED, f"SLURM's commands are not installed: {message}")
    if "establish a configuration source" in message:
        raise HolderError(Reason.NOT_ENABLED, f"SLURM is not configured on this machine: {message}")
    lower = message.lower()
    if result.exit_code == _NOT_ALLOWED or "permission denied" in lower or "access denied" in lower:
        raise HolderError(Reason.NOT_PERMITTED, f"SLURM rejects this user: {message}")
    raise HolderError(Reason.READER_FAILED, message or f"exit code {result.exit_code} without a message")
