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
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput
from ..._public import Public
from ..columns import check_names, converted_to, engine_types, without_codes
from ..engine import ROW, EngineError
from .refusals import (
    check_columns,
    check_declared,
    check_size,
    not_unique,
    stopwatch,
    too_late,
    unplanned,
    withheld,
)
from .spark_files import files_stamp
from .spark_reading import SparkTable, local_session, read

if TYPE_CHECKING:
    from ..dialect import Dialect

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
    # which `spark_choices` relies on.
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


class Spark:
    """Answers queries about a table, and the tables related to it, in a Spark cluster. Made by `connect`.

    `key`: a column of the main table in which no two rows agree, for tables in which a row is the unit.
    Queries with joins need it to tell rows apart, because Spark has no row number that is the same in every
    run.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        public: Public,
        *,
        spark: Any = None,
        seconds: float | None = None,
        key: str | None = None,
    ) -> None:
        if seconds is not None:
            _require.positive(seconds=seconds)
        self._public, self._seconds, self._key = public, seconds, key
        self._session = _own_session(spark if spark is not None else _host_of(tables))
        self._context = self._session.sparkContext
        self._running: set[str] = set()
        self._stamps = {name: files_stamp(data) for name, data in tables.items()}
        self._data = dict(tables)
        self._tables = {name: self._read(name, data) for name, data in tables.items()}
        self._kinds = {name: table.kinds for name, table in self._tables.items()}
        self._check()
        for name, table in self._tables.items():
            table.frame.createTempView(_view(name))

    def _read(self, name: str, data: Any) -> SparkTable:
        """Open one table, and check that it has the key column."""
        table = read(self._session, name, data)
        check_names(name, [*table.kinds, ROW])
        key = self._key if name == self._public.table else None
        if key is not None and key not in table.kinds:
            raise InvalidInput(
                f"the key {key!r} is not in table {name!r}.{_require.did_you_mean(key, table.kinds)} It has: "
                f"{', '.join(table.kinds)}. Nothing was opened."
            )
        return table.with_row(key)

    @property
    def public(self) -> Public:
        return self._public

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]:
        return self._kinds

    @property
    def id_kinds(self) -> Mapping[str, Mapping[str, str]]:
        return {name: table.id_kinds for name, table in self._tables.items()}

    @property
    def dialect(self) -> Dialect:
        # Imported late: the SQL library is slow to load, and is not needed before the first query.
        from .spark_dialect import SPARK, SPARK_WITHOUT_ROWS

        return SPARK_WITHOUT_ROWS if self._key is None else SPARK

    def ready(self) -> None:
        """Raise `EngineError` if no query can be answered. It is called before a charge, so that nobody pays
        for a query that the engine cannot run."""
        for name, stamp in self._stamps.items():
            if stamp is not None and files_stamp(self._data[name]) != stamp:
                raise EngineError(
                    f"the files of table {name!r} have changed since it was opened, or are gone. Nothing was "
                    f"charged. Open the table again."
                )
        try:
            stopped = self._context._jsc.sc().isStopped()
        except Exception:
            stopped = True
        if stopped:
            raise EngineError("Spark has stopped. Nothing was charged. Start it, and open the table again.")

    def current(self) -> None:
        """Raise `EngineError` if the files of the table have changed since it was opened."""
        self.ready()

    def answer(self, sql: str) -> pa.Table:
        """Return the result of one aggregate query that `discreet.query` has built.

        It fails with `TimeLimit` after the `seconds` that the engine was opened with.
        """
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

    def stopwatch(self) -> Callable[[], None]:
        """Start a clock and return a function that raises `TimeLimit` once the public limit of time has
        passed."""
        return stopwatch(self._seconds)

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
        kinds = self._kinds[self._public.table]
        check_columns(columns, kinds)
        facts = dict(self._public.schema)
        conversions = [
            (name, converted_to(facts[name], kinds[name]) if name in facts else None) for name in columns
        ]
        frame = self._tables[self._public.table].converted(conversions)
        try:
            for batch in _arrow_batches(frame):
                for part in _engine_batches(batch, columns):
                    yield without_codes(part, self._public.schema)
        except InvalidInput:
            raise
        except Exception:
            raise withheld() from None

    def _check(self) -> None:
        check_declared(self._public, self._kinds)
        check_size(self._public, lambda: int(self._run(self._tables[self._public.table].frame.count)))
        self._check_keys()

    def _check_keys(self) -> None:
        """Refuse a declared key that is not unique. Joins rely on the keys of public tables. The privacy
        guarantee relies on the key of the main table, as two rows with one key would be taken for one."""
        keys = [(table.name, tuple(table.key)) for table in self._public.tables if table.key]
        keys += [(self._public.table, (self._key,))] if self._key is not None else []
        for name, columns in keys:
            if not self._run(partial(self._tables[name].unique, columns)):
                raise not_unique(name, columns)

    def __repr__(self) -> str:
        return f"Spark(table={self._public.table!r}, columns={list(self._kinds[self._public.table])})"


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


def _view(name: str) -> str:
    """Return the name of a view between backquotes, as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def _arrow_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of a DataFrame, one partition after the other. Spark's Java workers write them,
    so that the workers need no Python."""
    # Imported here because pyspark is an optional dependency.
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    messages = frame._jdf.toArrowBatchRdd().toLocalIterator()
    while messages.hasNext():
        yield pa.ipc.read_record_batch(pa.py_buffer(messages.next()), schema)


def _engine_batches(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a batch in the types that all engines share; without columns, a batch with only its number of
    rows."""
    if not columns:
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        return
    yield from engine_types(pa.Table.from_batches([batch])).to_batches()


def connect(
    data: Any,
    public: Public,
    *,
    related: Mapping[str, Any] | None = None,
    spark: Any = None,
    seconds: float | None = None,
    key: str | None = None,
) -> Spark:
    """Return an engine for a Spark DataFrame of a stored table, or for the path of a Parquet file, a folder
    of these or a pattern ("visits/*.parquet").

    `related` maps the names of the tables that `public.tables` declares to DataFrames or paths. `spark`: the
    session whose cluster reads paths; by default the active one, or a new one on this machine. `seconds`: a
    query that takes longer is cancelled, and fails with `TimeLimit`. `key`: see `Spark`.
    """
    tables = {public.table: data, **(related or {})}
    return Spark(tables, public, spark=spark, seconds=seconds, key=key)
