"""All documents: links, commands, options, configuration, code blocks, routes and metric names exist or parse."""

import configparser
import itertools
import json
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import typer
import yaml

from gpufleet.cli.app import UsageError, app
from gpufleet.config.agent import AgentConfig
from gpufleet.config.cluster import ClusterAgentConfig
from gpufleet.config.guests import read_guest
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import ConfigProblemsError, leaves, resolve
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.native import NATIVE
from gpufleet.fleet.rules.table import RULES
from gpufleet.rules.rule import RecordingRule, RuleInput
from gpufleet.rules.selection import rule_groups
from gpufleet.web.hub.access import ACCESS
from gpufleet.wiring.contract import load_contract

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("README.md")),
    *sorted((ROOT / "src").rglob("README.md")),
]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
every_page = pytest.mark.parametrize("name", TEXTS)


class Code(NamedTuple):
    """Code block of a page: its language, and its text without the indentation."""

    language: str
    text: str


def blocks(name: str, *languages: str) -> list[Code]:
    """Return the code blocks of a page in these languages."""
    found = []
    for indent, language, body in BLOCK.findall(TEXTS[name]):
        text = "".join(f"{line.removeprefix(indent)}\n" for line in body.splitlines())
        if language in languages:
            found.append(Code(language, text))
    return found


def prose(name: str) -> str:
    """Return a page without its code blocks."""
    return BLOCK.sub("", TEXTS[name])


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and PyPI create them."""
    found: set[str] = set()
    used: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} +(.*?) *$", BLOCK.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{anchor}-{used[anchor]}" if used[anchor] else anchor)
        used[anchor] += 1
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@every_page
def test_links_lead_to_files_and_headings(name: str) -> None:
    text, page = re.sub(r"`[^`\n]*`", "", prose(name)), ROOT / name
    targets = re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\))?[^()\s]*)\)", text)
    targets += re.findall(r"^\[[^\]]+\]: (\S+)", text, re.MULTILINE)
    targets += re.findall(r'<(?:img|a)\b[^>]*\b(?:src|href)="([^"]+)"', text)
    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            assert target.startswith(("https://", "http://127.0.0.1", "mailto:")), target
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8"))
        ):
            broken.append(target)
    assert broken == []


@every_page
def test_named_files_of_the_repository_exist(name: str) -> None:
    named = re.findall(r"`((?:benchmarks|contract|deploy|docs|src|tests|tools)/[\w./-]+)`", TEXTS[name])
    assert {one for one in named if not (ROOT / one).exists()} - {"benchmarks/bench_NAME.py"} == set()


FOREIGN_PATHS = (
    *("/latest/", "/computeMetadata/", "/metadata/instance/"),  # metadata services
    *("/ui/", "/v1/snapshot"),  # pages of an agent; files of a hub's page
    "/api/v2/alerts",  # Alertmanager
)
"""Paths that are not in the hub's table of routes."""


@every_page
def test_routes_exist(name: str) -> None:
    routes = {(method, re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path))) for method, path in ACCESS}
    found = re.findall(r"\b(GET|PUT|POST|DELETE) (/[\w/{}.-]*)", TEXTS[name])
    local = r"https?://(?:127\.0\.0\.1|localhost|hub(?:\.example)?):(?:8470|9470|9480)(/[\w/{}.-]+)"
    found += [("", path) for path in re.findall(local, TEXTS[name])]
    wrong = [
        f"{method} {path}"
        for method, path in found
        if not path.startswith(FOREIGN_PATHS)
        and not any(method in (own, "") and route.fullmatch(path) for own, route in routes)
    ]
    assert wrong == []


PUNCTUATION = "|&;<>()"
PREFIXES = re.compile(r"sudo|exec|\$|[A-Z_]+=.*")
"""Parts of a command before its program."""


