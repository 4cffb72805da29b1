"""Reads tables into Spark: a DataFrame of a stored table, or Parquet files, as columns on which no query
fails.

A DataFrame must hold columns of stored tables as they are. A computation of the host in it could fail on a
row, or give another result when Spark repeats it after the loss of a worker. This module reads plans and
types, and values only to check a declared key (`SparkTable.unique`). It imports pyspark, an optional
dependency, only inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..._errors import DiscreetError, InvalidInput, MissingExtra
from ..columns import KINDS, LONGEST_TEXT
from ..engine import ROW
from .spark_files import files_of, is_frame

# The nodes of Spark's analyzed plan, and of its expressions, that may occur in a DataFrame: they fail on no
# row, and give the same result when they are repeated. A LogicalRDD (rows that the host's own code computes,
# such as those of `createDataFrame`) is allowed although neither can be checked.
_RELATIONS = {
    "SubqueryAlias",
    "View",
    "Project",
    "Filter",
    "LogicalRelation",
    "HiveTableRelation",
    "DataSourceV2Relation",
    "StreamingRelation",
    "LocalRelation",
    "LogicalRDD",
    "Range",
    "Repartition",
    "RepartitionByExpression",
    "Union",
    "ResolvedHint",
}
_EXPRESSIONS = {
    "AttributeReference",
    "Alias",
    "Literal",
    "EqualTo",
    "EqualNullSafe",
    "LessThan",
    "LessThanOrEqual",
    "GreaterThan",
    "GreaterThanOrEqual",
    "And",
    "Or",
    "Not",
    "IsNull",
    "IsNotNull",
    "In",
    "StartsWith",
    "EndsWith",
    "Contains",
}
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
# The first and the last day or time that is read: the years 1 to 9999. With a time zone the range is a day
# shorter at both ends, as on every engine: in some zone, these days lie in the year 0 or 10000.
_YEARS = {
    "date": ("0001-01-01", "9999-12-31"),
    "timestamp": ("0001-01-02 00:00:00", "9999-12-30 23:59:59.999999"),
    "timestamp_ntz": ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
}
_KINDS_BY_TYPE = {"boolean": "boolean", "date": "date", "timestamp": "date", "timestamp_ntz": "date"}


@dataclass(frozen=True)
class SparkTable:
    """Holds a table as queries see it: a DataFrame of our session, and the kinds of its columns
    (`columns.KINDS` and `columns.ID_KINDS`)."""

    frame: Any
    kinds: dict[str, str]
    id_kinds: dict[str, str]

    def with_row(self, key: str | None) -> SparkTable:
        """Add the column `ROW`, which tells rows apart, as a copy of the key. Without a declared key it is
        NULL, and no query may use it (`Dialect.numbers_rows`)."""
        from pyspark.sql import functions as f

        row = f.lit(None).cast("bigint") if key is None else self.frame[_quoted(key)]
        return replace(self, frame=self.frame.withColumn(ROW, row))

    def converted(self, columns: Sequence[tuple[str, str | None]]) -> Any:
        """Return a DataFrame of the named columns, each converted to the type beside it (DuckDB's name of the
        type; None: as it is). A value that does not convert is NULL."""
        # Imported late: the SQL library is slow to load.
        from sqlglot import exp

        from .. import semantics as d
        from .spark_dialect import SPARK

        to = {"DOUBLE": "double", "BOOLEAN": "boolean", "DATE": "date", "VARCHAR": "text"}
        select_list = []
        for name, type_ in columns:
            column: Any = exp.column(exp.to_identifier(name, quoted=True))
            if type_ == "VARCHAR":
                column = d.canonical_text(column, self.id_kinds[name])
            elif type_ is not None:
                column = d.SafeCast(this=column, to=to[type_])
            select_list.append(SPARK.write(exp.alias_(column, exp.to_identifier(name, quoted=True))))
        return self.frame.selectExpr(*select_list) if select_list else self.frame.selectExpr("1 AS `n`")

    def unique(self, columns: Sequence[str]) -> bool:
        """Return whether no two rows agree in all of these columns, and no row has NULL in one of them."""
        from pyspark.sql import functions as f

        # Not compared as texts: 0.0 and -0.0 have different texts, but are one key where rows are grouped.
        keys = self.frame.select(
            *(self.frame[_quoted(name)].alias(f"k{i}") for i, name in enumerate(columns))
        )
        names = keys.columns
        lacking = keys.where(" OR ".join(f"`{name}` IS NULL" for name in names)).limit(1).count()
        repeated = keys.groupBy(*names).agg(f.count("*").alias("n")).where("n > 1").limit(1).count()
        return bool(lacking == 0 and repeated == 0)


def kinds_of(frame: Any) -> dict[str, str]:
    """Return the kinds of a DataFrame's columns."""
    return {field.name: kind_of(field.dataType.simpleString()) for field in frame.schema.fields}


