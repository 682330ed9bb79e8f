"""Diagrams of the documentation: SVG files that graphviz renders from `docs/diagrams/*.dot`.

python -m tools.diagrams DOT

A diagram follows the colour scheme of its reader. It has a digest of its source, the style and the drawing, by which
`tests/tools/test_diagrams.py` detects a change. Every graphviz gives a correct diagram; its places can differ.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "docs" / "diagrams"

STYLE = """
svg { color-scheme: light dark; }
text { font-family: Helvetica, Arial, "Liberation Sans", sans-serif; fill: #1c2330; }
.graph > polygon { fill: #ffffff; stroke: none; }
.place > polygon { fill: #f3f5f9; stroke: #b6bfce; }
.place > text { fill: #566176; font-weight: bold; }
.node path, .node polygon, .node ellipse { fill: #ffffff; stroke: #6b778d; stroke-width: 1.2; }
.own path { fill: #dcebff; stroke: #1f5fbf; }
.disk path, .disk polygon { fill: #fdf0d5; stroke: #a86b00; }
.consumer path { fill: #e2f4e4; stroke: #2c7a3a; }
.edge path { fill: none; stroke: #4a5568; stroke-width: 1.3; }
.edge polygon { fill: #4a5568; stroke: #4a5568; }
.pull path { stroke-dasharray: 5 3; }
.edge text { fill: #3d475a; stroke: #ffffff; stroke-width: 3; paint-order: stroke; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf2; }
  .graph > polygon { fill: #0f141c; }
  .place > polygon { fill: #171e2a; stroke: #46536a; }
  .place > text { fill: #a3afc4; }
  .node path, .node polygon, .node ellipse { fill: #1f2836; stroke: #8b98b0; }
  .own path { fill: #16345f; stroke: #6ea8ff; }
  .disk path, .disk polygon { fill: #47350f; stroke: #e0aa4a; }
  .consumer path { fill: #17401f; stroke: #72c583; }
  .edge path { stroke: #a9b4c8; }
  .edge polygon { fill: #a9b4c8; stroke: #a9b4c8; }
  .edge text { fill: #c7d0e0; stroke: #0f141c; }
}
"""
"""Style of every diagram: own parts, disks and consumers have colours, pulls are dashed."""


DIGEST = re.compile(r"<!-- sha256 of source, style and drawing: ([0-9a-f]{64}) -->\n")


def is_current(svg: str, source: str) -> bool:
    """Return whether a rendered diagram is unchanged, and that of the source and of the style."""
    found = DIGEST.search(svg)
    return found is not None and found[1] == _digest_of(source, DIGEST.sub("", svg, count=1))


def _digest_of(source: str, drawing: str) -> str:
    return hashlib.sha256(f"{source}{STYLE}{drawing}".encode()).hexdigest()


def render(source: str, dot: Path) -> str:
    """Return the SVG of a source, with style and digest.

    Raises:
        CalledProcessError: if graphviz refuses the source.
    """
    environment = os.environ | dict(_environment(dot))
    if "GVBINDIR" in environment:  # an unpacked graphviz has no list of its plugins
        subprocess.run([dot, "-c"], env=environment, check=True, capture_output=True)  # noqa: S603
    command: list[str | Path] = [dot, "-Tsvg"]
    done = subprocess.run(command, input=source, env=environment, text=True, capture_output=True, check=True)  # noqa: S603
    body = re.sub(r"^.*?(?=<svg)", "", done.stdout, flags=re.DOTALL)
    body = re.sub(r' font-family="[^"]*"', "", body)
    body = re.sub(r"<!-- .*? -->\n", "", body)
    drawing = body.replace(">", f">\n<style>{STYLE}</style>\n", 1)
    digest = _digest_of(source, drawing)
    return drawing.replace("<style>", f"<!-- sha256 of source, style and drawing: {digest} -->\n<style>", 1)


def _environment(dot: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables of a graphviz that is unpacked into a folder; none for an installed one."""
    root = dot.resolve().parents[2]
    plugins = [one for one in root.glob("usr/lib/*/graphviz") if root != Path("/")]
    if plugins:
        yield "GVBINDIR", str(plugins[0])
        yield "LD_LIBRARY_PATH", ":".join(map(str, [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]))


def main() -> None:
    """Render every diagram."""
    for file in sorted(SOURCES.glob("*.dot")):
        target = file.with_suffix(".svg")
        target.write_text(render(file.read_text(encoding="utf-8"), Path(sys.argv[1])), encoding="utf-8")
        print(target.relative_to(ROOT))  # noqa: T201 - a command's output


if __name__ == "__main__":
    main()
