"""The style check of `make lint`: wording of code and documentation, names, and commit subjects.

    python -m tools.style               # everything
    python -m tools.style src/gpufleet/hub docs/agent.md

The rules are those of CONTRIBUTING.md, "Style". Every finding names file, line, rule and the text that breaks it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", "tools", "tests", "benchmarks")
"""Folders whose Python files are checked."""
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "src", "deploy", "Makefile")
EXEMPT = frozenset({"tools/style.py", "tests/tools/test_style.py"})
"""Files that quote what they forbid."""

BANNED = {
    "tell": "report, show",
    "tells": "reports, shows",
    "told": "reported",
    "telling": "reporting",
    "teller": "reporter, source",
    "tellers": "reporters, sources",
    "say": "report, state, name",
    "says": "reports, states, names",
    "said": "reported, stated",
    "saying": "reporting",
    "word": "message, text, term",
    "words": "message, text, detail",
    "hear": "receive",
    "hears": "receives",
    "heard": "last seen, received",
    "deaf": "not ingesting",
    "silent": "without heartbeat",
    "ask": "query, request",
    "asks": "queries, requests",
    "asked": "queried, requested",
    "asking": "querying",
    "wants": "needs, requests",
    "forget": "expire, drop",
    "forgets": "expires, drops",
    "forgotten": "expired, dropped",
    "knock": "connect",
    "knocks": "connects",
    "stranger": "unauthenticated client",
    "strangers": "unauthenticated clients",
    "anew": "again, rebuilt",
    "lest": "so that ... not",
    "whereof": "of",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "mending": "fixing",
    "upkeep": "supervision",
    "crew": "worker pool",
    "crowd": "quota",
    "herd": "load generator",
    "nobody": "no client, no reader",
    "somebody": "a client",
    "anybody": "any client",
    "everybody": "every client",
}
PHRASES = {
    r"\bfor ever\b": "permanently",
    r"\bof which\b": "two sentences",
    r"\bthat which\b": "a noun",
    r"\bheld against\b": "counted as",
    r"\bwhat (?:waits|waited)\b": "backlog",
    r"\bwho (?:asks|sends|writes|posts|holds)\b": "client, sender, writer, holder",
    r"\bis (?:but|nothing but)\b": "is only",
    r"\bno more\b(?! than)": "no longer",
}
FOREIGN_NAMES = frozenset({"COMP_WORDS", '"nobody"', "nobody("})
"""Names that other programs define, here bash's completion, and a user of systems as SLURM prints it."""
OPENINGS = frozenset(
    {"who", "what", "whom", "whose", "that", "those", "one", "it", "is", "where", "when", "as", "how", "why"}
)
"""First words with which a docstring does not start: it starts with a noun or an imperative."""

