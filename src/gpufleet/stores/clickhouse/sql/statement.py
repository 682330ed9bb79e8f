"""Execution of users' SQL statements: checks by the engine's own parser, an allow-list, and a read-only handle.

The engine reformats the statement (`formatQuery`: one statement, no comments) and parses it (`EXPLAIN AST`); neither
executes it. Every node of the tree must be of an allowed kind, every function on a list, and every table one of the SQL
views. The reformatted text is executed, so no second parser can read it differently.

Other functions are rejected, including those of newer engines: some read files (`file`), query other servers, expose
the process, run programs, sleep, or turn a number into a gigabyte (`repeat`, `range`).
"""

import datetime as dt
import importlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gpufleet.model.api.sql import QueryResult, SqlLimits
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
"""Allowed functions, in lower case."""


def is_allowed(name: str) -> bool:
    """Return whether a function is allowed: on the list, or a listed aggregate with `If` or `Distinct`."""
    lower = name.lower()
    if lower in FUNCTIONS:
        return True
    return any(lower.endswith(end) and lower.removesuffix(end) in _COMBINED for end in ("if", "distinct", "distinctif"))


MAX_BYTES = 10_000
"""Maximum size of a statement."""

_NODES = """
SelectWithUnionQuery SelectIntersectExceptQuery SelectQuery ExpressionList Subquery WithElement Asterisk
QualifiedAsterisk TablesInSelectQuery TablesInSelectQueryElement TableExpression TableJoin ArrayJoin TableIdentifier
Identifier Literal Function OrderByElement WindowDefinition WindowListElement
"""

ALLOWED_NODES = frozenset(_NODES.split())
"""Allowed tree nodes. Excluded: `Set` (settings), `ColumnsApplyTransformer` (its function is not in the tree)."""

_TOKENS = re.compile(r"""'(?:[^'\\]|\\.|'')*'|`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*\"""", re.DOTALL)
_LINE = re.compile(r"(?P<indent> *)(?P<kind>[A-Za-z]+)(?: (?P<rest>.*))?", re.DOTALL)


def check_text(text: str) -> None:
    """Reject a text before the engine parses it. Raises SqlError."""
    if not text.strip():
        raise SqlError("the statement is empty")
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise SqlError(f"the statement exceeds {MAX_BYTES} bytes")
    if "\0" in text:
        raise SqlError("the statement contains a zero byte")


def check_formatted(formatted: str) -> None:
    """Reject reformatted text that is not a plain SELECT. Raises SqlError."""
    if not re.match(r"\(*(SELECT|WITH)\b", formatted):
        raise SqlError("only SELECT is allowed: GET /v1/query lists the views")
    for token in _TOKENS.findall(formatted):
        if not token.startswith("'") and ("\\" in token or not token.isprintable()):
            raise SqlError(f"a name must not contain escapes: {token[:100]}")
    if re.search(r"\bWITH TOTALS\b", _TOKENS.sub("''", formatted)):
        raise SqlError("WITH TOTALS is not allowed, because its row is not part of a result: use WITH ROLLUP")


def check_tree(lines: Sequence[str], views: Collection[str], tables: Iterable[str]) -> None:
    """Reject a statement with a forbidden node, function or table.

    Args:
        lines: lines of `EXPLAIN AST`.
        views: readable views.
        tables: all tables of the database. Any other name is defined by the statement (`WITH name AS`) or undefined.

    Raises:
        SqlError: with the name of the forbidden part.
    """
    hidden = frozenset(tables) - frozenset(views)
    nodes = [_node(line) for line in lines]
    for place, (_, kind, rest) in enumerate(nodes):
        if kind not in ALLOWED_NODES:
            raise SqlError(f"{kind} is not allowed: write a SELECT over the views, without settings")
        if kind == "Function":
            name = rest.partition(" ")[0]
            if not is_allowed(name):
                raise SqlError(f"the function {name[:100]!r} is not allowed")
            if name.lower() in ("in", "notin") and _names_a_table(nodes, place):
                raise SqlError("IN requires a list in parentheses, or a SELECT")
        if kind == "TableIdentifier":
            name = rest.partition(" ")[0]
            if "." in name or name in hidden:
                raise SqlError(f"{name[:100]!r} cannot be read: the views are {', '.join(sorted(views))}")


def _node(line: str) -> tuple[int, str, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise SqlError("the statement cannot be parsed")
    return len(found["indent"]), found["kind"], found["rest"] or ""


def _names_a_table(nodes: Sequence[tuple[int, str, str]], place: int) -> bool:
    """Return whether the second argument of a function is a bare name, which after IN can be a table."""
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


def limit_settings(limits: SqlLimits) -> dict[str, Any]:
    """Return the settings of the restricted handle. `readonly` is last, because it forbids further changes."""
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
        # A statement that exceeds memory fails; it must not spill to the disk with the hub's log.
        "max_bytes_before_external_group_by": 0,
        "max_bytes_ratio_before_external_group_by": 0,
        "max_bytes_before_external_sort": 0,
        "max_bytes_ratio_before_external_sort": 0,
        "max_bytes_before_external_join": 0,
        "max_bytes_ratio_before_external_join": 0,
        # A row of an outer join without a match has no value, and not 0, an empty text or 1970.
        "join_use_nulls": 1,
        # A condition on a cluster or machine selects subjects: only their samples are read.
        "enable_join_runtime_filters_index_analysis": 1,
        "allow_ddl": 0,
        "allow_introspection_functions": 0,
        "readonly": 1,
    }


def run_statement(handle: Handle, text: str) -> QueryResult:
    """Check and run a statement.

    Raises:
        SqlError: if the statement is rejected, wrong or exceeds a limit.
    """
    check_text(text)
    errors = importlib.import_module("clickhouse_connect.driver.exceptions")
    try:
        (row,) = handle.query("SELECT formatQuerySingleLine({q:String})", parameters={"q": text}).result_rows
        formatted: str = row[0]
        check_formatted(formatted)
        # Parentheses exclude INTO OUTFILE, FORMAT and a second statement.
        tree = handle.query(f"EXPLAIN AST SELECT * FROM ({formatted})").result_rows  # noqa: S608 - as checked
        tables = handle.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
        check_tree([line for (line,) in tree], _NAMES, [name for (name,) in tables])
        found = handle.query(formatted)
        columns = list(zip(found.column_names, (kind.name for kind in found.column_types), strict=True))
        if not columns:  # the embedded engine returns no columns without rows
            described = handle.query(f"DESCRIBE ({formatted})").result_rows
            columns = [(row[0], row[1]) for row in described]
    except errors.DatabaseError as error:
        raise SqlError(_message(error)) from error
    return QueryResult(
        columns=tuple(name for name, _ in columns),
        types=tuple(kind for _, kind in columns),
        rows=[tuple(map(_cell, row)) for row in found.result_rows],
    )


def _cell(value: Any) -> Any:
    """Set UTC on instants without a zone, and convert values without a JSON type to text."""
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


def _message(error: Exception) -> str:
    text = _VERSION.sub("", " ".join(str(error).split()))
    return text.split("DB::Exception: ")[-1].strip()[:500]