def kind_of(type_: str) -> str:
    """Return the kind of a column from the name of its type in Spark.

    >>> kind_of("bigint"), kind_of("decimal(10,2)"), kind_of("array<int>"), kind_of("varchar(8)")
    ('integer', 'number', 'nested', 'text')
    """
    if type_ in _INTEGERS:
        return "integer"
    if type_ in ("float", "double") or type_.startswith("decimal"):
        return "number"
    if type_.startswith(("string", "char", "varchar", "void")):
        return "text"
    if type_.startswith(("interval", "time(")):
        return "time"
    if type_ == "binary":
        return "binary"
    return _KINDS_BY_TYPE.get(type_, "nested")


def id_kind_of(type_: str) -> str:
    """Return the kind of a column as an id (`columns.ID_KINDS`) from the name of its type in Spark."""
    if type_.startswith("timestamp"):
        return "time"
    return "decimal" if type_.startswith("decimal") else kind_of(type_)


def local_session() -> Any:
    """Return the active session, or a new one on this machine."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra.of("spark", "engine='spark' needs pyspark, and Java 17") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName("discreet").config("spark.ui.enabled", "false")
    try:
        quiet = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false")
        return quiet.getOrCreate()
    except DiscreetError:
        raise
    except Exception:
        raise InvalidInput(
            "Spark cannot be started: it needs Java 17 (JAVA_HOME, or java on the path). Nothing was opened."
        ) from None


def read(session: Any, name: str, data: Any) -> SparkTable:
    """Return a table in our own session, in which no value makes a query fail (`_valid_column`)."""
    if is_frame(data):
        frame = _in_session(session, name, data)
    elif isinstance(data, str | Path):
        frame = _parquet(session, data)
    else:
        raise InvalidInput(
            f"{type(data).__name__} is not a table that Spark has: give a DataFrame, such as "
            f"spark.table('visits'), or the path of Parquet files. Nothing was opened."
        )
    kinds = kinds_of(frame)
    columns = [_valid_column(frame, field) for field in frame.schema.fields if kinds[field.name] in KINDS]
    id_kinds = {field.name: id_kind_of(field.dataType.simpleString()) for field in frame.schema.fields}
    return SparkTable(frame.select(*columns), kinds, id_kinds)


def _in_session(session: Any, name: str, frame: Any) -> Any:
    """Return the host's DataFrame in our session, so that it runs under our settings."""
    from pyspark.sql.classic.dataframe import DataFrame

    if not isinstance(frame, DataFrame):
        raise InvalidInput(
            "a DataFrame of Spark Connect runs in another process, under settings that cannot be made sure "
            "of here. Nothing was opened. Open the table where the Spark driver runs."
        )
    plan = frame._jdf.queryExecution().analyzed()
    if frame.isStreaming:
        raise InvalidInput(f"table {name!r} is a stream, and has no end. Nothing was opened.")
    # The first computation, if there is one, is named in the error.
    for node, expression in _computations(plan):
        raise InvalidInput(
            f"the DataFrame of table {name!r} computes something ({expression or node}): that could fail on "
            f"a row, or come out otherwise when a lost worker's part is computed again. Nothing was opened. "
            f"Write it to a table first, and give that: spark.table(...)."
        )
    dataset = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(_of_unknown_size(session, dataset), session)


