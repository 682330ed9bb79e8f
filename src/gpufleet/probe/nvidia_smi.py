"""Availability and latency of nvidia-smi, and the facts that it reports about driver and GPUs."""

import asyncio
import re
from collections.abc import Mapping

from gpufleet.codecs.nvidia_smi import classify_failure, parse_csv, parse_listing
from gpufleet.fleet.board import MIG_MODES, is_vgpu_guest
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.errors import WireError
from gpufleet.model.reading import Value
from gpufleet.model.view import normalise_pci_address
from gpufleet.probe.facts import FactList
from gpufleet.probe.measurements import MeasurementKind, MeasurementList
from gpufleet.probe.records import Better, MeasuredUnit
from gpufleet.probe.runner import CommandOutcome, CommandRunner, FixedCommand

TIMEOUT_SECONDS = 60.0
"""Time limit of a call. Without the persistence daemon, eight GPUs take more than 10 s."""

PAUSE_SECONDS = 0.1
"""Pause between repeated calls.

Calls within milliseconds share the state of the machine. Their spread is smaller than that between two captures, and a
comparison would find differences where nothing changed.
"""

COLD = MeasurementKind(
    name="nvidia_smi_cold",
    help="duration of the first plain call of nvidia-smi in the capture",
    unit=MeasuredUnit.SECONDS,
    better=Better.LOWER,
    tool="nvidia-smi",
)
WARM = MeasurementKind(
    name="nvidia_smi_warm",
    help="duration of the next plain calls of nvidia-smi",
    unit=MeasuredUnit.SECONDS,
    better=Better.LOWER,
    tool="nvidia-smi",
)

FIELDS = {
    "persistence_mode": "gpu_persistence_mode",
    "mig.mode.current": "gpu_mig_mode",
    "ecc.mode.current": "gpu_ecc_mode",
    "enforced.power.limit": "gpu_power_limit_watts",
    "clocks.max.sm": "gpu_sm_clock_max_hertz",
}
"""Query field to fact."""

COLUMNS = ("pci.bus_id", "driver_version", "name", *FIELDS)
FACTORS = {"gpu_power_limit_watts": 1.0, "gpu_sm_clock_max_hertz": 1e6}
"""Facts that are numbers, and the factor to their unit."""

_CUDA = re.compile(rb"CUDA (?:UMD )?Version: {0,4}([0-9]{1,2}\.[0-9]{1,2})")
_NUMBER = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?) (?:W|MHz)", re.ASCII)


async def probe_nvidia_smi(
    runner: CommandRunner, repeats: int, facts: FactList, measurements: MeasurementList
) -> Absent | None:
    """Measure plain calls and read the facts; return why nvidia-smi does not work, or None."""
    first = await runner.run(_plain("nvidia_smi_cold"))
    failure = failure_of_call(first)
    measurements.add(COLD, failure or first.seconds)
    facts.add("nvidia_smi_exit_code", _exit_code(first), "nvidia-smi")
    if failure is not None:
        measurements.skip(WARM, failure)
        for name in ("nvidia_gpus", "nvidia_driver_version", "nvidia_cuda_version"):
            facts.add(name, failure, "nvidia-smi")
        return failure
    assert first.result is not None
    found = _CUDA.search(first.result.stdout[: 1 << 16])
    unseen = Absent(Reason.NOT_REPORTED, "the output has no CUDA version")
    facts.add("nvidia_cuda_version", unseen if found is None else found[1].decode(), "nvidia-smi")
    for number in range(repeats):
        await asyncio.sleep(PAUSE_SECONDS if number else 0)
        outcome = await runner.run(_plain("nvidia_smi_warm"))
        measurements.add(WARM, failure_of_call(outcome) or outcome.seconds)
    await _read_list(runner, facts)
    await _read_fields(runner, facts)
    return None


async def busy_gpus(runner: CommandRunner) -> Absent | None:
    """Return why GPU copies cannot be measured now: processes use the GPUs, or it is unknown. None if they are idle."""
    argv = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    outcome = await runner.run(FixedCommand(name="nvidia_smi_processes", argv=argv, timeout_seconds=TIMEOUT_SECONDS))
    if (failure := failure_of_call(outcome)) is not None:
        return failure
    assert outcome.result is not None
    try:
        busy = len(parse_csv(outcome.result.stdout, ("pid",)).rows)
    except WireError as error:
        return Absent(Reason.INVALID_VALUE, str(error))
    return Absent(Reason.NOT_COLLECTED, "processes use the GPUs: the copies would disturb them") if busy else None


