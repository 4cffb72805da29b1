"""Runs private queries on Spark, for tables that are too large for one machine and are stored with Spark
already.

`connect(frame, public)` makes one from a DataFrame of a stored table, or from a folder of Parquet files.
`discreet.query` builds each query as a tree of the nodes of `tables.semantics` (the closed set),
`spark_dialect` writes it as SQL, Spark runs it where the table is, and only per-group aggregates come to this
machine.

The session of the host, which is the program that gave the DataFrame, is not changed. Queries run in a
session of our own on the same cluster (`spark.newSession()`), under settings that make no plan depend on a
value or a size of the data (`SETTINGS`). Each runs in a thread of our own with a job group of its own, which
is cancelled when the limit of time has passed.

Reads tables into Spark: a DataFrame of a stored table, or Parquet files, as columns on which no query
fails.

A DataFrame must hold columns of stored tables as they are. A computation of the host in it could fail on a
row, or give another result when Spark repeats it after the loss of a worker. This module reads plans and
types, and values only to check a declared key (`SparkTable.unique`). It imports pyspark, an optional
dependency, only inside functions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import TIMEOUT_MAX
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..._errors import DiscreetError, InvalidInput, MissingExtra
from ..._public import Public, Related
from ..columns import KINDS, LONGEST_TEXT, check_names, engine_types
from ..files import Codebook
from ..source import EngineError
from .spark_files import files_of, files_stamp, is_frame
from .table_engine import TableEngine, too_late, unplanned, withheld

if TYPE_CHECKING:
    from ..dialect import Dialect

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
            "Spark cannot be started: it needs Java 17 (JAVA_HOME, or java on the path)."
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
            "spark.table('visits'), or the path of Parquet files."
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
            "of here. Open the table where the Spark driver runs."
        )
    plan = frame._jdf.queryExecution().analyzed()
    if frame.isStreaming:
        raise InvalidInput(f"table {name!r} is a stream, and has no end.")
    # The first computation, if there is one, is named in the error.
    for node, expression in _computations(plan):
        raise InvalidInput(
            f"the DataFrame of table {name!r} computes something ({expression or node}): that could fail on "
            "a row, or come out otherwise when a lost worker's part is computed again. Write it to a table "
            "first, and give that: spark.table(...)."
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
        raise InvalidInput(f"there is no Parquet file in {str(data)!r}.")
    try:
        return session.read.parquet(str(data))
    except Exception:
        # Spark's error is not shown, as it may quote the file.
        raise InvalidInput(f"{Path(data).name!r} cannot be read as Parquet files.") from None


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


_RULE_PACKAGE = "org.apache.spark.sql.catalyst.optimizer."
# The settings of the session that runs queries. A plan must depend on the query's text alone: not on
# statistics, sizes or values, and Spark must not plan again while a query runs. In ANSI mode, a row could
# make a query fail.
SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.cbo.enabled": "false",
    "spark.sql.cbo.joinReorder.enabled": "false",
    "spark.sql.cbo.planStats.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.join.preferSortMergeJoin": "true",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.orc.filterPushdown": "false",
    # The first two rules simplify plans of a table without rows. The third removes sorts below an aggregate,
    # which `spark_dialect` relies on.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"{_RULE_PACKAGE}{rule}"
        for rule in ("ConvertToLocalRelation", "PropagateEmptyRelation", "EliminateSorts")
    ),
    # Rows that are sorted by their groups are aggregated in that order, without a hash table.
    "spark.sql.execution.replaceHashWithSortAgg": "true",
    # Files written before Spark 3 may count days before 1582 in the Julian calendar, and reading such a day
    # would fail; CORRECTED reads all days in the Gregorian one.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    # Spark would replace a public text such as '${env:HOME}' by the variable's value.
    "spark.sql.variable.substitute": "false",
    # `spark_dialect._truncating_divide` relies on the type that this gives to a quotient of decimals.
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    # The stack trace of an error, which may quote a value, would be part of the error's text.
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
# Settings that are copied from the host's session: the owner of a cluster decides on the number of
# partitions.
_HOST_SETTINGS = ("spark.sql.shuffle.partitions",)


class Spark(TableEngine):
    """Answers queries about a table, and the tables related to it, in a Spark cluster. Made by `connect`."""

    _quote = "`"

    def __init__(
        self,
        tables: Mapping[str, Any],
        public: Public,
        *,
        spark: Any = None,
        seconds: float | None = None,
        codebooks: Mapping[str, Mapping[str, Codebook]] = MappingProxyType({}),
    ) -> None:
        super().__init__(public, seconds)
        self._session = _own_session(spark if spark is not None else _host_of(tables))
        self._context = self._session.sparkContext
        self._running: set[str] = set()
        self._stamps = {name: files_stamp(data) for name, data in tables.items()}
        self._data = dict(tables)
        self._tables = {
            name: self._read(name, data, codebooks.get(name, {})) for name, data in tables.items()
        }
        self._kinds = {name: table.kinds for name, table in self._tables.items()}
        self._check()
        for name, table in self._tables.items():
            table.frame.createTempView(self._quoted(name))

    def _read(self, name: str, data: Any, books: Mapping[str, Codebook]) -> SparkTable:
        table = read(self._session, name, data)
        check_names(name, list(table.kinds))
        if books:
            # Imported late, because the SQL library is slow to load.
            from ..codebook import select_list
            from .spark_dialect import SPARK

            columns = select_list(table.frame.columns, books, table.kinds, SPARK)
            table = replace(table, frame=table.frame.selectExpr(*columns))
        return table

    @property
    def id_kinds(self) -> Mapping[str, Mapping[str, str]]:
        return {name: table.id_kinds for name, table in self._tables.items()}

    @property
    def dialect(self) -> Dialect:
        from .spark_dialect import SPARK

        return SPARK

    def ready(self) -> None:
        """Raise `EngineError` if no query can be answered. It is called before a charge, so that nobody pays
        for a query that the engine cannot run."""
        for name, stamp in self._stamps.items():
            if stamp is not None and files_stamp(self._data[name]) != stamp:
                raise EngineError(
                    f"the files of table {name!r} have changed since it was opened, or are gone. Open the "
                    "table again."
                )
        try:
            stopped = self._context._jsc.sc().isStopped()
        except Exception:
            stopped = True
        if stopped:
            raise EngineError("Spark has stopped. Start it, and open the table again.")

    def current(self) -> None:
        """Raise `EngineError` if the files of the table have changed since it was opened."""
        self.ready()

    def answer(self, sql: str) -> pa.Table:
        return self._run(lambda: self._session.sql(sql).toArrow())

    def plan(self, texts: Sequence[str]) -> None:
        """Have Spark parse and analyze the queries `texts`, which starts no job and reads no row, so that a
        query that it cannot analyze is refused before a charge."""
        for sql in texts:
            try:
                self._session.sql(sql)
            except Exception:
                raise unplanned("Spark") from None

    def explain(self, sql: str) -> str:
        """Return the physical plan of a query. Tests compare plans over different data, which must be
        equal."""
        plan: str = self._session.sql(sql)._jdf.queryExecution().executedPlan().toString()
        return plan

    def _run(self, work: Callable[[], Any]) -> Any:
        """Run `work` in a thread of our own, under a new job group, and return its result. The job group of
        the host's thread stays as it is."""
        group = f"discreet-{uuid.uuid4()}"

        def grouped() -> Any:
            self._context.setJobGroup(group, "discreet", interruptOnCancel=True)
            return work()

        self._running.add(group)
        running = _threads().submit(grouped)
        try:
            # More than TIMEOUT_MAX, some 290 years, would raise OverflowError.
            return running.result(None if self._seconds is None else min(self._seconds, TIMEOUT_MAX))
        except (TimeoutError, KeyboardInterrupt) as reason:
            running.cancel()
            self._stop(group)
            if isinstance(reason, KeyboardInterrupt):
                raise reason from None
            # Without a limit, it is a TimeoutError of the connection to Spark.
            raise (withheld() if self._seconds is None else too_late(self._seconds)) from None
        except Exception:
            # Spark's error is not shown, as its text could quote a value.
            raise withheld() from None
        finally:
            self._running.discard(group)

    def _stop(self, group: str) -> None:
        """Cancel the jobs of a query, including those that it has not started yet: while a query is planned,
        it has no job."""
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def interrupt(self) -> None:
        """Cancel all queries that run now, from any thread: each fails with an `EngineError`."""
        for group in list(self._running):
            self._stop(group)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns of the main table, partition by partition. At most two partitions are in
        this machine's memory at a time.

        Without columns, each batch has only a number of rows. There is no limit of time: the caller may take
        as long as it needs between two batches.
        """
        frame = self._tables[self._public.table].frame.selectExpr(*self._select_list(columns))
        try:
            for batch in _arrow_batches(frame):
                for part in engine_types(pa.Table.from_batches([batch])).to_batches():
                    yield self._batch(part, columns)
        except InvalidInput:
            raise
        except Exception:
            raise withheld() from None

    def _count(self) -> int:
        return int(self._run(self._tables[self._public.table].frame.count))

    def _is_unique(self, table: Related) -> bool:
        return bool(self._run(partial(self._tables[table.name].unique, tuple(table.key))))


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the pool of threads that run queries. It is never closed, so that later queries use the same
    threads: each has a connection to Spark's Java process and a thread there. At most 16 queries run at a
    time; the number is chosen by hand, not tuned.
    """
    return ThreadPoolExecutor(16, thread_name_prefix="discreet-spark")


