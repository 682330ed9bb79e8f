"""Whether a person's statement may be asked: by what the engine itself takes it for. Pure.

The engine writes the statement anew (`formatQuery`: one statement, no comments) and tells how it parses
(`EXPLAIN AST`); neither of them runs anything of it. Every line of that tree has to be of a kind that is known to be
harmless, every function one of a list, every table a view of ours. What is run is what the engine wrote, so there is
no second reading of the text that could differ.
"""

import re
from collections.abc import Collection, Iterable, Sequence

from gpufleet.model.errors import SqlError
from gpufleet.stores.clickhouse.sql.functions import is_allowed

MAX_BYTES = 10_000
"""Of a statement."""

_KINDS = """
SelectWithUnionQuery SelectIntersectExceptQuery SelectQuery ExpressionList Subquery WithElement Asterisk
QualifiedAsterisk TablesInSelectQuery TablesInSelectQueryElement TableExpression TableJoin ArrayJoin TableIdentifier
Identifier Literal Function OrderByElement WindowDefinition WindowListElement
"""

KINDS = frozenset(_KINDS.split())
"""Nodes of the tree. Not there: `Set` (settings), `ColumnsApplyTransformer` (whose function the tree does not tell)."""

_TOKENS = re.compile(r"""'(?:[^'\\]|\\.|'')*'|`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*\"""", re.DOTALL)
_LINE = re.compile(r"(?P<indent> *)(?P<kind>[A-Za-z]+)(?: (?P<rest>.*))?", re.DOTALL)


def check_text(text: str) -> None:
    """Refuse a text that the engine need not be asked about. Raises SqlError."""
    if not text.strip():
        raise SqlError("there is no statement")
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise SqlError(f"a statement has at most {MAX_BYTES} bytes")
    if "\0" in text:
        raise SqlError("a statement has no zero bytes")


def check_written(written: str) -> None:
    """Refuse what the engine wrote if it is no plain SELECT. Raises SqlError."""
    if not re.match(r"\(*(SELECT|WITH)\b", written):
        raise SqlError("only SELECT is taken: see the views that there are at GET /v1/query")
    for token in _TOKENS.findall(written):
        if not token.startswith("'") and ("\\" in token or not token.isprintable()):
            raise SqlError(f"a name has no escapes: {token[:100]}")


def check_tree(lines: Sequence[str], views: Collection[str], tables: Iterable[str]) -> None:
    """Refuse a statement by how it parses.

    Args:
        lines: of `EXPLAIN AST`.
        views: what may be read.
        tables: everything that there is under a plain name: what is not among it and no view is the statement's own
            (`WITH name AS`), or is nothing.

    Raises:
        SqlError: naming what may not be there.
    """
    hidden = frozenset(tables) - frozenset(views)
    nodes = [_node(line) for line in lines]
    for place, (_, kind, rest) in enumerate(nodes):
        if kind not in KINDS:
            raise SqlError(f"{kind} may not be in a statement: only SELECT over the views, without settings")
        if kind == "Function":
            name = rest.partition(" ")[0]
            if not is_allowed(name):
                raise SqlError(f"the function {name[:100]!r} may not be called")
            if name.lower() in ("in", "notin") and _names_a_table(nodes, place):
                raise SqlError("after IN there is a list in parentheses, or a SELECT")
        if kind == "TableIdentifier":
            name = rest.partition(" ")[0]
            if "." in name or name in hidden:
                raise SqlError(f"{name[:100]!r} may not be read: the views are {', '.join(sorted(views))}")


def _node(line: str) -> tuple[int, str, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise SqlError("the statement cannot be read")
    return len(found["indent"]), found["kind"], found["rest"] or ""


def _names_a_table(nodes: Sequence[tuple[int, str, str]], place: int) -> bool:
    """Tell whether the second argument of a function is a bare name, which after IN can be a table's."""
    depth = nodes[place][0]
    arguments = []
    for indent, kind, _ in nodes[place + 1 :]:
        if indent <= depth:
            break
        if indent == depth + 2:
            arguments.append(kind)
    return len(arguments) != 2 or arguments[1] in ("Identifier", "TableIdentifier")
