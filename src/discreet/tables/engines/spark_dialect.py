"""Writes the SQL nodes on which engines differ (the closed set in `tables.semantics`, imported as `d`) in
Spark's SQL.

The docstring of a node says what the SQL must compute. A `Writer` takes the SQL library's generator `g` and
the node, and returns the text.

The engine runs these texts with ANSI mode off: then no cast and no operator raises an error. Operations that
would silently wrap around or round are written in another way here. Three rules explain most of the rest.
Spark knows the type of an expression when it plans a query (`TYPEOF` is a constant): where a node takes texts
and numbers alike, both ways are written, and the planner keeps one. All rounding of doubles uses RINT, which
returns a double, however large it is. An argument that is used several times is written once (`once`).

Writes hashes and contribution bounding in Spark's SQL: the choices of which groups, values and rows of a
unit (the privacy unit) count. The nodes are those of `tables.semantics`, imported as `d`.

Every choice is a pure function of the values and the secret key of the hash, with ties broken by value, so
that a task gives the same result when Spark runs it again on another worker. Each choice reads rows in sorted
order, so that the rows of a unit are never all in memory at once. For totals this rests on two settings in
`spark`: the rule EliminateSorts, which would remove sorts below an aggregate, is excluded; and with
replaceHashWithSortAgg, rows that are sorted by their groups are aggregated in that order.

Columns have the names of `tables.semantics`: "u" is the unit, "j" the group, "h" the rank (a 64-bit sort key
made of a hash, and no position), "x0" the value, "o" the number of a row among equal rows.

Writes the nodes of the closed set (`tables.semantics`, imported as `d`) on texts and days in Spark's
SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generator import Generator

from .. import semantics as d
from ..dialect import Dialect, Writer, argument, canonical, content, template, word
from ..semantics import letter_cases


def _tagged_values(g: Generator, node: Any) -> str:
    """Write the values to hash, each preceded by a flag that says whether it is NULL: XXHASH64 skips NULL, so
    that (NULL, 1) and (1, NULL) would otherwise have the same hash."""
    values = [g.sql(value) for value in node.args["expressions"]]
    return ", ".join(f"{value} IS NULL, {value}" for value in values)


def _keyed_hash(g: Generator, node: Any) -> str:
    """Write a keyed hash. The key is written as a text, because Spark would put a number into the Java code
    that it generates, and compile that code anew for every query (0.4 of 2.8 CPU-seconds at a million rows).

    The hash is hashed once more as a margin, because xxHash64 is not a cryptographic hash. No measurement has
    shown that hashing once is not enough.
    """
    return f"XXHASH64(XXHASH64('{word(node.args['key'])}', {_tagged_values(g, node)}))"


def _rank(g: Generator, node: Any) -> str:
    """Write the hash with its last `bits` bits replaced by those of `low`."""
    keyed_hash, low, bits = argument(g, node, "this"), argument(g, node, "low"), int(node.args["bits"])
    return f"(({keyed_hash} & {-(1 << bits)}L) | CAST({low} AS BIGINT))"


def _smallest_ranks(g: Generator, node: Any) -> str:
    """Keep the rows of the n smallest different ranks "h" of each unit. Spark drops later ranks while it
    reads (WindowGroupLimit)."""
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    columns = "".join(f", `{word(name)}`" for name in node.args["columns"])
    numbered = (
        f"SELECT *, DENSE_RANK() OVER (PARTITION BY `u` ORDER BY `h`) AS `__n` FROM {source} "
        f"WHERE NOT `u` IS NULL"
    )
    return f"{alias} AS (SELECT `u`, `j`{columns} FROM ({numbered}) WHERE `__n` <= {n})"


def _chosen_totals(g: Generator, node: Any) -> str:
    """Shuffle rows by unit once, sort them by unit and rank, and add up and choose as they go by.

    Without these steps in the text, Spark would group by (unit, group) in a hash table on either side of a
    shuffle, then shuffle and sort the totals by unit. That takes three times the CPU time at ten million
    rows, most of which are the only one of their unit and group (docs/databases.md).

    "p" is a hash of the unit, so that it changes nothing to group and partition by it too. Sorting first by
    32 bits of "p" and 32 bits of "h" in one number is a hint that decides nothing: Spark has a radix sort
    for a single number, while comparing "p", "u" and "h" of rows that lie apart in memory takes most of the
    time. The sort that decides then finds its rows in order.
    """
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    amounts = argument(g, node, "amounts")
    names = ", ".join(f"`{word(amount.alias)}`" for amount in node.args["amounts"])
    for column in node.args["columns"]:
        # Not used in the text; called because `word` refuses a name that could end a quoted identifier.
        word(column)
    distributed = f"SELECT * FROM {source} WHERE NOT `u` IS NULL DISTRIBUTE BY `u`"
    with_sort_keys = (
        f"SELECT *, SHIFTRIGHT(XXHASH64(`u`), 32) AS `p`, {argument(g, node, 'rank')} AS `h` "
        f"FROM ({distributed})"
    )
    # Adding 2**31 to the upper half of "h" makes it a number without a sign, in the same order.
    hint = "SHIFTLEFT(`p`, 32) | (SHIFTRIGHT(`h`, 32) + 2147483648L)"
    ordered = f"SELECT * FROM (SELECT * FROM ({with_sort_keys}) SORT BY {hint}) SORT BY `p`, `u`, `h`, `j`"
    pairs = f"SELECT `p`, `u`, `h`, `j`, {amounts} FROM ({ordered}) GROUP BY `p`, `u`, `h`, `j`"
    numbered = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY `p`, `u` ORDER BY `h`) AS `__n` FROM ({pairs})"
    return f"{alias} AS (SELECT `j`, {names} FROM ({numbered}) WHERE `__n` <= {n})"


def _smallest_values(g: Generator, node: Any) -> str:
    """Keep the n values of each unit and group with the smallest `order`, ties by value."""
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    order = argument(g, node, "order")
    numbered = (
        f"SELECT `j`, `x0`, ROW_NUMBER() OVER (PARTITION BY `u`, `j` ORDER BY {order}, `x0`) AS `__n` "
        f"FROM {source}"
    )
    return f"{alias} AS (SELECT `j`, `x0` FROM ({numbered}) WHERE `__n` <= {n})"


def _smallest_rows(g: Generator, node: Any) -> str:
    """Keep the n rows of each unit and group with the smallest first 32 bits of `order`, ties by value, as
    `Rank` with 32 bits orders them on DuckDB. Equal rows are numbered by "o" from 0."""
    source, n, alias = (word(node.args[name]) for name in ("source", "n", "alias"))
    by = ", ".join(f"`{word(name)}`" for name in ("u", "j", *node.args["columns"], "x0"))
    order = argument(g, node, "order")
    occurrence = f"ROW_NUMBER() OVER (PARTITION BY {by} ORDER BY `x0`) - 1"
    occurrences = f"SELECT {by}, CAST({occurrence} AS BIGINT) AS `o` FROM {source}"
    weight = ", `w`" if "w" in node.args["columns"] else ""
    position = f"ROW_NUMBER() OVER (PARTITION BY `u`, `j` ORDER BY SHIFTRIGHT({order}, 32), `x0`)"
    numbered = f"SELECT `j`, `x0`{weight}, {position} AS `__n` FROM ({occurrences})"
    whole = "CAST(`x0` AS BIGINT) AS `x0`"
    return f"{alias} AS (SELECT `j`, {whole}{weight} FROM ({numbered}) WHERE `__n` <= {n})"


CHOICES: Mapping[type[exp.Expression], Writer] = {
    d.KeyedHash: _keyed_hash,
    d.Content: content("CAST({x} AS STRING)", "CAST(LENGTH({x}) AS STRING)", "CONCAT({parts})"),
    d.Rank: _rank,
    d.SmallestRanks: _smallest_ranks,
    d.ChosenTotals: _chosen_totals,
    d.SmallestValues: _smallest_values,
    d.SmallestRows: _smallest_rows,
}


_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
# The characters that DuckDB's TRIM removes: the space separators of Unicode (category Zs), as code points.
_TEXT_BLANKS = "".join(map(chr, (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))


# An argument of at most so many characters is repeated where it is used twice; Spark computes equal
# expressions once. Longer ones would make nested texts double with every level. The number is chosen by hand,
# not tuned.
_SHORT = 64


def once(value: str, body: Callable[[str], str]) -> str:
    """Return `body(value)`, where `body` may use the SQL text `value` several times. A long text is written
    once and bound to a lambda's variable."""
    if len(value) <= _SHORT:
        return body(value)
    return f"TRANSFORM(ARRAY({value}), __x -> {body('__x')})[0]"


