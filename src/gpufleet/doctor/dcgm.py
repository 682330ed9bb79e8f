"""Checks of a DCGM host engine, by asking it: nothing is changed, and nothing is left behind."""

from collections import Counter

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.codes import name_of
from gpufleet.codecs.dcgm_wire.commands import LADDER, Latest
from gpufleet.codecs.dcgm_wire.values import GPU, Entity
from gpufleet.doctor.facts import Check, Verdict
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import DRIVER_EVENTS
from gpufleet.model.errors import ChannelError, ChannelProblem, GpufleetError, ReaderError, WireError
from gpufleet.model.reading import Round
from gpufleet.model.text import clean
from gpufleet.model.view import ViewKind
from gpufleet.ports.channel import Dialer
from gpufleet.ports.clock import Clock
from gpufleet.readers.dcgm.client import EngineClient, EngineError
from gpufleet.readers.dcgm.mapping import activity
from gpufleet.readers.dcgm.mapping.device import EVERY_FIELD, UUID
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.readers.dcgm.session import SPOKEN_MAJOR, VERSION_LETTERS, latest, start

OFF_SECONDS = 5.0
"""A clock farther off than this is worth a word."""

_PROFILING = tuple(row.metric for row in activity.ROWS)
_PROFILING_MENDS = {
    "PAUSED": "another profiler has the counters, and paused DCGM for it: `dcgmi profile --resume` when it is done",
    "NO_PERMISSION": "run the engine as root, or lift NVreg_RestrictProfilingToAdminUsers",
    "MODULE_NOT_LOADED": "install DCGM's proprietary package (datacenter-gpu-manager-4-proprietary) there",
    "PROFILING_NOT_SUPPORTED": "the chip has no such counters, or a vGPU or another profiler (Nsight) holds them",
    "PROFILING_LIBRARY_ERROR": "another profiler (Nsight, CUPTI) may hold the counters: see the engine's own log",
}
"""What can be done, by a word of the engine's refusal."""

_MEND = "is nv-hostengine running, and does it listen at this address? One engine serves one transport only"
_MENDS = {
    ChannelProblem.NO_SUCH_VM: "is a virtual machine of this CID there, or does the socket have another path? "
    "An engine on this machine is not running",
    ChannelProblem.NOT_UP: "the machine boots, stands still, or has no vsock driver: look at its console",
    ChannelProblem.NOBODY_LISTENS: "the machine answers and no engine does: is nv-hostengine running there, with the "
    "drop-in that lets it listen at this port? One engine serves one transport only",
    ChannelProblem.NOT_PERMITTED: "run as the agent's user; a socket's file needs its rights, and for vsock its unit "
    "RestrictAddressFamilies=AF_VSOCK",
}
"""What can be done, by how far one came."""

_REACH = "an engine answers at this address, and speaks the protocol"
_VERSION = f"its structs are those of DCGM {SPOKEN_MAJOR}.x, which are known here"
_FORM = "it tells latest values in a form that is known here"


async def examine_engine(address: str, dialer: Dialer, clock: Clock) -> tuple[Check, ...]:
    """Ask an engine everything that its reader needs."""
    client = EngineClient(dialer)
    try:
        said = await client.ask(commands.VERSION, requests.ask_version, replies.read_version)
        version = clean(said.get("version", ""))[:VERSION_LETTERS]
        checks = [_check("engine", Verdict.OK, _REACH, f"DCGM {version or 'without a version'} at {address}")]
        checks.append(_version(version))
        ids = await client.ask(commands.ENTITIES, lambda n: requests.ask_entities(n, GPU), replies.read_entities)
        checks.append(_gpus(ids))
        gpus = [Entity(GPU, id_) for id_ in ids]
        tried = {form: await _tried(client, form, gpus[:1]) for form in LADDER}
        checks.append(_forms(tried))
        if gpus and _are_good(checks):
            checks.append(_fields((await start(client, EVERY_FIELD)).unknown))
    except (ChannelError, WireError, EngineError) as error:
        return (_unreached(error),)
    finally:
        await client.close()
    if gpus and _are_good(checks):
        checks += await _readings(DcgmReader(dialer, clock))
    return (*checks, _exposed(address))


def _are_good(checks: list[Check]) -> bool:
    return not any(check.verdict is Verdict.FAILED for check in checks)


async def _tried(client: EngineClient, form: Latest, gpus: list[Entity]) -> str:
    """Return an empty text if the engine knows the form, else what it answers."""
    try:
        await latest(client, form, gpus, (UUID,))
    except EngineError as error:
        return name_of(error.code)
    return ""


async def _readings(reader: DcgmReader) -> list[Check]:
    proves = "the engine's driver gives the readings of this lane"
    checks = []
    try:
        for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
            found = await reader.read(lane)
            checks.append(_lane(lane, found, proves))
            if lane is Lane.FAST:
                checks += (_clock(found), _profiling(found), *_parts(found))
            elif lane is Lane.SLOW:
                checks.append(_xids(found))
    except ReaderError as error:
        checks.append(_check("readings", Verdict.FAILED, proves, str(error), "see the engine's own log"))
    finally:
        await reader.close()
    return checks


def _lane(lane: Lane, found: Round, proves: str) -> Check:
    values = [
        value
        for sample in found.samples
        if sample.view is not None
        for metric, value in sample.values.items()
        if metric not in _PROFILING
    ]
    absent = Counter(value.reason for value in values if isinstance(value, Absent))
    told = len(values) - absent.total()
    words = f"{told} of {len(values)} readings" + "".join(f", {count} {why}" for why, count in absent.items())
    if found.errors:
        words += "; " + "; ".join(found.errors)
    verdict = Verdict.FAILED if not told else Verdict.WARNING if found.errors else Verdict.OK
    return _check(f"readings, {lane}", verdict, proves, words)