def failure_of_call(outcome: CommandOutcome) -> Absent | None:
    """Return the reason and message of a failed call, or None."""
    if outcome.absent is not None:
        return outcome.absent
    assert outcome.result is not None
    result = outcome.result
    if result.exit_code == 0:
        return None
    failure = classify_failure(result.exit_code, result.stdout, result.stderr)
    return Absent(failure.reason, f"exit code {result.exit_code}: {failure.message}")


def _exit_code(outcome: CommandOutcome) -> int | Absent:
    """Return the exit code, or why the program did not run: a shell has a code of its own for a missing program."""
    if outcome.absent is not None:
        return outcome.absent
    assert outcome.result is not None
    return outcome.result.exit_code


async def _read_list(runner: CommandRunner, facts: FactList) -> None:
    outcome = await runner.run(
        FixedCommand(name="nvidia_smi_list", argv=("nvidia-smi", "-L"), timeout_seconds=TIMEOUT_SECONDS)
    )
    found: int | Absent | None = failure_of_call(outcome)
    if found is None:
        assert outcome.result is not None
        try:
            found = len(parse_listing(outcome.result.stdout).gpus)
        except WireError as error:
            found = Absent(Reason.INVALID_VALUE, str(error))
    facts.add("nvidia_gpus", found, "nvidia-smi -L")


async def _read_fields(runner: CommandRunner, facts: FactList) -> None:
    argv = ("nvidia-smi", f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader")
    outcome = await runner.run(FixedCommand(name="nvidia_smi_fields", argv=argv, timeout_seconds=TIMEOUT_SECONDS))
    source = "nvidia-smi --query-gpu"
    failure = failure_of_call(outcome)
    rows: tuple[dict[str, str], ...] = ()
    if failure is None:
        assert outcome.result is not None
        try:
            rows = parse_csv(outcome.result.stdout, COLUMNS).rows[:64]
        except WireError as error:
            failure = Absent(Reason.INVALID_VALUE, str(error))
    drivers = {row["driver_version"] for row in rows}
    drivers = {text for text in drivers if text_reason(text) is None} or drivers
    if len(drivers) == 1:
        facts.add("nvidia_driver_version", _field_value("nvidia_driver_version", drivers.pop()), source)
    else:
        facts.add(
            "nvidia_driver_version", failure or Absent(Reason.NO_DATA, "the output has no single version"), source
        )
    for row in rows:
        try:
            address = normalise_pci_address(row["pci.bus_id"])
        except ValueError:
            continue
        for name, value in _properties(row).items():
            facts.add(name, value, source, address)


def _properties(row: Mapping[str, str]) -> dict[str, Value | Absent]:
    """Return the facts about a GPU. What a vGPU guest cannot see is `not_in_guest`, as for the readers."""
    values = {name: _field_value(name, row[field]) for field, name in FIELDS.items()}
    if is_vgpu_guest(row["name"].strip(), None):
        values = {name: _in_guest(name, value) for name, value in values.items()}
    return values


def _in_guest(name: str, value: Value | Absent) -> Value | Absent:
    is_hidden = isinstance(value, Absent) and value.reason is Reason.NOT_SUPPORTED
    is_default = name in MIG_MODES and value == "Disabled"  # see `drop_defaults_of_guest`
    listed = any(case.reason is Reason.NOT_IN_GUEST for case in CATALOGUE[name].absent_when)
    return Absent(Reason.NOT_IN_GUEST, name) if listed and (is_hidden or is_default) else value


def _field_value(name: str, text: str) -> Value | Absent:
    reason = text_reason(text)
    if reason is not None:
        return Absent(reason, text.strip())
    if name not in FACTORS:
        return text.strip()
    found = _NUMBER.fullmatch(text.strip())
    return Absent(Reason.INVALID_VALUE, text) if found is None else float(found[1]) * FACTORS[name]


def _plain(name: str) -> FixedCommand:
    return FixedCommand(name=name, argv=("nvidia-smi",), timeout_seconds=TIMEOUT_SECONDS)