def shell_lines(code: Code) -> Iterator[str]:
    """Yield the lines that are commands; continued lines, and lines within quotes, are one."""
    text = ""
    for line in code.text.replace("\\\n", " ").splitlines():
        is_command = code.language == "sh" or line.startswith(("$ ", "# ")) or text
        if not is_command:
            continue
        text += line if code.language == "sh" or text else line[2:]
        try:
            shlex.split(text, comments=True)
        except ValueError:
            text += " "
        else:
            yield text.strip()
            text = ""


def commands(name: str) -> list[list[str]]:
    """Return the arguments of each `gpufleet` command in the shell blocks of a page."""
    found = []
    for code in blocks(name, "sh", "console"):
        for line in shell_lines(code):
            for parts in simple_commands(line):
                own = list(itertools.dropwhile(PREFIXES.fullmatch, parts))
                own = own[own.index("--") + 1 :] if own[:1] == ["kubectl"] and "--" in own else own
                if own[1:] and own[0].rpartition("/")[2] == "gpufleet":
                    found.append(own[1:])
    return found


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the parts of each command of a line, without comments and redirections."""
    lexer = shlex.shlex(re.sub(r"\d(?=>)", "", line), posix=True, punctuation_chars=PUNCTUATION)
    lexer.commenters = "#"
    lexer.wordchars += "$%@{}:,+[]!^…"
    parts: list[str] = []
    for part in lexer:
        if part and set(part) <= set(PUNCTUATION):
            yield parts
            parts = [] if not set(part) & {"<", ">"} else ["file"]
        else:
            parts.append(part)
    yield parts


def parse(arguments: Iterable[str]) -> None:
    """Parse a command line without running it; fail as the command would."""
    command: Any = typer.main.get_command(app)
    rest, context = list(arguments), None
    while True:
        context = command.make_context(command.name or "gpufleet", rest, parent=context, help_option_names=["--help"])
        rest = [*context._protected_args, *context.args] if hasattr(command, "commands") else []
        if not rest:
            return
        _, command, rest = command.resolve_command(context, rest)


@every_page
def test_commands_of_shell_blocks_parse(name: str) -> None:
    wrong = []
    for arguments in commands(name):
        try:
            parse(arguments)
        except UsageError as error:
            wrong.append(f"gpufleet {shlex.join(arguments)}: {type(error).__name__} {error}")
    assert wrong == []


@every_page
def test_shell_blocks_have_a_valid_syntax(name: str) -> None:
    for code in blocks(name, "sh"):
        done = subprocess.run(["bash", "-n"], input=code.text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{code.text}\n{done.stderr}"
        assert not re.search(r"\S {4,}--", code.text), f"a line break without a backslash: {code.text}"


@every_page
def test_commands_and_options_in_prose_exist(name: str) -> None:
    wrong = []
    for text in re.findall(r"`gpufleet ([a-z][^`]*)`", prose(name)):
        command: Any = typer.main.get_command(app)
        for part in text.split():
            if hasattr(command, "commands") and part in command.commands:
                command = command.commands[part]
            elif part.startswith("--"):
                known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
                if part.partition("=")[0].rstrip(",") not in known | {"--help"}:
                    wrong.append(f"gpufleet {text}: {part}")
            elif hasattr(command, "commands") and part.isalpha() and part.islower():
                wrong.append(f"gpufleet {text}: {part}")
    assert wrong == []


def test_commands_of_the_documents_are_found() -> None:
    assert sum(len(commands(name)) for name in TEXTS) > 200
    assert all(commands(name) for name in TEXTS if re.match(r"docs/(faq|contract|onboarding/.*)\.md", name))


@pytest.mark.parametrize("line", ["query nodes --nope", "quer", "contract check --on nowhere", "contract lint a b"])
def test_wrong_command_does_not_parse(line: str) -> None:
    with pytest.raises(UsageError):
        parse(line.split())


CONFIGURATIONS: Mapping[str, tuple[type[msgspec.Struct], str]] = {
    "agent": (AgentConfig, "GPUFLEET_AGENT_"),
    "hub": (HubConfig, "GPUFLEET_HUB_"),
    "cluster-agent": (ClusterAgentConfig, "GPUFLEET_CLUSTER_AGENT_"),
}


@every_page
def test_toml_blocks_are_valid_for_a_daemon(name: str, tmp_path: Path) -> None:
    for number, code in enumerate(blocks(name, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(code.text)
        named = re.search(r"(agent|hub|cluster-agent)\.toml", code.text.partition("\n")[0])
        problems = []
        for daemon, (record, prefix) in CONFIGURATIONS.items():
            if named is not None and named[1] != daemon:
                continue
            try:
                resolve(record, file=file, env_prefix=prefix, env={}, flags={})
            except ConfigProblemsError as error:
                problems.append(f"{daemon}: {error}")
            else:
                break
        else:
            if "guests.d/" in code.text.partition("\n")[0]:
                assert read_guest(file).channels
                continue
            pytest.fail("\n".join(problems))


KEYS = {key for record, _ in CONFIGURATIONS.values() for key, _ in leaves(record)}
TABLES = {key.rsplit(".", depth)[0] for key in KEYS for depth in range(1, key.count(".") + 1)}
CHART = yaml.safe_load((ROOT / "deploy/helm/gpufleet/values.yaml").read_text(encoding="utf-8"))


def items_of(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each key of nested mappings."""
    for key, value in values.items():
        yield f"{above}{key}", value
        if isinstance(value, dict):
            yield from items_of(value, f"{above}{key}.")


