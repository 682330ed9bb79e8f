"""Benchmark documents of tests."""

import datetime as dt
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import msgspec

from gpufleet.bench.compare import LoadedCapture
from gpufleet.bench.document import BenchmarkDocument, CapturedMachine
from gpufleet.bench.folder import DIGESTS
from gpufleet.model.absence import Reason
from gpufleet.model.api.benchmarks import BENCHMARK_SCHEMA
from gpufleet.probe.measurements import describe
from gpufleet.probe.records import Better, CommandRecord, Fact, MeasuredUnit, Measurement, RawOutput

SCHEMA = Path(__file__).parents[2] / "docs/reference/benchmark.schema.json"
STARTED = dt.datetime(2026, 5, 1, 12, 0, 0, tzinfo=dt.UTC)
DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def measured(name: str = "fio_read_1m_bandwidth", values: tuple[float, ...] = (), **fields: Any) -> Measurement:
    """Return a measurement of fio, with statistics."""
    known = {
        "unit": MeasuredUnit.BYTES_PER_SECOND,
        "better": Better.HIGHER,
        "tool": "fio",
        "tool_version": "3.33",
        "arguments": ("--readonly", "--filename=TARGET"),
        "target": "/data/file",
    }
    return Measurement(name=name, values=values, statistics=describe(values), **{**known, **fields})


def document(*measurements: Measurement, **fields: Any) -> BenchmarkDocument:
    """Return a document of a bare-metal machine."""
    complete = BenchmarkDocument(
        schema=BENCHMARK_SCHEMA,
        name="host",
        version="0.1.0",
        started_at=STARTED,
        ended_at=STARTED + dt.timedelta(seconds=9),
        machine=CapturedMachine(name="node-1"),
        labels={},
        repeats=5,
        facts=(
            Fact(name="host_virtualization", value="none"),
            Fact(name="host_memory_bytes", value=1 << 40, unit=MeasuredUnit.BYTES),
            Fact(name="nvidia_driver_version", absent=Reason.NO_DRIVER, detail="nvidia-smi: no driver"),
        ),
        measurements=measurements,
        commands=(
            CommandRecord(
                name="fio_version",
                argv=("fio", "--version"),
                started_at=STARTED,
                duration_seconds=0.01,
                exit_code=0,
                stdout=DIGEST,
                stderr=DIGEST,
            ),
        ),
        outputs={DIGEST: RawOutput(bytes=0, text="")},
    )
    return msgspec.structs.replace(complete, **fields)


def loaded(*measurements: Measurement, file: str = "a.json", **fields: Any) -> LoadedCapture:
    """Return a capture from a file."""
    return LoadedCapture(file, document(*measurements, **fields))


def noisy(seed: str, *, names: int = 12, repeats: int = 5, factor: float = 1.0) -> tuple[Measurement, ...]:
    """Return measurements with values from one skewed distribution, times a factor."""
    source = random.Random(seed)
    return tuple(
        measured(f"fio_{number}", tuple(factor * 100 * source.lognormvariate(0, 0.2) for _ in range(repeats)))
        for number in range(names)
    )


def validate_captures(folder: Path) -> int:
    """Validate the captures that a command or a test wrote to a folder; return their number.

    A file is a capture if its digest is in `SHA256SUMS`. Files that a test planted or changed are none.

    Raises:
        jsonschema.ValidationError: if a capture does not follow the published schema.
    """
    schema = json.loads(SCHEMA.read_text())
    listed = {line.split("  ", 1)[0] for line in (folder / DIGESTS).read_text(errors="replace").splitlines()}
    captures = [
        content for path in folder.glob("*.json") if path.is_file() if digest_of(content := path.read_bytes()) in listed
    ]
    for content in captures:
        jsonschema.validate(json.loads(content), schema, format_checker=jsonschema.FormatChecker())
    return len(captures)


def digest_of(content: bytes) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(content).hexdigest()
