"""Functions that a person's statement may call, by name in lower case.

Everything else is refused, also what a newer engine brings: among its functions are some that read files (`file`), ask
other servers, tell of the process, run programs, sleep, or make a gigabyte out of a number (`repeat`, `range`).
"""

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