def _of_unknown_size(session: Any, dataset: Any) -> Any:
    """Return a dataset whose number of rows the planner does not know.

    The planner knows the number for tables in memory (`LocalRelation`) and ranges, and plans differently
    where it is 0 or 1 (`OptimizeOneRowPlan`, `InferWindowGroupLimit`). It knows nothing of an RDD, so that
    such tables are read through one.
    """
    leaves = _elements(dataset.queryExecution().analyzed().collectLeaves())
    if not any(leaf.maxRows().isDefined() for leaf in leaves):
        return dataset
    rows = dataset.queryExecution().toRdd()
    return session._jsparkSession.internalCreateDataFrame(rows, dataset.schema(), False)


def _computations(plan: Any) -> Any:
    """Yield the nodes of a plan that are not in `_RELATIONS`, or hold an expression that is not in
    `_EXPRESSIONS`, with that expression or ""."""
    if plan.nodeName() not in _RELATIONS:
        yield plan.nodeName(), ""
        return
    expressions = _elements(plan.expressions())
    while expressions:
        expression = expressions.pop()
        kind = expression.getClass().getSimpleName()
        if kind not in _EXPRESSIONS and not (kind == "Cast" and _widens(expression)):
            yield plan.nodeName(), kind
            return
        expressions += _elements(expression.children())
    for child in _elements(plan.children()):
        yield from _computations(child)


def _widens(cast: Any) -> bool:
    """Return whether a cast is of a constant, or keeps every value, as the casts do that Spark adds to the
    two sides of a comparison."""
    of, to = (part.dataType().simpleString() for part in (cast.child(), cast))
    if cast.child().getClass().getSimpleName() == "Literal" or of == to:
        return True
    if of in _INTEGERS and to in _INTEGERS:
        return _INTEGERS.index(of) <= _INTEGERS.index(to)
    return bool(of == "float" and to == "double")


def _elements(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _parquet(session: Any, data: str | Path) -> Any:
    """Read Parquet files."""
    if "://" not in str(data) and not files_of(data):
        raise InvalidInput(f"there is no Parquet file in {str(data)!r}. Nothing was opened.")
    try:
        return session.read.parquet(str(data))
    except Exception:
        # Spark's error is not shown, as it may quote the file.
        raise InvalidInput(
            f"{Path(data).name!r} cannot be read as Parquet files. Nothing was opened or charged."
        ) from None


def _valid_column(frame: Any, field: Any) -> Any:
    """Return a column with NULL for values on which queries could fail: text that is not UTF-8 or is longer
    than `LONGEST_TEXT`, days and times outside the years 1 to 9999. Texts lose their collation, so that they
    are equal only if all characters are."""
    from pyspark.sql import functions as f

    column, type_ = frame[_quoted(field.name)], field.dataType.simpleString()
    kind = kind_of(type_)
    if kind == "text":
        plain = column.cast("string") if type_ != "string" else column
        if "collate" in type_:
            plain = f.collate(column, "UTF8_BINARY")
        valid = f.try_validate_utf8(plain)
        return f.when(f.octet_length(plain) <= LONGEST_TEXT, valid).alias(field.name)
    if kind == "date":
        first, last = _YEARS[type_]
        low, high = (f.expr(f"{type_.upper()} '{end}'") for end in (first, last))
        # NULL, not clipped to the range: where these are ids, two people would become one.
        return f.when(column.between(low, high), column).alias(field.name)
    return column.alias(field.name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