def repeating(body: Callable[[str], str]) -> Writer:
    """Return a writer of a node with one argument, which `body` may use several times."""
    return lambda g, node: once(argument(g, node, "this"), body)


def text_of(g: Generator, value: str) -> str:
    """Return the SQL literal of a text."""
    return g.sql(exp.Literal.string(value))


def _matches(g: Generator, node: Any) -> str:
    """Match a pattern of LIKE, as a regular expression.

    Spark's LIKE tries all ways to place each %. Here every part between two % is matched at its first
    possible position and never moved (an atomic group). That finds a match if there is one, in time linear in
    the text's length. Patterns without _ use Spark's functions for prefixes, suffixes and substrings where
    they can.
    """
    text, pattern = argument(g, node, "this"), node.args["pattern"].name
    parts = pattern.split("%")
    first, last, middle = parts[0], parts[-1], [part for part in parts[1:-1] if part]
    if "_" not in pattern:
        if len(parts) == 1:
            return f"({text} = {text_of(g, pattern)})"
        if not middle and not first:
            return f"ENDSWITH({text}, {text_of(g, last)})"
        if not middle and not last:
            return f"STARTSWITH({text}, {text_of(g, first)})"
        if len(middle) == 1 and not first and not last:
            return f"CONTAINS({text}, {text_of(g, middle[0])})"
    inner = "".join(f"(?>.*?{_regex(part)})" for part in middle)
    end = "" if len(parts) == 1 else f".*{_regex(last)}"
    expression = rf"(?s)\A{_regex(first)}{inner}{end}\z"
    return f"({text} RLIKE {text_of(g, expression)})"