CHART_KEYS = frozenset(key for key, _ in items_of(CHART))
OPEN_ENDED = tuple(f"{key}." for key, value in items_of(CHART) if value == {} or key.endswith("Selector"))
NAMES = {one.id for one in RULES} | {one.id for one in load_contract().items}
OTHER_NAMES = {"hub.clock_behind_seconds", "holders.detail", "kubevirt.io"}
"""Fields of answers and domains that look like keys of a configuration."""

FILE = re.compile(r".*\.(toml|yaml|crt|key|env|py|sqlite)")


@every_page
def test_keys_of_configurations_in_prose_exist(name: str) -> None:
    known = KEYS | TABLES | CHART_KEYS | NAMES | OTHER_NAMES
    first = {one.partition(".")[0] for one in KEYS | CHART_KEYS}
    named = re.findall(r"`([a-z][A-Za-z_]*(?:\.[A-Za-z_0-9]+)+)(?:[:=] ?[^`]*| = [^`]*)?`", prose(name))
    named = [one for one in named if one.partition(".")[0] in first and not FILE.fullmatch(one)]
    for table, key in re.findall(r"`\[+([a-z_.]+)\]+(?: ([a-z_0-9]+))?[^`]*`", prose(name)):
        named.append(f"{table}.{key}" if key else table)
    assert set(named) - known == set()


@every_page
def test_blocks_of_chart_values_have_keys_of_the_chart(name: str) -> None:
    for code in blocks(name, "yaml"):
        content = yaml.safe_load(code.text)
        if isinstance(content, dict) and content.keys() & {"cluster", "tier", "agent", "sendTo"}:
            keys = {key for key, _ in items_of(content) if not key.startswith(OPEN_ENDED)}
            assert keys - CHART_KEYS == set()


@every_page
def test_named_variables_are_options_of_a_daemon(name: str) -> None:
    found = re.findall(r"\bGPUFLEET_(?:AGENT|HUB|CLUSTER_AGENT)_[A-Z0-9_]*[A-Z0-9]\b", TEXTS[name])
    known = {
        f"{prefix}{key.upper().replace('.', '__')}"
        for record, prefix in CONFIGURATIONS.values()
        for key, _ in leaves(record)
    }
    assert set(found) - known == set()
    others = set(re.findall(r"\bGPUFLEET_(?!AGENT_|HUB_|CLUSTER_AGENT_)[A-Z0-9_]*[A-Z0-9]\b", TEXTS[name]))
    assert others <= {"GPUFLEET_CA", "GPUFLEET_TOKEN_FILE", "GPUFLEET_ALLOW_SKIPS", "GPUFLEET_UPDATE_GOLDEN"}


