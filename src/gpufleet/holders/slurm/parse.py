"""Parsers of the output of scontrol and squeue. Pure.

Users choose a job's name, account and wckey freely, with line breaks and texts such as ` Nodes=n1 GRES=gpu:4`, and
scontrol prints them unescaped. A listing therefore delimits them with an unpredictable text, and a job is parsed only
with the listed texts at their places. The rest, up to the `Nodes=` lines, is SLURM's own.
"""

import re

from gpufleet.holders.slurm.hostlist import contains
from gpufleet.holders.slurm.records import ClusterConfig, GresUse, JobRecord, ListedJob, SlurmNodeRecord
from gpufleet.model.errors import WireError

MAX_INDEXES = 4096
"""Maximum number of indexes of one GRES on one node."""

MAX_NODE_LINES = 4096
"""Maximum number of `Nodes=` lines of a job."""

_MAX_ITEMS = 256
_SECOND = 1_000_000_000

_ITEM = re.compile(r"([\w.-]+)(?::([^\s:()]+))?:(\d{1,18})(?:\(([^()]*)\))?(?:,|\Z)", re.ASCII)
_SKIPPED_ITEM = re.compile(r"[^,()]*(?:\([^()]*\))?(?:,|\Z)")
_INDEX = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?\Z", re.ASCII)
_SHARE = re.compile(r"(\d{1,9})/\d{1,9}\Z", re.ASCII)

_NUMBER = re.compile(r"\d{1,10}\Z", re.ASCII)
_SELECTOR = re.compile(r"\d{1,10}(?:[_+]\d{1,10})?\Z", re.ASCII)
_IDS = re.compile(
    r"JobId=(?P<id>\d{1,10})(?: ArrayJobId=(?P<array>\d{1,10}))?(?: ArrayTaskId=(?P<task>[\d,%-]{1,64}))?"
    r"(?: HetJobId=(?P<het>\d{1,10}) HetJobOffset=(?P<offset>\d{1,10}))? JobName=",
    re.ASCII,
)
_USER = re.compile(r"(?: HetJobIdSet=[\d,-]*)? UserId=([^\n]{0,512}?)\((\d{1,10})\) GroupId=[^\n]{0,512}? Account=")
_UNKNOWN_USER = "nobody"
_UNKNOWN_USER_IDS = ("65534", "99")  # of that user; the second is of older distributions
_QOS = re.compile(r" QOS=(\S{0,512})")
_STATE = re.compile(r" JobState=([A-Z_]{1,32})\b")
_NODE_LINE = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_END_OF_NODES = " MinCPUsNode="
_CLUSTER = re.compile(r"^ClusterName[ \t]*= ([^\s/]{1,256})$", re.MULTILINE)
_CONF = re.compile(r"^SLURM_CONF[ \t]*= (/\S*)/[^/\s]+$", re.MULTILINE)


def parse_gres(text: str) -> tuple[GresUse, ...]:
    """Return the items of a GRES list. Items without a plain number, such as bandwidths, are left out.

    Raises:
        WireError: if indexes are malformed or exceed a limit.
    """
    found: list[GresUse] = []
    at = 0
    while at < len(text) and text != "(null)":
        match = _ITEM.match(text, at)
        if match is None:
            match = _SKIPPED_ITEM.match(text, at)
            if match is None or match.end() == at:
                raise WireError("gres", f"{text[:120]!r} is no list of GRES")
        else:
            found.append(_item(match[1], match[2] or "", int(match[3]), match[4] or ""))
            if len(found) > _MAX_ITEMS:
                raise WireError("gres", f"more than {_MAX_ITEMS} items")
        at = match.end()
    return tuple(found)


def parse_node(data: bytes, name: str) -> SlurmNodeRecord:
    """Return the node of `scontrol -o show node`.

    Raises:
        WireError: if it is not that node.
    """
    text = data.decode(errors="replace")
    if not text.startswith(f"NodeName={name} "):
        raise WireError("node", f"scontrol printed {text[:80]!r} for the node {name!r}")
    used = re.search(r" GresUsed=(\S*)", text)
    return SlurmNodeRecord(
        name=name,
        configured=parse_gres(_value(text, "Gres")),
        used=None if used is None else parse_gres(used[1]),
        completing="COMPLETING" in _value(text, "State").split("+"),
        slurmd_started=_value(text, "SlurmdStartTime")[:64],
    )


def parse_listing(data: bytes, delimiter: str) -> tuple[ListedJob, ...]:
    """Return the jobs of squeue, whose fields stand between delimiters.

    Raises:
        WireError: if the fields are not complete.
    """
    fields = data.decode(errors="replace").split(delimiter)
    if len(fields) % 6 != 1:
        raise WireError("squeue", f"{len(fields)} fields")
    jobs: list[ListedJob] = []
    for at in range(1, len(fields), 6):
        number, selector, account, wckey, name, _ = fields[at : at + 6]
        if not (_NUMBER.match(number) and _SELECTOR.match(selector)):
            raise WireError("squeue", f"{number[:40]!r} or {selector[:40]!r} is no job id")
        jobs.append(ListedJob(int(number), selector, account, wckey, name))
    return tuple(jobs)