def _clock(found: Round) -> Check:
    proves = "the engine's clock agrees with this one; readings bear this machine's time in any case"
    (machine,) = [sample for sample in found.samples if sample.view is None]
    offset = machine.values["dcgm_clock_offset_seconds"]
    if isinstance(offset, Absent | str):
        return _check("clock", Verdict.UNKNOWN, proves, "no value carried a time")
    verdict = Verdict.OK if abs(offset) <= OFF_SECONDS else Verdict.WARNING
    mend = "" if verdict is Verdict.OK else "synchronise the clock of the engine's machine"
    return _check("clock", verdict, proves, f"{offset:+.3f} s", mend)


def _fields(unknown: frozenset[int]) -> Check:
    proves = "it knows the fields that are asked for; what it does not know is absent"
    if not unknown:
        return _check("fields", Verdict.OK, proves, f"all {len(EVERY_FIELD)} known")
    ids = ", ".join(map(str, sorted(unknown)))
    return _check("fields", Verdict.OK, proves, f"{len(EVERY_FIELD) - len(unknown)} of {len(EVERY_FIELD)}, not {ids}")


def _profiling(found: Round) -> Check:
    """Judge by the first GPU: what an engine refuses, it refuses for all that it watches."""
    proves = "it samples what the parts of the chip do, for us"
    values = next((sample.values for sample in found.samples if sample.view is not None), {})
    told = {metric: values[metric] for metric in _PROFILING if metric in values}
    absent = {metric: value for metric, value in told.items() if isinstance(value, Absent)}
    if told and not absent:
        return _check("profiling", Verdict.OK, proves, f"all {len(told)} readings")
    why = next(iter(absent.values()), None)
    if why is None:
        return _check("profiling", Verdict.UNKNOWN, proves, "no GPU was told of")
    words = f"{len(told) - len(absent)} of {len(told)} readings; {why.reason}: {why.detail}"
    mend = next((mend for word, mend in _PROFILING_MENDS.items() if word in why.detail), "")
    by_nature = why.reason in (Reason.NOT_IN_GUEST, Reason.GPU_LOST) or len(absent) < len(told)
    return _check("profiling", Verdict.OK if by_nature else Verdict.WARNING, proves, words, "" if by_nature else mend)


def _xids(found: Round) -> Check:
    proves = "it tells of XIDs as they happen"
    watched = [sample.values.get(DRIVER_EVENTS) for sample in found.samples if sample.view is not None]
    if watched and all(value == 1 for value in watched if value is not None):
        return _check("XIDs", Verdict.OK, proves, "watched")
    return _check(
        "XIDs", Verdict.WARNING, proves, "it refuses to watch them", "the kernel's log tells them too: see kmsg"
    )


def _parts(found: Round) -> tuple[Check, ...]:
    parts = [sample for sample in found.samples if sample.view is not None and sample.view.kind is ViewKind.MIG]
    if not parts:
        return ()
    proves = "GPUs in MIG mode are told of by their parts"
    named = ", ".join(
        f"{sample.values['mig_profile']}" for sample in parts if isinstance(sample.values["mig_profile"], str)
    )
    return (_check("MIG devices", Verdict.OK, proves, f"{len(parts)}: {named}"),)


def _unreached(error: GpufleetError) -> Check:
    mend = _MENDS.get(error.problem, _MEND) if isinstance(error, ChannelError) else _MEND
    if isinstance(error, WireError):
        mend = "something else listens there, or an engine of another protocol: which port is the engine's?"
    return _check("engine", Verdict.FAILED, _REACH, str(error), mend)


def _version(version: str) -> Check:
    if version.partition(".")[0] == SPOKEN_MAJOR:
        return _check("version", Verdict.OK, _VERSION, version)
    return _check("version", Verdict.FAILED, _VERSION, version or "none told", f"install DCGM {SPOKEN_MAJOR}.x there")


def _gpus(ids: list[int]) -> Check:
    proves = "there is something to read"
    if ids:
        return _check("GPUs", Verdict.OK, proves, f"{len(ids)}: {', '.join(map(str, ids))}")
    return _check("GPUs", Verdict.FAILED, proves, "none", "does nvidia-smi show GPUs on the engine's machine?")


def _forms(tried: dict[Latest, str]) -> Check:
    words = ", ".join(f"{form.command.name} {answer or 'yes'}" for form, answer in tried.items())
    known = [form for form, answer in tried.items() if not answer]
    if not known:
        return _check("latest values", Verdict.FAILED, _FORM, words, "this version of DCGM is not spoken here yet")
    return _check("latest values", Verdict.OK, _FORM, words)


def _exposed(address: str) -> Check:
    proves = "only this machine reaches the engine: whoever does can change its GPUs' settings"
    local = address.startswith(("unix://", "tcp://127.", "tcp://[::1]", "tcp://localhost:"))
    if local:
        return _check("who reaches it", Verdict.OK, proves, "a local address")
    words = "the engine asks nobody who they are, on any transport"
    return _check("who reaches it", Verdict.WARNING, proves, words, "let only this host reach it: docs of the channel")


def _check(name: str, verdict: Verdict, proves: str, found: str, mend: str = "") -> Check:
    return Check(name=name, verdict=verdict, proves=proves, found=found, mend=mend)