def _own_session(host: Any) -> Any:
    """Return a new session on the host's cluster. Nothing in the host's session is changed, and of its
    settings only `_HOST_SETTINGS` are taken over."""
    session = host.newSession()
    for name in _HOST_SETTINGS:
        session.conf.set(name, host.conf.get(name))
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


def _host_of(tables: Mapping[str, Any]) -> Any:
    """Return the Spark session of the first DataFrame among the tables; without one, the active or a local
    session."""
    for data in tables.values():
        if hasattr(data, "sparkSession"):
            return data.sparkSession
    return local_session()


def _arrow_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of a DataFrame, one partition after the other. Spark's Java workers write them,
    so that the workers need no Python."""
    # Imported here because pyspark is an optional dependency.
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    messages = frame._jdf.toArrowBatchRdd().toLocalIterator()
    while messages.hasNext():
        yield pa.ipc.read_record_batch(pa.py_buffer(messages.next()), schema)


def connect(
    data: Any,
    public: Public,
    *,
    related: Mapping[str, Any] | None = None,
    spark: Any = None,
    seconds: float | None = None,
    codebooks: Mapping[str, Mapping[str, Codebook]] = MappingProxyType({}),
) -> Spark:
    """Return an engine for a Spark DataFrame of a stored table, or for the path of a Parquet file, a folder
    of these or a pattern ("visits/*.parquet").

    `related` maps the names of the tables that `public.tables` declares to DataFrames or paths. `spark`: the
    session whose cluster reads paths; by default the active one, or a new one on this machine. `seconds`: a
    query that takes longer is cancelled, and fails with `TimeLimit`. `codebooks`: by table and column, how
    texts are read.
    """
    tables = {public.table: data, **(related or {})}
    return Spark(tables, public, spark=spark, seconds=seconds, codebooks=codebooks)
