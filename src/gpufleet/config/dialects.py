"""Under whose names readings are shown, as a configuration says it."""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

DialectName = Literal["native", "dcgm", "all-smi", "nvidia-gpu-exporter", "kubevirt", "gpufleet", "dcgm-exporter"]
Dialects = Annotated[tuple[DialectName, ...], msgspec.Meta(min_length=1, max_length=7)]

OtlpDialects = Annotated[tuple[Literal["otel", "l9gpu"], ...], msgspec.Meta(min_length=1, max_length=2)]
"""Names that only OTLP can carry."""

_FULL_NAMES = {"native": "gpufleet", "dcgm": "dcgm-exporter"}


def full_names(dialects: Iterable[str]) -> tuple[str, ...]:
    """Return the dialects by their own names, each once."""
    return tuple(dict.fromkeys(_FULL_NAMES.get(name, name) for name in dialects))