MODULE_NAMES = frozenset(
    {
        "told",
        "heard",
        "held",
        "putting",
        "few",
        "met",
        "find",
        "settle",
        "heads",
        "handed",
        "crowd",
        "upkeep",
        "door",
        "showing",
        "asked",
        "asking",
        "making",
        "choosing",
        "lasting",
        "keeping",
        "holding",
        "judging",
        "listening",
        "rolling",
        "auditing",
        "recording",
        "words",
        "standing",
        "gathering",
        "meaning",
    }
)
SUBJECT_LENGTH = 65
SUBJECT = re.compile(r"^[\w./, -]+: [a-z]")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Problem(NamedTuple):
    """One place that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        """Return the finding as one line that editors can follow."""
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def check_text(path: str, line: int, text: str) -> Iterator[Problem]:
    """Find banned words and phrases in prose."""
    for name in FOREIGN_NAMES:
        text = text.replace(name, "_" * len(name))
    for found in re.finditer(r"[A-Za-z]+", text):
        if (better := BANNED.get(found.group().lower())) is not None:
            at = line + text.count("\n", 0, found.start())
            yield Problem(path, at, "word", f"{found.group()!r}: write {better}")
    for phrase, better in PHRASES.items():
        for found in re.finditer(phrase, text, re.IGNORECASE):
            at = line + text.count("\n", 0, found.start())
            yield Problem(path, at, "phrase", f"{found.group()!r}: write {better}")


def check_identifier(path: str, line: int, name: str) -> Iterator[Problem]:
    """Find banned words in the parts of a snake_case or CamelCase name."""
    if name in FOREIGN_NAMES:
        return
    for part in _WORDS.findall(name):
        if (better := BANNED.get(part.lower())) is not None:
            yield Problem(path, line, "name", f"{name!r} contains {part!r}: use {better}")


def check_code(path: str, source: str) -> Iterator[Problem]:
    """Check names, comments, strings and docstrings of one Python file."""
    seen: set[tuple[int, str]] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and (token.start[0], token.string) not in seen:
            seen.add((token.start[0], token.string))
            yield from check_identifier(path, token.start[0], token.string)
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from check_text(path, token.start[0], token.string)
    if path.startswith("tests/"):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            first = re.match(r"[A-Za-z]+", docstring or "")
            if first and first.group().lower() in OPENINGS:
                line = node.body[0].lineno
                yield Problem(
                    path, line, "docstring", f"starts with {first.group()!r}: start with a noun or an imperative"
                )


def check_classes(files: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Find class names that the product defines more than once; private ones count without their underscore."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, source in files:
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append((path, node.lineno))
    for name, found in sorted(places.items()):
        for path, line in found[1:]:
            yield Problem(path, line, "class", f"{name!r} is also defined in {found[0][0]}")


def check_subjects(root: Path = ROOT) -> Iterator[Problem]:
    """Check commit subjects since the last tag, or since this check was added."""
    since = _git(root, "describe", "--tags", "--abbrev=0") or _git(
        root, "log", "--diff-filter=A", "--format=%H", "-1", "--", "tools/style.py"
    )
    if not since:
        return
    for row in _git(root, "log", "--no-merges", "--format=%h %s", f"{since}..HEAD").splitlines():
        commit, subject = row.split(" ", 1)
        if len(subject) > SUBJECT_LENGTH:
            yield Problem(f"commit {commit}", 0, "subject", f"{len(subject)} characters, at most {SUBJECT_LENGTH}")
        if not SUBJECT.match(subject):
            yield Problem(f"commit {commit}", 0, "subject", f"{subject!r}: write 'package: imperative summary'")
        yield from check_text(f"commit {commit}", 0, subject)


def check(targets: Iterable[str] = (), root: Path = ROOT) -> Iterator[Problem]:
    """Check files below `targets`, or the whole repository with its commit subjects."""
    chosen = tuple(targets)
    product: list[tuple[str, str]] = []
    for path in _files(root):
        text = (root / path).read_text(encoding="utf-8")
        if path.startswith("src/") and path.endswith(".py"):
            product.append((path, text))
            if Path(path).stem in MODULE_NAMES and _chosen(path, chosen):
                yield Problem(path, 0, "module", f"{Path(path).stem!r}: name a module with a noun")
        if path in EXEMPT or not _chosen(path, chosen):
            continue
        if path.endswith(".py"):
            yield from check_code(path, text)
        else:
            yield from check_text(path, 1, text)
    yield from (problem for problem in check_classes(product) if _chosen(problem.path, chosen))
    if not chosen:
        yield from check_subjects(root)


def _chosen(path: str, targets: tuple[str, ...]) -> bool:
    return not targets or any(path == target or path.startswith(target.rstrip("/") + "/") for target in targets)


def _files(root: Path) -> Iterator[str]:
    listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for path in sorted(set(listed)):
        top = path.split("/", 1)[0]
        is_code = path.endswith(".py") and top in CODE
        is_prose = path.endswith((".md", "Makefile")) and top in PROSE
        if (is_code or is_prose) and (root / path).is_file():
            yield path


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> None:
    """Print every problem and exit with 1 if there is one."""
    problems = list(check(sys.argv[1:]))
    for problem in problems:
        print(problem)  # noqa: T201 - a command's output
    sys.exit(f"{len(problems)} places break the wording rules (CONTRIBUTING.md, Style)" if problems else 0)


if __name__ == "__main__":
    main()
