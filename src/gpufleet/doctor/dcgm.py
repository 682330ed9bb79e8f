"""Checks of a DCGM host engine, by asking it: nothing is changed, and nothing is left behind."""

from collections import Counter

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.codes import name_of
from gpufleet.codecs.dcgm_wire.commands import LADDER, Latest
from gpufleet.codecs.dcgm_wire.values import GPU, Entity
from gpufleet.doctor.check import Check, Verdict
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, GpufleetError, ReaderError, WireError
from gpufleet.model.round import Round
from gpufleet.ports import Clock, Dialer
from gpufleet.readers.dcgm.client import EngineClient, EngineError
from gpufleet.readers.dcgm.mapping import FIELDS
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.readers.dcgm.session import SPOKEN_MAJOR, latest

OFF_SECONDS = 5.0
"""A clock farther off than this is worth a word."""

_REACH = "an engine answers at this address, and speaks the protocol"
_VERSION = f"its structs are those of DCGM {SPOKEN_MAJOR}.x, which are known here"
_FORM = "it tells latest values in a form that is known here"


async def examine_engine(address: str, dialer: Dialer, clock: Clock) -> tuple[Check, ...]:
    """Ask an engine everything that its reader needs."""
    client = EngineClient(dialer)
    try:
        version = (await client.ask(commands.VERSION, requests.ask_version, replies.read_version)).get("version", "")
        checks = [_check("engine", Verdict.OK, _REACH, f"DCGM {version or 'without a version'} at {address}")]
        checks.append(_version(version))
        ids = await client.ask(commands.ENTITIES, lambda n: requests.ask_entities(n, GPU), replies.read_entities)
        checks.append(_gpus(ids))
        gpus = [Entity(GPU, id_) for id_ in ids]
        checks.append(_forms({form: await _tried(client, form, gpus[:1]) for form in LADDER}))
    except (ChannelError, WireError, EngineError) as error:
        return (_unreached(error),)
    finally:
        await client.close()
    if gpus and not any(check.verdict is Verdict.FAILED for check in checks):
        checks += await _readings(DcgmReader(dialer, clock))
    return (*checks, _exposed(address))


async def _tried(client: EngineClient, form: Latest, gpus: list[Entity]) -> str:
    """Return an empty text if the engine knows the form, else what it answers."""
    try:
        await latest(client, form, gpus, FIELDS[Lane.FAST][:1])
    except EngineError as error:
        return name_of(error.code)
    return ""


async def _readings(reader: DcgmReader) -> list[Check]:
    proves = "the engine's driver gives the readings of this lane"
    checks = []
    try:
        for lane in reader.lanes:
            found = await reader.read(lane)
            checks.append(_lane(lane, found, proves))
            if lane is Lane.FAST:
                checks.append(_clock(found))
    except ReaderError as error:
        checks.append(_check("readings", Verdict.FAILED, proves, str(error), "see the engine's own log"))
    finally:
        await reader.close()
    return checks


def _lane(lane: Lane, found: Round, proves: str) -> Check:
    values = [value for sample in found.samples if sample.view is not None for value in sample.values.values()]
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


def _unreached(error: GpufleetError) -> Check:
    mend = "is nv-hostengine running, and does it listen at this address? One engine serves one transport only"
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