def _regex(part: str) -> str:
    """Return the regular expression of a part of a LIKE pattern that holds no %."""
    return "".join(
        "." if c == "_" else c if c.isascii() and c.isalnum() else rf"\x{{{ord(c):x}}}" for c in part
    )


def _case(*, upper: bool) -> Writer:
    """Return the writer of UPPER or LOWER, by DuckDB's pairs of characters.

    Spark's UPPER makes two characters of some. The public categories of a query are converted by DuckDB
    (`tables.semantics`), and the texts of rows must be converted in the same way.
    """

    def write(g: Generator, node: Any) -> str:
        old, new = (text_of(g, part) for part in letter_cases(upper=upper))
        return f"TRANSLATE({argument(g, node, 'this')}, {old}, {new})"

    return write


def _trim(g: Generator, node: Any) -> str:
    return f"TRIM(BOTH {text_of(g, _TEXT_BLANKS)} FROM {argument(g, node, 'this')})"


def _substring(g: Generator, node: Any) -> str:
    """Write a substring. Where `start` is below 1, the positions before the first character count towards
    `length` and give nothing."""
    text, start = argument(g, node, "this"), f"CAST({argument(g, node, 'start')} AS BIGINT)"
    begin = f"CAST(GREATEST({start}, 1) AS INT)"
    if not node.args.get("length"):
        return f"SUBSTRING({text}, {begin})"
    length = f"CAST({argument(g, node, 'length')} AS BIGINT)"
    return f"SUBSTRING({text}, {begin}, CAST(GREATEST(LEAST({length}, {length} + {start} - 1), 0) AS INT))"


def _date_part(g: Generator, node: Any) -> str:
    """Write a part of a date as a double."""
    day = argument(g, node, "this")
    parts = {
        "year": f"YEAR({day})",
        "quarter": f"QUARTER({day})",
        "month": f"MONTH({day})",
        "day": f"DAY({day})",
        "week": f"WEEKOFYEAR({day})",
        "dow": f"(DAYOFWEEK({day}) - 1)",
        "isodow": f"(WEEKDAY({day}) + 1)",
        "doy": f"DAYOFYEAR({day})",
    }
    return f"CAST({parts[node.args['part']]} AS DOUBLE)"


def _start_of(g: Generator, node: Any) -> str:
    day, unit = argument(g, node, "this"), node.args["unit"]
    units = {"year": "YEAR", "quarter": "QUARTER", "month": "MONTH", "week": "WEEK", "day": None}
    return f"CAST({day} AS DATE)" if units[unit] is None else f"TRUNC({day}, '{units[unit]}')"


def _named(function: str, names: tuple[str, ...]) -> Writer:
    """Return the writer of a day's or month's name: Spark's `function` numbers it from 1 in the order of
    `names`."""

    def write(g: Generator, node: Any) -> str:
        return _name_of(g, function, argument(g, node, "this"), names)

    return write


