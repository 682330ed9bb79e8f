"""Other projects' names beside ours as a reference page."""

import re
from collections.abc import Iterable

from gpufleet.dialects import l9gpu, nvitop_exporter
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect, Family
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.dialects.otel_names import HW, SYSTEM, UNREAD, OtelRow
from gpufleet.model.catalogue import CATALOGUE

PAGES = (DCGM_EXPORTER, ALL_SMI, NVIDIA_GPU_EXPORTER, KUBEVIRT)
TEXTS = {
    "all_smi_gpu_info": "written too",
    "nvidia_smi_gpu_info": "texts of a GPU, read and written",
}
"""Families of labels."""

_OF_GUESTS = (
    "Agents and hubs leave it alone: all of it is said of virtual machines by somebody else than these, and who a "
    "machine is, is not a label's to say."
)

_NAMED = re.compile(r"`gpufleet_(\w+)`")


def render_dialects_reference() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Names of other projects",
        "",
        "Rendered from the tables by `make docs`; do not edit.",
        "",
        "Ours has `gpufleet_` before it on `/metrics`; `{}` names one value of its dimension. A name without",
        "one of ours says why. Not believed: ours is written under that name, theirs is not read. Read only: another",
        "name of the same thing is written.",
        "",
    ]
    for dialect in PAGES:
        lines += _page(dialect)
    lines += _otel()
    lines += _l9gpu()
    lines += _section("nvitop-exporter", "Neither read nor written: only compared.")
    compared = [_row(name, _ours(metric), "") for name, metric in nvitop_exporter.OURS.items()]
    lines += _table(compared + [_row(name, "–", why) for name, why in nvitop_exporter.NONE_OF_OURS.items()])
    return "\n".join(lines).rstrip() + "\n"


def _page(dialect: Dialect) -> list[str]:
    words = f"`--dialect {_flag(dialect.name)}`; read by agents, hubs and `gpufleet decode`."
    if dialect is KUBEVIRT:
        words = f"`--dialect {_flag(dialect.name)}`; read by `gpufleet decode`. {_OF_GUESTS}"
    rows = [_row(family.name, _family_ours(family), _note(family)) for family in dialect.families.values()]
    rows += [_row(name, "–", TEXTS[name]) for name in dialect.special if name in TEXTS]
    rows += [_row(name, _instead(why), _also(name, why)) for name, why in dialect.unread.items()]
    return [*_section(dialect.name, words), *_table(rows)]


def _instead(why: str) -> str:
    """Return the metric of ours that the words name in its place."""
    named = [name for name in _NAMED.findall(why) if name in CATALOGUE]
    return _ours(named[0]) if named else "–"


def _also(name: str, why: str) -> str:
    return f"{why}; {TEXTS[name]}" if name in TEXTS else why


def _flag(name: str) -> str:
    return "dcgm" if name == DCGM_EXPORTER.name else name


def _family_ours(family: Family) -> str:
    return _ours(family.metric, family.labels)


def _ours(metric: str, labels: tuple[str, ...] = ()) -> str:
    said = ", ".join(f"{name}={value}" for name, value in zip(CATALOGUE[metric].dims, labels, strict=False))
    return f"`{metric}{{{said}}}`" if labels else f"`{metric}`"


def _note(family: Family) -> str:
    notes = []
    if family.times != family.over:
        notes.append(f"ours is theirs {_factor(family.times, family.over)}")
    if family.states:
        notes.append(", ".join(f"{number} {state}" for number, state in enumerate(family.states)))
    if family.zero is not None:
        notes.append(f"their 0 is `{family.zero}`")
    if family.unread:
        notes.append(f"not believed: {family.unread}")
    if not family.written:
        notes.append("read only")
    return "; ".join(notes)


def _factor(times: int, over: int) -> str:
    return f"× {times}" if over == 1 else f"/ {over}"


def _otel() -> list[str]:
    words = (
        "Names of OTLP, both ways. A metric that no convention has a name for is `gpufleet.` and its own, with its "
        "dimensions as attributes. A device is `hw.id`, with `hw.type` `gpu`."
    )
    rows = [_otel_row(row) for row in (*HW, *SYSTEM)]
    rows += [_row(name, "–", why) for name, why in UNREAD.items()]
    return [*_section("OpenTelemetry", words), *_table(rows)]


def _otel_row(row: OtelRow, note: str = "") -> str:
    attributes = [f"`{name}={value}`" for name, value in row.fixed] + [f"`{name}`" for name in row.dims]
    notes = [f"{row.instrument.replace('_', ' ')}, `{row.unit}`", *attributes]
    if row.times != row.over:
        notes.append(f"ours is theirs {_factor(row.times, row.over)}")
    if row.states:
        notes.append(f"1 for {', '.join(row.states)}")
    return _row(row.name, _ours(row.metric, row.labels), "; ".join([*notes, note] if note else notes))


def _l9gpu() -> list[str]:
    words = (
        "Names of OTLP: `[push.otlp] dialects`, read by hubs. Gauges all of them, as its own are. Not believed: ours "
        "is written under that name, theirs is not read."
    )
    rows = [_otel_row(row, f"not believed: {row.unread}" if row.unread else "") for row in l9gpu.L9GPU]
    written = {one.name: one.metric for one in (*l9gpu.QUOTIENTS, l9gpu.SUM)}
    for name, why in l9gpu.L9GPU_UNREAD.items():
        metric = written.get(name)
        rows.append(_row(name, _ours(metric), f"not believed: {why}") if metric else _row(name, _instead(why), why))
    rows += [_row(f"{prefix}*", "–", "of applications, not of devices") for prefix in l9gpu.L9GPU_PREFIXES]
    return [*_section("l9gpu", words), *_table(rows)]


def _section(title: str, words: str) -> list[str]:
    return [f"## {title}", "", words, ""]


def _table(rows: Iterable[str]) -> list[str]:
    return ["| theirs | ours | |", "|---|---|---|", *rows, ""]


def _row(theirs: str, ours: str, note: str) -> str:
    return f"| `{theirs}` | {ours} | {note} |"