def parse_ini(text: str) -> None:
    parser = configparser.ConfigParser(strict=False, allow_no_value=True, interpolation=None)
    parser.read_string(text if text.lstrip("#\n ").startswith("[") else f"[block]\n{text}")


PARSERS: Mapping[str, Callable[[str], object]] = {
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "json": json.loads,
    "xml": ET.fromstring,
    "ini": parse_ini,
    "python": lambda text: compile(text, "block", "exec", dont_inherit=True),
}


@every_page
def test_other_blocks_parse(name: str) -> None:
    for code in blocks(name, *PARSERS):
        PARSERS[code.language](code.text)


def test_every_language_of_a_block_is_checked() -> None:
    languages = {language for name in TEXTS for _, language, _ in BLOCK.findall(TEXTS[name])}
    assert languages <= {*PARSERS, "sh", "console", "toml", *EXECUTED, "text", ""}


EXECUTED = {
    "promql": {"docs/holders.md", "docs/reference/rules.md"},
    "sql": {"docs/operations/databases.md", "docs/reference/store.md"},
}
"""Languages that other tests execute, and their pages."""


def test_queries_are_on_pages_whose_queries_are_executed() -> None:
    for language, pages in EXECUTED.items():
        assert {name for name in TEXTS if blocks(name, language)} == pages


RECORDED = {
    rule.record for group in rule_groups(set(RuleInput)) for rule in group.rules if isinstance(rule, RecordingRule)
}
SOURCES = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "src").rglob("*.py")))
SERIES = frozenset(re.findall(r"gpufleet_[a-z0-9_]+", SOURCES))
"""Names in the code: series of holders and of the daemons themselves."""

PARTS = frozenset(re.findall(r"[a-z0-9_]+", SOURCES))
NAME_PREFIXES = re.compile(r"gpufleet_(?:relay_|hub_(?:notify_|forward_|findings_)?)")
"""Prefixes that the code adds to names of series."""


def is_series(name: str) -> bool:
    """Return whether an agent, hub or collector has series of this name."""
    if name in NATIVE.families or name in NATIVE.special or name in NATIVE.unread or name in SERIES:
        return True
    return any(name.removeprefix(one) in PARTS for one in prefixes_of(name))


def prefixes_of(name: str) -> Iterator[str]:
    """Yield the prefixes of a name, the longest first."""
    found = NAME_PREFIXES.match(name)
    if found is not None:
        yield found[0]
        yield f"{'_'.join(found[0].split('_')[:2])}_"


@every_page
def test_metric_names_are_known(name: str) -> None:
    text = TEXTS[name]
    recorded = set(re.findall(r"(?<![\w:])(?:gpu|node|vm|cluster|pod|namespace):[a-z0-9_]+(?::[a-z0-9_]+)+", text))
    assert recorded - RECORDED == set()
    own = set(re.findall(r"(?<![\w./:-])gpufleet_[a-z0-9_]*[a-z0-9]\b(?![*_(/.:]|\.py)", text))
    assert {one for one in own if not is_series(one)} == set()
    fields = set(re.findall(r"\bDCGM_FI_[A-Z0-9_]*[A-Z0-9]\b(?![*_])", text))
    assert {one for one in fields if not DCGM_EXPORTER.knows(one)} == set()


def test_each_symptom_and_question_has_a_command() -> None:
    table = TEXTS["docs/operations/troubleshooting.md"].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "symptom" not in line]
    assert len(rows) > 10
    assert [row for row in rows if "`gpufleet " not in row.split(" | ")[1]] == []
    questions = re.split(r"^### ", TEXTS["docs/faq.md"], flags=re.MULTILINE)[1:]
    assert [one.partition("\n")[0] for one in questions if "```sh\n" not in one] == []