def _name_of(g: Generator, function: str, day: str, names: tuple[str, ...]) -> str:
    return f"ELT({function}({day}), {', '.join(text_of(g, name) for name in names)})"


def _padded(text: str, width: int) -> str:
    return f"LPAD(CAST({text} AS STRING), {width}, '0')"


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name[:3] for name in names)


def _day_text(g: Generator, node: Any) -> str:
    """Write a day in a format of strftime. A directive that is not listed raises KeyError, which
    `Dialect.write` turns into a refusal before anything is charged."""
    layout = node.args["format"].name
    return once(argument(g, node, "this"), lambda day: _formatted(g, layout, day))


def _formatted(g: Generator, layout: str, day: str) -> str:
    """Write the SQL text `day` in the format `layout`."""
    parts: list[str] = []
    # The characters since the last directive.
    pending = ""
    directives = {
        "Y": _padded(f"YEAR({day})", 4),
        "y": _padded(f"YEAR({day}) % 100", 2),
        "m": _padded(f"MONTH({day})", 2),
        "-m": f"CAST(MONTH({day}) AS STRING)",
        "d": _padded(f"DAY({day})", 2),
        "-d": f"CAST(DAY({day}) AS STRING)",
        "j": _padded(f"DAYOFYEAR({day})", 3),
        "-j": f"CAST(DAYOFYEAR({day}) AS STRING)",
        "A": _name_of(g, "DAYOFWEEK", day, _DAYS),
        "B": _name_of(g, "MONTH", day, _MONTHS),
        "a": _name_of(g, "DAYOFWEEK", day, _short(_DAYS)),
        "b": _name_of(g, "MONTH", day, _short(_MONTHS)),
        "u": f"CAST(WEEKDAY({day}) + 1 AS STRING)",
        "w": f"CAST(DAYOFWEEK({day}) - 1 AS STRING)",
    }
    position = 0
    while position < len(layout):
        if layout[position] != "%":
            pending, position = pending + layout[position], position + 1
            continue
        directive = (
            layout[position + 1 : position + 3]
            if layout[position + 1 : position + 2] == "-"
            else layout[position + 1 : position + 2]
        )
        position += 1 + len(directive)
        if directive == "%":
            pending += "%"
            continue
        parts += [*([text_of(g, pending)] if pending else []), directives[directive]]
        pending = ""
    parts += [text_of(g, pending)] if pending or not parts else []
    return f"CASE WHEN NOT {day} IS NULL THEN CONCAT({', '.join(parts)}) END"


TEXTS_AND_DAYS: Mapping[type[exp.Expression], Writer] = {
    d.Matches: _matches,
    d.UpperCase: _case(upper=True),
    d.LowerCase: _case(upper=False),
    d.Trim: _trim,
    d.Substring: _substring,
    d.Concat: template("SUBSTRING(CONCAT({this}, {expression}), 1, {max_length})"),
    d.Replace: template(
        "SUBSTRING(REPLACE(SUBSTRING({this}, 1, {max_length}), {old}, {new}), 1, {max_length})"
    ),
    d.Length: template("CAST(CHAR_LENGTH({this}) AS DOUBLE)"),
    d.DaysBetween: template("CAST(DATEDIFF({this}, {expression}) AS DOUBLE)"),
    d.AddDays: template("DATE_ADD({this}, CAST({expression} AS INT))"),
    # NULL beyond 240,000 months (20,000 years), where Spark could fail on a day; callers ask for fewer.
    d.AddMonths: template(
        "CASE WHEN {expression} BETWEEN -240000.0D AND 240000.0D "
        "THEN ADD_MONTHS({this}, CAST({expression} AS INT)) END"
    ),
    d.DatePart: _date_part,
    d.StartOf: _start_of,
    d.DayText: _day_text,
    d.DayName: _named("DAYOFWEEK", _DAYS),
    d.MonthName: _named("MONTH", _MONTHS),
}


