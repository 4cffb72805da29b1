"""Runs private queries on Spark: the engine for tables that have outgrown one machine, and are with
Spark already.

`connect(frame, public)` makes one from a DataFrame of a stored table, or from a folder of Parquet files.
`discreet.query` builds trees of the closed set of nodes, `spark_dialect` writes them, Spark runs them where
the table is, and only per-group aggregates come to this machine.

Nothing of the host's session is changed: the text runs in a session of its own on the same cluster
(`spark.newSession()`), under settings that make no plan depend on a value or a size of the data, from a
thread of its own, whose job group is what a limit of time cancels.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ... import _require
from ..._errors import InvalidInput
from ..._public import Public
from ..columns import check_names, converted_to, engine_types
from ..engine import ROW, EngineError
from .refusals import check_columns, check_declared, check_size, not_unique, stopwatch, too_late, withheld
from .spark_files import files_stamp
from .spark_reading import SparkTable, read

if TYPE_CHECKING:
    from ..dialect import Dialect

_RULES = "org.apache.spark.sql.catalyst.optimizer."
# What every text runs under. A plan must depend on the text alone: no statistics, no sizes, no values, no
# re-planning in between; and nothing may fail on a row, which ANSI mode would.
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
    # Plans of a table without rows would be cut short; and sorts below an aggregate would be left out, which
    # `spark_choices` asks for.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"{_RULES}{rule}" for rule in ("ConvertToLocalRelation", "PropagateEmptyRelation", "EliminateSorts")
    ),
    # What is sorted by its groups is added up as it goes by, without a hash table.
    "spark.sql.execution.replaceHashWithSortAgg": "true",
    # Files written before Spark 3 count old days in another calendar, and reading one would fail.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    # A public text such as '${env:HOME}' would be replaced by what it names.
    "spark.sql.variable.substitute": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    # An error would be logged with what it says, here and in the engine's own log.
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
# What of the host's session is taken over: how many parts a cluster works on is for its owner to say.
_HOST_SETTINGS = ("spark.sql.shuffle.partitions",)


class Spark:
    """Holds a table, and those related to it, in a Spark cluster. Made by `connect`.

    `key`: a column of the main table in which no two rows agree, where a row is the unit; questions that join
    need it, as Spark has no number of a row that stays.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        public: Public,
        *,
        spark: Any = None,
        seconds: float | None = None,
        key: str | None = None,
        versioned: bool = True,
    ) -> None:
        if seconds is not None:
            _require.positive(seconds=seconds)
        self._public, self._seconds, self._key = public, seconds, key
        # Nothing is served from the store where nobody has said which version of the table this is.
        self.unversioned = not versioned
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
        """Open one table, and check that its key is there."""
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
    def dialect(self) -> Dialect:
        from .spark_dialect import SPARK, SPARK_WITHOUT_ROWS

        return SPARK_WITHOUT_ROWS if self._key is None else SPARK

    def ready(self) -> None:
        """Raise `EngineError` if no query can be answered: asked before a charge, so that nobody pays for an
        engine that is gone."""
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
        """Raise `EngineError` if the files of the table are not as they were when it was opened."""
        self.ready()

    def _fingerprint(self, key: bytes) -> bytes:
        """Return what changes when files of the table are written again: their names, lengths and times,
        under a secret key. Of tables that are elsewhere only the declared version tells."""
        digest = hashlib.blake2b(key=key, digest_size=32)
        for name, stamp in self._stamps.items():
            files = [(path, modified, size) for path, _, modified, _, size in stamp or ()]
            digest.update(repr((name, files)).encode())
        return digest.digest()

    def answer(self, sql: str) -> pa.Table:
        """Return the result of one aggregate query that `discreet.query` has built; at most `seconds`
        long."""
        return self._run(lambda: self._session.sql(sql).toArrow())

    def explain(self, sql: str) -> str:
        """Return the physical plan of a query, which is meant to depend on its text and on nothing in the
        data."""
        plan: str = self._session.sql(sql)._jdf.queryExecution().executedPlan().toString()
        return plan

    def _run(self, work: Callable[[], Any]) -> Any:
        """Run in a thread of ours, under a job group of its own: the host's thread keeps what it has."""
        group = f"discreet-{uuid.uuid4()}"

        def grouped() -> Any:
            self._context.setJobGroup(group, "discreet", interruptOnCancel=True)
            return work()

        self._running.add(group)
        running = _threads().submit(grouped)
        try:
            return running.result(self._seconds)
        except (TimeoutError, KeyboardInterrupt) as reason:
            running.cancel()
            self._stop(group)
            raise (too_late(self._seconds) if isinstance(reason, TimeoutError) else reason) from None
        except Exception:
            # Its text could quote a value.
            raise withheld() from None
        finally:
            self._running.discard(group)

    def _stop(self, group: str) -> None:
        """Cancel the jobs of a query, also those that come: while a query is planned it has none yet."""
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    def stopwatch(self) -> Callable[[], None]:
        """Start a clock: calling it later fails with `TimeLimit` once the public limit of time has passed."""
        return stopwatch(self._seconds)

    def interrupt(self) -> None:
        """Cancel all queries that run now, from any thread: each fails with an `EngineError`."""
        for group in list(self._running):
            self._stop(group)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns of the main table, partition by partition: at most two of these are here
        at a time, never the table.

        There is no limit of time: the reader may take as long as it needs.
        """
        kinds = self._kinds[self._public.table]
        check_columns(columns, kinds)
        facts = dict(self._public.schema)
        listed = [
            (name, converted_to(facts[name], kinds[name]) if name in facts else None) for name in columns
        ]
        frame = self._tables[self._public.table].converted(listed)
        try:
            for batch in _arrow_batches(frame):
                yield from _engine_batches(batch, columns)
        except InvalidInput:
            raise
        except Exception:
            raise withheld() from None

    def _check(self) -> None:
        check_declared(self._public, self._kinds)
        check_size(self._public, lambda: int(self._run(self._tables[self._public.table].frame.count)))
        self._check_keys()

    def _check_keys(self) -> None:
        """Refuse a declared key that is not unique: of public tables joins rely on it, and of the main table
        the promise does, as two rows of one key would be taken for one."""
        keys = [(table.name, tuple(table.key)) for table in self._public.tables if table.key]
        keys += [(self._public.table, (self._key,))] if self._key is not None else []
        for name, columns in keys:
            if not self._run(partial(self._tables[name].unique, columns)):
                raise not_unique(name, columns)

    def __repr__(self) -> str:
        return f"Spark(table={self._public.table!r}, columns={list(self._kinds[self._public.table])})"


@cache
def _threads() -> ThreadPoolExecutor:
    """Return threads that stay: each has a connection to the engine, and a thread there."""
    return ThreadPoolExecutor(16, thread_name_prefix="discreet-spark")


def _own_session(host: Any) -> Any:
    """Return a session of ours on the host's cluster, so that no setting of the host's is touched or read."""
    session = host.newSession()
    for name in _HOST_SETTINGS:
        session.conf.set(name, host.conf.get(name))
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


def _host_of(tables: Mapping[str, Any]) -> Any:
    """Return the Spark session of the data, or a local one."""
    for data in tables.values():
        if hasattr(data, "sparkSession"):
            return data.sparkSession
    from .spark_reading import local_session

    return local_session()


def _view(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _arrow_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches as the engine's own workers write them, one partition after the other: they need no
    Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    messages = frame._jdf.toArrowBatchRdd().toLocalIterator()
    while messages.hasNext():
        yield pa.ipc.read_record_batch(pa.py_buffer(messages.next()), schema)


def _engine_batches(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a batch in types that all engines share; of no columns, only its number of rows."""
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
    versioned: bool = True,
) -> Spark:
    """Return an engine for a Spark DataFrame of a stored table, or for the path of a Parquet file, a folder
    of these or a pattern ("visits/*.parquet").

    `related` holds the data of the tables that `public.tables` declares, in the same ways. `spark`: the
    session whose cluster reads paths; by default the one that is active, or one on this machine. `seconds`: a
    query that takes longer is cancelled, and fails with `TimeLimit`. `versioned`: whether `public.version`
    was declared by somebody who knows that it changes when the table does.
    """
    tables = {public.table: data, **(related or {})}
    return Spark(tables, public, spark=spark, seconds=seconds, key=key, versioned=versioned)
