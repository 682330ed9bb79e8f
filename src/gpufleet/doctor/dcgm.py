"""Checks of a DCGM host engine by queries, without side effects on the engine."""

from collections import Counter

from gpufleet.codecs.dcgm_wire import commands, replies, requests
from gpufleet.codecs.dcgm_wire.codes import name_of
from gpufleet.codecs.dcgm_wire.commands import LATEST_FORMS, Latest
from gpufleet.codecs.dcgm_wire.values import GPU, Entity
from gpufleet.doctor.facts import CheckResult, CheckVerdict
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
from gpufleet.readers.dcgm.session import MAX_VERSION_LENGTH, SUPPORTED_MAJOR, latest_values, start_session

MAX_OFFSET_SECONDS = 5.0
"""Clock offset above which the check warns."""

_PROFILING = tuple(row.metric for row in activity.ROWS)
_PROFILING_FIXES = {
    "PAUSED": "another profiler uses the counters, and DCGM is paused for it: run `dcgmi profile --resume` afterwards",
    "NO_PERMISSION": "run the engine as root, or unset NVreg_RestrictProfilingToAdminUsers",
    "MODULE_NOT_LOADED": "install DCGM's proprietary package (datacenter-gpu-manager-4-proprietary) there",
    "PROFILING_NOT_SUPPORTED": "the chip has no such counters, or a vGPU or another profiler (Nsight) uses them",
    "PROFILING_LIBRARY_ERROR": "another profiler (Nsight, CUPTI) may use the counters: see the engine's log",
}
"""Remedies by error name in the engine's reply."""

_FIX = "check that nv-hostengine runs and listens at this address; an engine serves one transport only"
_FIXES = {
    ChannelProblem.NO_SUCH_VM: "check the CID of the virtual machine or the path of the socket. "
    "For an engine on this machine: it is not running",
    ChannelProblem.NOT_UP: "the machine is booting, paused, or has no vsock driver: see its console",
    ChannelProblem.NO_LISTENER: "the machine is reachable, the engine is not: check that nv-hostengine runs there with "
    "the drop-in for this port. An engine serves one transport only",
    ChannelProblem.NOT_PERMITTED: "run as the agent's user; it needs access to the socket file, and for vsock its unit "
    "needs RestrictAddressFamilies=AF_VSOCK",
}
"""Remedies by channel problem."""

_ENGINE_PROVES = "an engine at this address responds in the DCGM protocol"
_VERSION_PROVES = f"the engine has the structs of DCGM {SUPPORTED_MAJOR}.x, which are supported"
_FORMS_PROVE = "the engine returns latest values in a supported form"


async def examine_engine(address: str, dialer: Dialer, clock: Clock) -> tuple[CheckResult, ...]:
    """Query an engine for everything that the DCGM reader needs."""
    client = EngineClient(dialer)
    try:
        reply = await client.request(commands.VERSION, requests.version_request, replies.read_version)
        version = clean(reply.get("version", ""))[:MAX_VERSION_LENGTH]
        checks = [
            _check("engine", CheckVerdict.OK, _ENGINE_PROVES, f"DCGM {version or 'without a version'} at {address}")
        ]
        checks.append(_check_version(version))
        ids = await client.request(
            commands.ENTITIES, lambda n: requests.entities_request(n, GPU), replies.read_entities
        )
        checks.append(_check_gpus(ids))
        gpus = [Entity(GPU, id_) for id_ in ids]
        tried = {form: await _probe_form(client, form, gpus[:1]) for form in LATEST_FORMS}
        checks.append(_check_forms(tried))
        if gpus and _none_failed(checks):
            checks.append(_check_fields((await start_session(client, EVERY_FIELD)).unknown))
    except (ChannelError, WireError, EngineError) as error:
        return (_unreachable(error),)
    finally:
        await client.close()
    if gpus and _none_failed(checks):
        checks += await _check_lanes(DcgmReader(dialer, clock))
    return (*checks, _check_exposure(address))


def _none_failed(checks: list[CheckResult]) -> bool:
    return not any(check.verdict is CheckVerdict.FAILED for check in checks)


async def _probe_form(client: EngineClient, form: Latest, gpus: list[Entity]) -> str:
    """Return an empty text if the engine supports the form, else the name of its error."""
    try:
        await latest_values(client, form, gpus, (UUID,))
    except EngineError as error:
        return name_of(error.code)
    return ""


async def _check_lanes(reader: DcgmReader) -> list[CheckResult]:
    proves = "the engine provides the readings of this lane"
    checks = []
    try:
        for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
            found = await reader.read(lane)
            checks.append(_check_lane(lane, found, proves))
            if lane is Lane.FAST:
                checks += (_check_clock(found), _check_profiling(found), *_check_mig(found))
            elif lane is Lane.SLOW:
                checks.append(_check_xids(found))
    except ReaderError as error:
        checks.append(_check("readings", CheckVerdict.FAILED, proves, str(error), "see the engine's log"))
    finally:
        await reader.close()
    return checks


def _check_lane(lane: Lane, found: Round, proves: str) -> CheckResult:
    values = [
        value
        for sample in found.samples
        if sample.view is not None
        for metric, value in sample.values.items()
        if metric not in _PROFILING
    ]
    absent = Counter(value.reason for value in values if isinstance(value, Absent))
    present = len(values) - absent.total()
    text = f"{present} of {len(values)} readings" + "".join(f", {count} {why}" for why, count in absent.items())
    if found.errors:
        text += "; " + "; ".join(found.errors)
    verdict = CheckVerdict.FAILED if not present else CheckVerdict.WARNING if found.errors else CheckVerdict.OK
    return _check(f"readings, {lane}", verdict, proves, text)