_TYPES = {
    "double": "DOUBLE",
    "integer": "INT",
    "bigint": "BIGINT",
    # Holds 2**126, which is 8.5e37 (`WideSum`).
    "wide": "DECIMAL(38, 0)",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "text": "STRING",
}
_LARGEST = "1.7976931348623157E308D"
_INFINITE = ("inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
_NAN = ("nan", "+nan", "-nan")
_BLANKS = " \t\n\r\f\v"
# Letters of texts that Java reads as numbers and `semantics.NUMBER` does not: '1d', '1f', '0x1p3'.
_JAVA_ONLY = "dDfFxXpP"
# `semantics.DATE` in the syntax of Java's regular expressions.
_DAY = r"\A" + d.DATE.replace(r"\v", r"\x0b").replace("$", r"\z")
# An exponent of more than four digits.
_LONG_EXPONENT = "[eE][+-]?0*[1-9][0-9]{4}"
# A number with 39 digits before the point, and perhaps a fraction, which is not looked at.
_DIGITS_39 = r"\A[ \t\n\r\f\x0b]*([+-]?)0*([0-9]{39})(\.[0-4]?[0-9]*)?[ \t\n\r\f\x0b]*\z"
# Half of the 38 digits of a decimal: long division goes in two steps of so many (`_truncating_divide`).
_SPLIT = 10**19


def _convert(g: Generator, node: Any) -> str:
    return f"CAST({argument(g, node, 'this')} AS {_TYPES[node.args['to']]})"


def _by_type(value: str, of_text: Callable[[str], str], otherwise: str) -> str:
    """Return SQL that is `of_text` of the value where its type is a string, and `otherwise` where it is not;
    the type is known when the query is planned."""
    return f"IF(TYPEOF({value}) = 'string', {once(f'CAST({value} AS STRING)', of_text)}, {otherwise})"


def _number_of(g: Generator, text: str) -> str:
    """Write a text as a double; NULL where it is not a number by `semantics.SafeCast`."""
    infinities = ", ".join(text_of(g, value) for value in _INFINITE)
    nans = ", ".join(text_of(g, value) for value in _NAN)
    trimmed = f"LOWER(TRIM(BOTH {text_of(g, _BLANKS)} FROM {text}))"
    is_readable = f"TRANSLATE({text}, '{_JAVA_ONLY}', '') = {text} OR {trimmed} IN ({infinities})"
    return (
        f"CASE WHEN OCTET_LENGTH({text}) > {d.LONGEST_NUMBER} THEN NULL "
        f"WHEN {trimmed} IN ({nans}) THEN CAST('NaN' AS DOUBLE) "
        f"WHEN {is_readable} THEN TRY_CAST({text} AS DOUBLE) END"
    )


def _safe_cast(g: Generator, node: Any) -> str:
    """Write a cast of any value that cannot fail."""
    to = node.args["to"]

    def number(value: str) -> str:
        return _by_type(value, lambda text: _number_of(g, text), f"CAST({value} AS DOUBLE)")

    def day(text: str) -> str:
        # Spark's own cast also reads '2020' and '2020-02' as days, and does not read '2020/02/29'.
        pattern = text_of(g, _DAY)
        year, month, day_of_month = (
            f"CAST(REGEXP_EXTRACT({text}, {pattern}, {part}) AS INT)" for part in (1, 3, 4)
        )
        made = f"MAKE_DATE({year}, {month}, {day_of_month})"
        return f"CASE WHEN {text} RLIKE {pattern} AND {year} >= 1 THEN {made} END"

    def truth(text: str) -> str:
        true, false = (
            ", ".join(text_of(g, value) for value in words) for words in (d.TRUE_WORDS, d.FALSE_WORDS)
        )
        return f"CASE WHEN LOWER({text}) IN ({true}) THEN TRUE WHEN LOWER({text}) IN ({false}) THEN FALSE END"

    if to == "double":
        return once(argument(g, node, "this"), number)
    if to == "boolean":
        return once(
            argument(g, node, "this"), lambda value: _by_type(value, truth, f"CAST({value} AS BOOLEAN)")
        )
    return once(f"CAST({argument(g, node, 'this')} AS STRING)", day)


def _as_integer(g: Generator, node: Any) -> str:
    """Write a cast to an integer type, as a double. Texts are converted by way of a decimal, which rounds
    halves away from zero and keeps up to 38 digits; doubles are rounded by RINT, halves to the even
    neighbor."""
    low, high = d.INTEGERS[node.args["type"]]
    ends = max(low, 1 - 10**38), min(high, 10**38 - 1)

    def fits(x: str) -> str:
        return f"{x} >= {_double(low)} AND {x} < {_double(high + 1)}"

    def exact(text: str) -> str:
        decimal = _decimal_of(g, text, 38, 0)
        inside = once(
            decimal, lambda w: f"CASE WHEN {w} BETWEEN {ends[0]} AND {ends[1]} THEN CAST({w} AS DOUBLE) END"
        )
        if high < 10**38:
            return inside
        # HUGEINT goes up to 39 digits. A number from 1E38 on has no fraction as a double, so that it needs no
        # rounding. Close to the largest HUGEINT, where doubles are too coarse for the test, its digits
        # before the point are compared.
        beyond = once(
            _number_of(g, text), lambda x: f"CASE WHEN ABS({x}) >= 1E38D AND {fits(x)} THEN {x} END"
        )
        pattern = text_of(g, _DIGITS_39)
        largest = (
            f"CASE WHEN {text} RLIKE {pattern} AND REGEXP_EXTRACT({text}, {pattern}, 1) <> '-' "
            f"AND REGEXP_EXTRACT({text}, {pattern}, 2) <= '{high}' THEN {_number_of(g, text)} END"
        )
        return f"COALESCE({inside}, {beyond}, {largest})"

    def of_number(x: str) -> str:
        # Adding zero makes 0.0 of -0.0.
        return f"CASE WHEN {fits(x)} THEN {x} + 0.0D END"

    return once(
        argument(g, node, "this"),
        lambda value: _by_type(value, exact, once(f"RINT(CAST({value} AS DOUBLE))", of_number)),
    )


def _decimal_of(g: Generator, text: str, width: int, scale: int) -> str:
    """Write a text as a decimal. It is NULL where the text is not a number, and for exponents of more than
    four digits, with which Spark would write out all digits of the number."""
    return (
        f"CASE WHEN {text} RLIKE {text_of(g, _LONG_EXPONENT)} THEN NULL "
        f"WHEN ABS({_number_of(g, text)}) < 1E39D THEN TRY_CAST({text} AS DECIMAL({width}, {scale})) END"
    )


def _as_decimal(g: Generator, node: Any) -> str:
    """Write a cast to DECIMAL, as a double."""
    width, scale = node.args["width"], node.args["scale"]
    type_ = f"DECIMAL({word(width)}, {word(scale)})"

    def decimal(value: str) -> str:
        number = f"CAST(CAST({value} AS DOUBLE) AS {type_})"
        return f"CAST({_by_type(value, lambda text: _decimal_of(g, text, width, scale), number)} AS DOUBLE)"

    return once(argument(g, node, "this"), decimal)


def _as_float(g: Generator, node: Any) -> str:
    """Write a cast to single precision, as a double; NULL beyond its range."""

    def single(x: str) -> str:
        value = f"CAST(CAST({x} AS FLOAT) AS DOUBLE)"
        return f"CASE WHEN ABS({value}) <= {_LARGEST} OR NOT ABS({x}) <= {_LARGEST} THEN {value} END"

    return once(_safe_cast(g, d.SafeCast(this=node.this, to="double")), single)


def _double(value: int) -> str:
    """Return the SQL of a whole number that a double represents exactly."""
    assert int(float(value)) == value
    return f"({float(value)!r}D)"


# The roundings of a double to a whole number, as a double, from RINT (halves to the even neighbor).


def _floor(x: str) -> str:
    return f"(RINT({x}) - CASE WHEN RINT({x}) > {x} THEN 1.0D ELSE 0.0D END)"


def _ceil(x: str) -> str:
    return f"(RINT({x}) + CASE WHEN RINT({x}) < {x} THEN 1.0D ELSE 0.0D END)"


def _truncate(x: str) -> str:
    return f"CASE WHEN {x} < 0.0D THEN {_ceil(x)} ELSE {_floor(x)} END"


def _half_away(x: str) -> str:
    up = f"{x} > 0.0D AND {x} - RINT({x}) = 0.5D"
    down = f"{x} < 0.0D AND {x} - RINT({x}) = -0.5D"
    return f"CASE WHEN {up} THEN RINT({x}) + 1.0D WHEN {down} THEN RINT({x}) - 1.0D ELSE RINT({x}) END"


def _rounding(function: Callable[[str], str]) -> Writer:
    """Return the writer of a rounding to digits: multiply or divide by a power of ten, round to a whole
    number by `function`, and divide or multiply again. Where that overflows, the number stays as it is."""

    def write(g: Generator, node: Any) -> str:
        x = argument(g, node, "this")
        if not node.args.get("digits"):
            return once(x, function)
        digits = argument(g, node, "digits")
        unit = f"POWER(10.0D, ABS({digits}))"

        def result(value: str) -> str:
            after_point = f"{once(f'({value} * {unit})', function)} / {unit}"
            before_point = f"{once(f'({value} / {unit})', function)} * {unit}"
            either = f"CASE WHEN {digits} >= 0.0D THEN {after_point} ELSE {before_point} END"
            return once(either, lambda y: f"CASE WHEN ABS({y}) <= {_LARGEST} THEN {y} END")

        return once(x, lambda value: f"COALESCE({result(value)}, {value})")

    return write


def _clip(g: Generator, node: Any) -> str:
    """Clip to a range. NaN, which Spark orders above all numbers, and infinities fail both tests, and are
    NULL."""
    low, high = (argument(g, node, name) for name in ("low", "high"))
    return once(
        argument(g, node, "this"),
        lambda x: (
            f"CASE WHEN {x} >= {low} AND {x} <= {high} THEN {x} WHEN ABS({x}) <= {_LARGEST} THEN "
            f"CASE WHEN {x} < {low} THEN {low} ELSE {high} END END"
        ),
    )


def _extreme(name: str) -> Writer:
    """Return the writer of LEAST or GREATEST. Spark's functions need at least two arguments, so that a single
    one is written by itself."""

    def write(g: Generator, node: Any) -> str:
        listed = node.args["expressions"]
        return f"{name}({argument(g, node, 'expressions')})" if len(listed) > 1 else g.sql(listed[0])

    return write


def _wide_sum(g: Generator, node: Any) -> str:
    """Write an exact sum of whole numbers. Each 64-bit number is split into parts of 21 bits, the highest of
    up to 22 bits and the sign; the sum of each part fits 64 bits for up to 2**41 rows. Sums of decimals take
    several times as long.

    There is one part where the public bound `largest` is below 2**22, two where it is below 2**43, else
    three. Numbers wider than 64 bits are added up as decimals of 38 digits, which hold 2**126.
    """
    x, largest = argument(g, node, "this"), node.args.get("largest")
    integer = f"CAST({x} AS BIGINT)"
    parts = 3 if largest is None or largest >= 1 << 43 else 2 if largest >= 1 << 22 else 1
    sums = []
    for part in reversed(range(parts)):
        shifted = f"SHIFTRIGHT({integer}, {21 * part})" if part else integer
        # The highest part keeps the sign.
        bits = shifted if part == parts - 1 else f"({shifted} & {(1 << 21) - 1})"
        sums.append(f"CAST(SUM({bits}) AS DECIMAL(38, 0))" + (f" * {1 << 21 * part}" if part else ""))
    total = f"CAST({' + '.join(sums)} AS DECIMAL(38, 0))"
    if largest is not None and largest < 1 << 63:
        return total
    # MAX is there only because the query is an aggregate: it has the type of its argument.
    return f"IF(TYPEOF(MAX({x})) IN ('bigint', 'int'), {total}, SUM(CAST({x} AS DECIMAL(38, 0))))"


def _truncating_divide(g: Generator, node: Any) -> str:
    """Write an exact quotient of whole numbers, a of up to 38 digits and b of up to 19, as a long division in
    two steps of 19 digits: Spark's quotient of two decimals has only 32 digits before the point, and no step
    needs more than 20.

    h is a without its last 19 digits, q the quotient of h and b, and r the remainder of h and b followed by
    the last 19 digits of a.
    """
    a, b = (f"CAST({argument(g, node, name)} AS DECIMAL(38, 0))" for name in ("this", "expression"))

    def quotient(of: str, by: str) -> str:
        return f"CAST(({of} - {of} % {by}) / {by} AS DECIMAL(38, 0))"

    # a and b are passed into the lambda as one struct: Spark allows no aggregate inside a lambda.
    operands = f"ARRAY(STRUCT({a} AS a, {b} AS b))"
    split = f"TRANSFORM({operands}, p -> STRUCT({quotient('p.a', str(_SPLIT))} AS h, p.a AS a, p.b AS b))"
    remainder = f"CAST(p.h % p.b * {_SPLIT} + p.a % {_SPLIT} AS DECIMAL(38, 0))"
    both = f"TRANSFORM({split}, p -> STRUCT({quotient('p.h', 'p.b')} AS q, {remainder} AS r, p.b AS b))"
    return f"TRANSFORM({both}, p -> CAST(p.q * {_SPLIT} + {quotient('p.r', 'p.b')} AS DECIMAL(38, 0)))[0]"


def _number(g: Generator, node: Any) -> str:
    return f"({word(node.args['this'])}D)"


WRITERS: Mapping[type[exp.Expression], Writer] = {
    d.Number: _number,
    d.Day: template("CAST('{this}' AS DATE)"),
    d.Convert: _convert,
    d.Canonical: canonical(
        # Over sorted rows Spark 4.0 groups by bit patterns: `ReplaceHashWithSortAgg` drops the normalization.
        number="IF(ISNAN({x}), CAST('NaN' AS DOUBLE), CAST({x} AS DOUBLE) + 0.0D)",
        # All digits of the number, without zeros at their end; a cast to a string may write an exponent.
        decimal=f"FORMAT_NUMBER({{x}}, '0.{'#' * 38}')",
    ),
    d.SafeCast: _safe_cast,
    d.NearestWhole: template("CAST(RINT({this}) AS BIGINT)"),
    d.SafeNearestWhole: lambda g, node: once(
        f"RINT({argument(g, node, 'this')})",
        lambda x: (
            f"CASE WHEN {x} >= {_double(-(2**63))} AND {x} < {_double(2**63)} THEN CAST({x} AS BIGINT) END"
        ),
    ),
    d.AsInteger: _as_integer,
    d.AsDecimal: _as_decimal,
    d.AsFloat: _as_float,
    d.Plus: template("({this} + {expression})"),
    d.Minus: template("({this} - {expression})"),
    d.Times: template("({this} * {expression})"),
    d.Divide: template("({this} / NULLIF({expression}, 0.0D))"),
    d.Remainder: template("({this} % NULLIF({expression}, 0.0D))"),
    d.TruncatingDivide: _truncating_divide,
    d.Floor: repeating(_floor),
    d.Ceil: repeating(_ceil),
    d.RoundHalfAway: _rounding(_half_away),
    d.TruncateNumber: _rounding(_truncate),
    # Adding zero makes 0.0 of -0.0.
    d.Sign: template("(SIGNUM({this}) + 0.0D)"),
    d.Absolute: template("ABS({this})"),
    d.SquareRoot: repeating(lambda x: f"CASE WHEN {x} >= 0.0D THEN SQRT({x}) END"),
    d.Ln: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LN({x}) END"),
    d.Log2: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LOG2({x}) END"),
    d.Log10: repeating(lambda x: f"CASE WHEN {x} > 0.0D THEN LOG10({x}) END"),
    d.Exponential: template("EXP({this})"),
    d.Power: template("POWER({this}, {expression})"),
    d.IsFinite: template(f"(ABS({{this}}) <= {_LARGEST})"),
    # 0.0 = -0.0, and only the signs of their reciprocals differ. POWER computes these, as Spark's division by
    # zero is NULL.
    d.Clip: _clip,
    d.Least: _extreme("LEAST"),
    d.Greatest: _extreme("GREATEST"),
    d.Same: template("({this} <=> {expression})"),
    **TEXTS_AND_DAYS,
    d.WideSum: _wide_sum,
    d.WindowSum: template(
        "SUM({this}) OVER (PARTITION BY {by} ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND "
        "CURRENT ROW)"
    ),
    **CHOICES,
}


class SparkGenerator(Spark.Generator):  # type: ignore[valid-type,misc]
    """Writes standard SQL for Spark, with two changes to what the SQL library writes."""

    def cte_sql(self, expression: exp.CTE) -> str:
        """Write a common table expression without MATERIALIZED, which Spark does not know."""
        expression.set("materialized", None)
        text: str = super().cte_sql(expression)
        return text

    def select_sql(self, expression: exp.Select) -> str:
        """Write a SELECT, with a hint that sends joined VALUES to all workers. The values are public, and the
        hint does not depend on a size."""
        values = [
            join.this.alias
            for join in expression.args.get("joins") or []
            if isinstance(join.this, exp.Values)
        ]
        text: str = super().select_sql(expression)
        if not values:
            return text
        # Otherwise the text would not begin with this SELECT.
        assert not expression.args.get("with_")
        return f"SELECT /*+ BROADCAST({', '.join(map(word, values))}) */{text.removeprefix('SELECT')}"


SPARK = Dialect("spark", SparkGenerator, WRITERS)