BROKEN: Mapping[str, tuple[Callable[..., None], str]] = {
    "missing page": (test_links_lead_to_files_and_headings, "[a](nope.md)"),
    "missing heading": (test_links_lead_to_files_and_headings, "[a](agent.md#nope)"),
    "missing image": (test_links_lead_to_files_and_headings, "![a](images/nope.png)"),
    "missing image in HTML": (test_links_lead_to_files_and_headings, '<img alt="a" src="images/nope.png">'),
    "missing reference": (test_links_lead_to_files_and_headings, "[a][b]\n\n[b]: nope.md"),
    "missing file": (test_named_files_of_the_repository_exist, "`src/gpufleet/nope.py`"),
    "missing route": (test_routes_exist, "`GET /v1/nope`"),
    "wrong method": (test_routes_exist, "`PUT /v1/fleet`"),
    "missing route in a command": (test_routes_exist, "```sh\ncurl http://127.0.0.1:8470/v1/nope\n```"),
    "missing command": (test_commands_of_shell_blocks_parse, "```sh\nsudo gpufleet nope\n```"),
    "missing option": (test_commands_of_shell_blocks_parse, "```console\n$ gpufleet query nodes --nope\n```"),
    "missing command in prose": (test_commands_and_options_in_prose_exist, "`gpufleet query nope`"),
    "missing top command in prose": (test_commands_and_options_in_prose_exist, "`gpufleet nope`"),
    "missing option in prose": (test_commands_and_options_in_prose_exist, "`gpufleet query nodes --nope`"),
    "shell syntax": (test_shell_blocks_have_a_valid_syntax, "```sh\nfor i in; do\n```"),
    "lost line break": (test_shell_blocks_have_a_valid_syntax, "```sh\nhelm upgrade a      --values b\n```"),
    "missing key": (test_toml_blocks_are_valid_for_a_daemon, "```toml\n[hub]\nnope = 1\n```"),
    "missing key in prose": (test_keys_of_configurations_in_prose_exist, "`readers.host.nope`"),
    "missing table in prose": (test_keys_of_configurations_in_prose_exist, "`[nope]`"),
    "missing key of a table in prose": (test_keys_of_configurations_in_prose_exist, "`[hub] nope`"),
    "missing chart value in prose": (test_keys_of_configurations_in_prose_exist, "`clusterAgent.nope: true`"),
    "missing chart value": (
        test_blocks_of_chart_values_have_keys_of_the_chart,
        "```yaml\ntier: 3\nagent: {nope: 1}\n```",
    ),
    "missing variable": (test_named_variables_are_options_of_a_daemon, "`GPUFLEET_AGENT_NOPE`"),
    "missing variable of commands": (test_named_variables_are_options_of_a_daemon, "`GPUFLEET_NOPE`"),
    "YAML": (test_other_blocks_parse, "```yaml\na: [\n```"),
    "JSON": (test_other_blocks_parse, '```json\n{"a": }\n```'),
    "Python": (test_other_blocks_parse, "```python\nif:\n```"),
    "missing metric": (test_metric_names_are_known, "`gpufleet_nope_total`"),
    "missing metric of the hub": (test_metric_names_are_known, "`gpufleet_hub_nope_total`"),
    "missing recorded metric": (test_metric_names_are_known, "`gpu:nope:ratio`"),
    "missing field of DCGM": (test_metric_names_are_known, "`DCGM_FI_DEV_NOPE`"),
}
"""Kind of a defect to the check that finds it and a page that has it."""


@pytest.mark.parametrize("kind", BROKEN)
def test_each_check_finds_a_defect(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, text = BROKEN[kind]
    monkeypatch.setitem(TEXTS, "docs/broken.md", text)
    arguments = (tmp_path,) if check is test_toml_blocks_are_valid_for_a_daemon else ()
    with pytest.raises((AssertionError, pytest.fail.Exception, yaml.YAMLError, ValueError, SyntaxError)):
        check("docs/broken.md", *arguments)
