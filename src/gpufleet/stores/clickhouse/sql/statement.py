"""Asking a person's statement, on a handle of its own that may only read, within bounds.

Whether a person's statement may be asked: by what the engine itself takes it for. Pure.

The engine writes the statement anew (`formatQuery`: one statement, no comments) and tells how it parses
(`EXPLAIN AST`); neither of them runs anything of it. Every line of that tree has to be of a kind that is known to be
harmless, every function one of a list, every table a view of ours. What is run is what the engine wrote, so there is
no second reading of the text that could differ.

Functions that a person's statement may call, by name in lower case.

Everything else is refused, also what a newer engine brings: among its functions are some that read files (`file`), ask
other servers, tell of the process, run programs, sleep, or make a gigabyte out of a number (`repeat`, `range`).
"""

import datetime as dt
import importlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gpufleet.model.api.sql import Selected, SqlLimits
from gpufleet.model.errors import SqlError
from gpufleet.stores.clickhouse.connection.client import ZONE, Handle
from gpufleet.stores.clickhouse.sql.views import VIEWS

_OPERATORS = """
and or not xor equals notequals less greater lessorequals greaterorequals isnull isnotnull isdistinctfrom
isnotdistinctfrom in notin like notlike ilike notilike match between if multiif casewithexpression caseexpression
coalesce ifnull nullif assumenotnull tonullable iszeroornull plus minus multiply divide modulo negate intdiv
intdivorzero moduloorzero abs sign concat arrayelement tupleelement array tuple map exists lambda cast
"""

_NUMBERS = """
round floor ceil ceiling trunc truncate sqrt exp log log2 log10 pow power greatest least isnan isinf isfinite
bitand bitor bitxor bitnot bitshiftleft bitshiftright bittest width_bucket
"""

_TEXTS = """
length lengthutf8 lower upper lowerutf8 upperutf8 trim trimleft trimright ltrim rtrim trimboth substring substr
substringutf8 left right position positioncaseinsensitive startswith endswith empty notempty replace replaceall
replaceone splitbychar splitbystring extract reverse concatwithseparator concat_ws hastoken
"""

_TIMES = """
now now64 today yesterday todate todate32 todatetime todatetime64 parsedatetimebesteffort
parsedatetimebesteffortornull parsedatetime64besteffort parsedatetime64besteffortornull tounixtimestamp
tounixtimestamp64nano tounixtimestamp64milli fromunixtimestamp fromunixtimestamp64nano toyear toquarter tomonth
todayofmonth todayofweek todayofyear tohour tominute tosecond tostartofyear tostartofquarter tostartofmonth
tostartofweek tostartofday tostartofhour tostartofminute tostartofsecond tostartoffiveminutes tostartoffiveminute
tostartoftenminutes tostartoffifteenminutes tostartofinterval tomonday toisoweek toisoyear toyyyymm toyyyymmdd
datediff timediff age dateadd datesub adddays addhours addminutes addseconds addweeks addmonths addyears
subtractdays subtracthours subtractminutes subtractseconds subtractweeks subtractmonths subtractyears datetrunc
date_trunc date_diff formatdatetime tointervalsecond tointervalminute tointervalhour tointervalday tointervalweek
tointervalmonth tointervalquarter tointervalyear totimezone
"""

_CONVERSIONS = """
toint8 toint16 toint32 toint64 touint8 touint16 touint32 touint64 tofloat32 tofloat64 tostring tobool
toint64ornull touint64ornull tofloat64ornull toint64orzero touint64orzero tofloat64orzero todecimal64
formatreadablesize formatreadablequantity formatreadabletimedelta totypename
"""

_ARRAYS = """
has hasany hasall indexof countequal arraycount arraysum arrayavg arraymin arraymax arraymap arrayfilter arrayexists
arrayall arrayfirst arraylast arraysort arrayreversesort arraydistinct arrayuniq arraystringconcat arrayslice
arrayconcat arrayzip arrayjoin arrayenumerate arraycompact arraydifference mapkeys mapvalues mapcontains
"""

_AGGREGATES = """
count sum avg min max any anylast argmin argmax median stddevpop stddevsamp varpop varsamp covarpop corr
quantile quantiles quantileexact quantilesexact quantiletdigest quantilestdigest quantiletiming uniq uniqexact
uniqcombined uniqhll12 grouparray groupuniqarray topk sumwithoverflow sumkahan avgweighted deltasum
deltasumtimestamp boundingratio simplelinearregression first_value last_value
"""