def parse_job(data: bytes, listed: ListedJob) -> JobRecord:
    """Return the job of `scontrol -d -o show job ID`.

    Raises:
        WireError: if the output is not that job with its listed texts, or exceeds a limit.
    """
    text = data.decode(errors="replace")
    ids = _IDS.match(text)
    if ids is None or int(ids["id"]) != listed.id:
        raise WireError("job", f"scontrol printed {text[:80]!r} for the job {listed.id}")
    at = _skip(text, ids.end(), listed.name, listed)
    user = _match(_USER, text, at, listed)
    at = _skip(text, user.end(), listed.account, listed)
    qos = _match(_QOS, text, at, listed)
    at = qos.end()
    if text.startswith(" WCKey=", at):
        at = _skip(text, at + len(" WCKey="), listed.wckey, listed)
    state = _match(_STATE, text, at, listed)
    end = text.find(_END_OF_NODES, state.end())
    own = text[state.end() : end if end >= 0 else None]
    lines = tuple((match[1], parse_gres(match[2])) for match in _NODE_LINE.finditer(own))
    if len(lines) > MAX_NODE_LINES:
        raise WireError("job", f"job {listed.id} has more than {MAX_NODE_LINES} lines of nodes")
    return JobRecord(
        listed=listed,
        array_job=ids["array"] or "",
        array_task=ids["task"] or "",
        het_job=ids["het"] or "",
        het_offset=ids["offset"] or "",
        user=_user(user[1], user[2]),
        qos=_present(qos[1]),
        partition=_value(own, "Partition"),
        state=state[1],
        started=_time(_value(own, "StartTime")),
        nodes=_number(_value(own, "NumNodes").partition("-")[0]),
        gpus=_gpus(own),
        gres=lines,
    )


def gres_on(job: JobRecord, node: str) -> tuple[GresUse, ...]:
    """Return the GRES that a job has on a node.

    Raises:
        WireError: if a host list is malformed.
    """
    return tuple(item for hosts, items in job.gres if contains(hosts, node) for item in items)


def parse_names(data: bytes) -> tuple[str, ...]:
    """Return the node names of `scontrol show aliases`."""
    names = data.decode(errors="replace").split()
    return tuple(dict.fromkeys(name for name in names if len(name) <= 256))


def parse_config(data: bytes) -> ClusterConfig:
    """Return the configuration of `scontrol show config`."""
    text = data.decode(errors="replace")
    cluster = _CLUSTER.search(text)
    folder = _CONF.search(text)
    return ClusterConfig(_present(cluster[1]).lower() if cluster else "", folder[1] if folder else "")


def _item(name: str, kind: str, count: int, detail: str) -> GresUse:
    if detail.startswith("IDX:"):
        return GresUse(name, kind, count, _indexes(detail.removeprefix("IDX:")))
    shares = [_SHARE.match(piece) for piece in detail.split(",")]
    if detail and all(shares):  # used/total of each index
        used = [(index, int(match[1])) for index, match in enumerate(shares) if match is not None and int(match[1])]
        return GresUse(name, kind, count, tuple(index for index, _ in used), tuple(number for _, number in used))
    return GresUse(name, kind, count)


def _indexes(text: str) -> tuple[int, ...]:
    if text in ("", "N/A"):
        return ()
    found: dict[int, None] = {}
    for piece in text.split(","):
        match = _INDEX.match(piece)
        if match is None:
            raise WireError("gres", f"{text[:80]!r} is no list of indexes")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(found) + last - first >= MAX_INDEXES:
            raise WireError("gres", f"{text[:80]!r}: descending, or more than {MAX_INDEXES} indexes")
        found.update(dict.fromkeys(range(first, last + 1)))
    return tuple(found)


def _skip(text: str, at: int, expected: str, job: ListedJob) -> int:
    if not text.startswith(f"{expected} ", at):
        raise WireError("job", f"job {job.id}: a name differs between squeue and scontrol")
    return at + len(expected)


def _match(pattern: re.Pattern[str], text: str, at: int, job: ListedJob) -> re.Match[str]:
    match = pattern.match(text, at)
    if match is None:
        raise WireError("job", f"job {job.id}: unknown format of scontrol at {text[at : at + 40]!r}")
    return match


def _user(name: str, number: str) -> str:
    """Return the name of a user; empty if scontrol does not find it on this machine and prints that of another user."""
    return "" if name == _UNKNOWN_USER and number not in _UNKNOWN_USER_IDS else name


def _value(text: str, key: str) -> str:
    match = re.search(rf"(?:\A|\s){re.escape(key)}=(\S*)", text)
    return _present(match[1]) if match else ""


def _present(text: str) -> str:
    return "" if text == "(null)" else text


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def _time(text: str) -> int | None:
    """Return a time printed in seconds since 1970. Local time without a zone is not unique, so it is not used."""
    return int(text) * _SECOND if text.isascii() and text.isdigit() and len(text) <= 11 else None


def _gpus(text: str) -> int:
    total = sum(item.count for item in parse_gres(_value(text, "JOB_GRES")) if item.name == "gpu")
    if total:
        return total
    match = re.search(r"(?:AllocTRES|TRES)=\S*gres/gpu=(\d{1,9})\b", text)
    return int(match[1]) if match else 0