def _check_clock(found: Round) -> CheckResult:
    proves = "the engine's clock agrees with this machine's; readings carry this machine's time in any case"
    (machine,) = [sample for sample in found.samples if sample.view is None]
    offset = machine.values["dcgm_clock_offset_seconds"]
    if isinstance(offset, Absent | str):
        return _check("clock", CheckVerdict.UNKNOWN, proves, "no value carried a time")
    verdict = CheckVerdict.OK if abs(offset) <= MAX_OFFSET_SECONDS else CheckVerdict.WARNING
    fix = "" if verdict is CheckVerdict.OK else "synchronise the clock of the engine's machine"
    return _check("clock", verdict, proves, f"{offset:+.3f} s", fix)


def _check_fields(unknown: frozenset[int]) -> CheckResult:
    proves = "the engine knows the requested fields; unknown fields are absent"
    if not unknown:
        return _check("fields", CheckVerdict.OK, proves, f"all {len(EVERY_FIELD)} known")
    ids = ", ".join(map(str, sorted(unknown)))
    return _check(
        "fields", CheckVerdict.OK, proves, f"{len(EVERY_FIELD) - len(unknown)} of {len(EVERY_FIELD)}, not {ids}"
    )


def _check_profiling(found: Round) -> CheckResult:
    """Check the first GPU: an engine that rejects profiling rejects it for all GPUs."""
    proves = "the engine samples profiling metrics"
    values = next((sample.values for sample in found.samples if sample.view is not None), {})
    readings = {metric: values[metric] for metric in _PROFILING if metric in values}
    absent = {metric: value for metric, value in readings.items() if isinstance(value, Absent)}
    if readings and not absent:
        return _check("profiling", CheckVerdict.OK, proves, f"all {len(readings)} readings")
    why = next(iter(absent.values()), None)
    if why is None:
        return _check("profiling", CheckVerdict.UNKNOWN, proves, "no GPU was reported")
    text = f"{len(readings) - len(absent)} of {len(readings)} readings; {why.reason}: {why.detail}"
    fix = next((fix for error, fix in _PROFILING_FIXES.items() if error in why.detail), "")
    is_expected = why.reason in (Reason.NOT_IN_GUEST, Reason.GPU_LOST) or len(absent) < len(readings)
    return _check(
        "profiling", CheckVerdict.OK if is_expected else CheckVerdict.WARNING, proves, text, "" if is_expected else fix
    )


def _check_xids(found: Round) -> CheckResult:
    proves = "the engine reports XIDs when they occur"
    watched = [sample.values.get(DRIVER_EVENTS) for sample in found.samples if sample.view is not None]
    if watched and all(value == 1 for value in watched if value is not None):
        return _check("XIDs", CheckVerdict.OK, proves, "watched")
    return _check(
        "XIDs", CheckVerdict.WARNING, proves, "the engine rejects the watch", "the kernel log has XIDs too: see kmsg"
    )


def _check_mig(found: Round) -> tuple[CheckResult, ...]:
    parts = [sample for sample in found.samples if sample.view is not None and sample.view.kind is ViewKind.MIG]
    if not parts:
        return ()
    proves = "GPUs in MIG mode are reported as MIG devices"
    named = ", ".join(
        f"{sample.values['mig_profile']}" for sample in parts if isinstance(sample.values["mig_profile"], str)
    )
    return (_check("MIG devices", CheckVerdict.OK, proves, f"{len(parts)}: {named}"),)


def _unreachable(error: GpufleetError) -> CheckResult:
    fix = _FIXES.get(error.problem, _FIX) if isinstance(error, ChannelError) else _FIX
    if isinstance(error, WireError):
        fix = "another service or protocol listens there: check the port of the engine"
    return _check("engine", CheckVerdict.FAILED, _ENGINE_PROVES, str(error), fix)


def _check_version(version: str) -> CheckResult:
    if version.partition(".")[0] == SUPPORTED_MAJOR:
        return _check("version", CheckVerdict.OK, _VERSION_PROVES, version)
    return _check(
        "version",
        CheckVerdict.FAILED,
        _VERSION_PROVES,
        version or "unknown",
        f"install DCGM {SUPPORTED_MAJOR}.x there",
    )


def _check_gpus(ids: list[int]) -> CheckResult:
    proves = "the engine has GPUs"
    if ids:
        return _check("GPUs", CheckVerdict.OK, proves, f"{len(ids)}: {', '.join(map(str, ids))}")
    return _check(
        "GPUs", CheckVerdict.FAILED, proves, "none", "check that nvidia-smi shows GPUs on the engine's machine"
    )


def _check_forms(tried: dict[Latest, str]) -> CheckResult:
    text = ", ".join(f"{form.command.name} {answer or 'yes'}" for form, answer in tried.items())
    known = [form for form, answer in tried.items() if not answer]
    if not known:
        return _check("latest values", CheckVerdict.FAILED, _FORMS_PROVE, text, "this version of DCGM is not supported")
    return _check("latest values", CheckVerdict.OK, _FORMS_PROVE, text)


def _check_exposure(address: str) -> CheckResult:
    proves = "only this machine can reach the engine, as any client can change GPU settings"
    local = address.startswith(("unix://", "tcp://127.", "tcp://[::1]", "tcp://localhost:"))
    if local:
        return _check("exposure", CheckVerdict.OK, proves, "a local address")
    text = "the engine does not authenticate clients, on any transport"
    return _check("exposure", CheckVerdict.WARNING, proves, text, "let only this host reach it: docs of the channel")


def _check(name: str, verdict: CheckVerdict, proves: str, found: str, fix: str = "") -> CheckResult:
    return CheckResult(name=name, verdict=verdict, proves=proves, found=found, fix=fix)