_WINDOWS = "row_number rank dense_rank percent_rank ntile lag lead laginframe leadinframe nth_value"

_COMBINED = frozenset(_AGGREGATES.split())

FUNCTIONS = frozenset(
    f"{_OPERATORS} {_NUMBERS} {_TEXTS} {_TIMES} {_CONVERSIONS} {_ARRAYS} {_AGGREGATES} {_WINDOWS}".split()
)
"""Names as they are."""


def is_allowed(name: str) -> bool:
    """Tell whether a function may be called: one of the list, or an aggregate of it with `If` or `Distinct`."""
    lower = name.lower()
    if lower in FUNCTIONS:
        return True
    return any(lower.endswith(end) and lower.removesuffix(end) in _COMBINED for end in ("if", "distinct", "distinctif"))


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


_NAMES = frozenset(view.name for view in VIEWS)

_VERSION = re.compile(r"\s*\((?:version [\d.]+[^)]*|official build)\)")


def settings_of(limits: SqlLimits) -> dict[str, Any]:
    """Return the settings of the handle. `readonly` comes last: nothing is changed after it."""
    return {
        "session_timezone": ZONE,
        "max_execution_time": limits.seconds,
        "timeout_overflow_mode": "throw",
        "max_memory_usage": limits.memory_bytes,
        "max_result_rows": limits.rows,
        "max_result_bytes": limits.result_bytes,
        "result_overflow_mode": "throw",
        "max_threads": limits.threads,
        "max_query_size": 1 << 16,
        "max_parser_depth": 200,
        "max_ast_depth": 200,
        "max_ast_elements": 5_000,
        "max_expanded_ast_elements": 50_000,
        "max_subquery_depth": 20,
        # What does not fit into memory fails: it does not fill the disk that the hub's log is on.
        "max_bytes_before_external_group_by": 0,
        "max_bytes_ratio_before_external_group_by": 0,
        "max_bytes_before_external_sort": 0,
        "max_bytes_ratio_before_external_sort": 0,
        "allow_ddl": 0,
        "allow_introspection_functions": 0,
        "readonly": 1,
    }


def select(handle: Handle, text: str) -> Selected:
    """Check a statement, and ask it.

    Raises:
        SqlError: if it is refused, wrong, or came to more than it may.
    """
    check_text(text)
    errors = importlib.import_module("clickhouse_connect.driver.exceptions")
    try:
        (row,) = handle.query("SELECT formatQuerySingleLine({q:String})", parameters={"q": text}).result_rows
        written: str = row[0]
        check_written(written)
        # In parentheses there is no INTO OUTFILE, no FORMAT, and no second statement.
        tree = handle.query(f"EXPLAIN AST SELECT * FROM ({written})").result_rows  # noqa: S608 - as checked
        tables = handle.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
        check_tree([line for (line,) in tree], _NAMES, [name for (name,) in tables])
        found = handle.query(written)
        columns = list(zip(found.column_names, (kind.name for kind in found.column_types), strict=True))
        if not columns:  # the embedded engine says nothing of columns without rows
            described = handle.query(f"DESCRIBE ({written})").result_rows
            columns = [(row[0], row[1]) for row in described]
    except errors.DatabaseError as error:
        raise SqlError(_words(error)) from error
    return Selected(
        columns=tuple(name for name, _ in columns),
        types=tuple(kind for _, kind in columns),
        rows=[tuple(map(_cell, row)) for row in found.result_rows],
    )


def _cell(value: Any) -> Any:
    """Give an instant the zone that all of ours are in, and what JSON has no kind for a text."""
    match value:
        case dt.datetime():
            return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value
        case None | str() | int() | float() | dt.date():
            return value
        case list() | tuple():
            return [_cell(one) for one in value]
        case dict():
            return {key if isinstance(key, str | int) else str(_cell(key)): _cell(one) for key, one in value.items()}
        case bytes():  # a FixedString
            return value.decode("utf-8", "replace")
        case _:
            return str(value)


def _words(error: Exception) -> str:
    text = _VERSION.sub("", " ".join(str(error).split()))
    return text.split("DB::Exception: ")[-1].strip()[:500]
