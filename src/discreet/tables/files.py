"""Makes one table of several files: a folder, a pattern or a list of Parquet or CSV files.

The list of files is fixed when the table is opened: a file that is added later is not part of it, and a
Parquet file that changes or is removed is noticed before a charge (CSV files are read as a whole when they
are opened). Files of one table have the same columns, of the same types.

Paths are tested by os.path, for which a name that is too long for the system does not exist; pathlib would
raise an error.

Describes the format of a CSV file: the delimiter of its fields, its decimal and thousands marks, its
dates.

The steward declares it in the schema file. It is never guessed when a table is opened; `look` proposes one
for a draft of that file.

    [format]
    delimiter = ";"
    decimal = ","
    thousands = "."
    dates = ["%d.%m.%Y", "%Y-%m-%d"]

A value that does not convert is missing: `discreet check` shows the steward the share of such values.

Opens CSV files that may be compressed, by the last ending of their name: .gz, .zst, or neither.

DuckDB decompresses the same files by itself. Here they are read before that, for what it must not guess: the
names of columns, quotes and line endings.

Tells whether the quotes of a CSV file pair up: an unclosed one would swallow the lines after it, so that
one row hides others.

The whole file is read once, when the steward opens it. Analysts, who do not open files, do not see the
result.

Makes private folders in the temporary directory: for data that does not fit into an engine's memory, for
ledgers of trial sessions, and for files that are being written. The process that creates a folder removes it;
after a crash, the next process that creates such a folder does (`sweep`).

Each folder holds a file that its owner keeps locked. A folder of this user whose lock can be taken has no
owner any more.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import os
import shutil
import stat
import tempfile
import time
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
import pyarrow as pa

from .. import _require, _system
from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories, Dates, Fact, Public, Text
from .._require import LISTED, Limit
from .._text import is_text

# The marks between thousands; "" is none.
_THOUSANDS = ("", ".", ",", " ", "'", "\u2019", "\u00a0", "\u202f")


def _check_delimiter(*, delimiter: str) -> None:
    is_text = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
    if not is_text or delimiter in '"\n\r':
        # It must be one byte, because `multiline` compares single bytes.
        raise _require.fail("delimiter", delimiter, "one character of ASCII, such as ';'")


@_require.checked
@dataclass(frozen=True, slots=True)
class Format:
    """Describes how a CSV file is written. A `delimiter` of None stands for a comma, or a tab in .tsv files.

    `dates`: formats of strptime, tried in this order; without any, dates are read as ISO (2020-01-31).
    `encoding`: the name of one in which each byte is a character, such as cp1252; None is UTF-8. `trim`,
    `true`, `false` and `strip` are entries of `Codebook` for all columns, and for tables in any form.
    """

    delimiter: Annotated[str, Limit(_check_delimiter)] | None = None
    decimal: Literal[".", ","] = "."
    thousands: str = ""
    dates: Annotated[tuple[str, ...], LISTED] = ()
    encoding: str | None = None
    trim: bool = False
    true: Annotated[tuple[str, ...], LISTED] = ()
    false: Annotated[tuple[str, ...], LISTED] = ()
    strip: Annotated[tuple[str, ...], LISTED] = ()

    def __post_init__(self) -> None:
        _check_thousands(self)
        _check_encoding(self.encoding)
        for text in self.dates:
            if not isinstance(text, str) or "%" not in text or len(text) > 40:
                raise _require.fail("dates", text, "formats such as '%d.%m.%Y'")


def _check_thousands(written: Format | Codebook) -> None:
    if written.thousands not in _THOUSANDS or written.thousands == written.decimal:
        raise _require.fail(
            "thousands", written.thousands, "'' or a mark such as '.', and not the decimal mark"
        )


def _check_encoding(name: str | None) -> None:
    """Refuse an encoding in which a character has several bytes: there, a broken one could take the end of a
    line with it, and one row hide another."""
    if name is None:
        return
    with suppress(LookupError, TypeError, ValueError):
        texts = [bytes([byte]).decode(name, "replace") for byte in range(256)]
        if all(len(text) == 1 for text in texts) and texts[:128] == list(map(chr, range(128))):
            return
    raise _require.fail(
        "encoding",
        name,
        'one of single bytes, such as "cp1252" or "latin-1". Convert a file in another one to UTF-8, and '
        "leave encoding out",
    )


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Codebook:
    """Says how the texts of one column are read, as the schema file declares it.

    `trim`: without blanks at their ends. `same`: for a spelling, the one that it stands for. `true`, `false`:
    words, in any letter case, beside those that are read anyway. `decimal`, `thousands`: the marks inside a
    number. `strip`: what may stand before or behind one, such as a currency. `codes`: texts that stand for a
    missing value, and are left as they are. `for_all`: whether the file declares it for all its columns.
    """

    trim: bool = False
    same: Mapping[str, str] = field(default_factory=dict, hash=False)
    true: Annotated[tuple[str, ...], LISTED] = ()
    false: Annotated[tuple[str, ...], LISTED] = ()
    decimal: Literal[".", ","] = "."
    thousands: str = ""
    strip: Annotated[tuple[str, ...], LISTED] = ()
    codes: tuple[str, ...] = ()
    for_all: bool = False

    def __post_init__(self) -> None:
        _require.must(isinstance(self.same, Mapping), "same", self.same, '{"innere" = "Innere"}')
        words = (*self.same, *self.same.values(), *self.true, *self.false, *self.strip)
        for word in words:
            _require.must(
                isinstance(word, str) and word and is_text(word), "a codebook's word", word, "a text"
            )
        if chained := sorted(set(self.same.values()) & set(self.same)):
            raise InvalidInput(
                f"same: {chained[0]!r} stands for another spelling, and one stands for it. Name the last one "
                "for both."
            )
        if both := {word.lower() for word in self.true} & {word.lower() for word in self.false}:
            raise InvalidInput(f"{min(both)!r} is declared as true and as false.")
        _check_thousands(self)

    @property
    def numeric(self) -> bool:
        """Whether it says how numbers are written."""
        return bool(self.strip or self.thousands or self.decimal != ".")


# The entries of a codebook that each type of column may have in a schema file.
BOOK_ENTRIES: dict[type[Fact], tuple[str, ...]] = {
    Categories: ("trim", "same"),
    Text: ("trim", "same"),
    Boolean: ("true", "false"),
    Bounds: ("decimal", "thousands", "strip"),
}
# Those that stand under [format] for all columns of a table.
_FOR_ALL = ("trim", "true", "false", "strip")


@dataclass(frozen=True, slots=True)
class Csv:
    """Names a CSV file with its format, the columns declared as numbers and as dates (`days`), and by column
    the texts that are declared as codes of missing values."""

    path: Path
    format: Format
    numbers: tuple[str, ...] = ()
    days: tuple[str, ...] = ()
    codes: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return self.path.name


def _sections(file: Path, table: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections [format] and [columns] of a schema file, or those of another `table` in it."""
    body = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    where = "format" if table is None else f"tables.{table}.format"
    body = body if table is None else body.get("tables", {}).get(table, {})
    section = body.get("format", {})
    if not isinstance(section, dict):
        raise InvalidInput(f"[{where}] must be a table, got {type(section).__name__}.")
    allowed = {entry.name for entry in fields(Format)}
    if unknown := sorted(set(section) - allowed):
        raise InvalidInput(
            f"[{where}] has no entry {unknown[0]!r}.{_require.did_you_mean(unknown[0], allowed)} It may have "
            f"{', '.join(sorted(allowed))}."
        )
    return section, body.get("columns", {})


def format_of(file: Path, table: str | None = None) -> Format:
    """Return the format that a schema file declares of its table, or of another `table` in it."""
    return Format(**_sections(file, table)[0])


def codebooks_of(file: Path, public: Public) -> dict[str, dict[str, Codebook]]:
    """Return by table and column the codebooks that a schema file declares. A column that tells people apart
    has none: two ids that become one would make two people one."""
    tables = [
        (public.table, None, public.schema, public.unit.column),
        *((other.name, other.name, other.schema, other.unit_column) for other in public.tables),
    ]
    references = {(t.name, t.reference.column) for t in public.tables if t.reference is not None}
    references |= {(t.reference.of, t.reference.key) for t in public.tables if t.reference is not None}
    books: dict[str, dict[str, Codebook]] = {}
    for table, section_name, schema, unit in tables:
        section, columns = _sections(file, section_name)
        for name, fact in schema:
            entries = BOOK_ENTRIES.get(type(fact), ())
            own = {entry: columns[name][entry] for entry in entries if entry in columns[name]}
            shared = {entry: section[entry] for entry in entries if entry in section}
            is_id = name == unit or (table, name) in references
            if own and is_id:
                raise InvalidInput(
                    f"column {name!r} of {table!r} tells people apart, and {sorted(own)[0]!r} could make two "
                    "people one. Take it out there, and make the ids alike in the data."
                )
            # Marks of numbers that only [format] declares are for `duckdb_reading.rewritten`.
            if not is_id and (own or not shared.keys().isdisjoint(_FOR_ALL)):
                codes = tuple(code for code in fact.missing if isinstance(code, str))
                book = Codebook(**{**shared, **own}, codes=codes, for_all=not own)
                books.setdefault(table, {})[name] = book
    return books


def formatted(data: Any, schema: Path, public: Public, section: str | None = None) -> Any:
    """Return CSV data with the format that a schema file declares for the main table, or for another one by
    its section [tables.NAME]; unchanged data where it declares none. A format for data that is no CSV file is
    refused."""
    format = format_of(schema, section)
    if replace(format, trim=False, true=(), false=(), strip=()) == Format():
        return data
    is_several = isinstance(data, Files)
    first = data.paths[0] if is_several else data
    suffixes = Path(first).suffixes if isinstance(first, str | Path) else []
    if not any(suffix in (".csv", ".tsv") for suffix in suffixes):
        raise InvalidInput("[format] is about CSV files, and this is none. Take it out of the schema file.")
    columns = next((other.schema for other in public.tables if other.name == section), public.schema)
    for name, fact in columns:
        _check_codes(name, fact, format)
    books = codebooks_of(schema, public).get(section or public.table, {})
    numbers = tuple(name for name, fact in columns if isinstance(fact, Bounds) and name not in books)
    days = tuple(name for name, fact in columns if isinstance(fact, Dates))
    codes = {name: [code for code in fact.missing if isinstance(code, str)] for name, fact in columns}
    if is_several:
        return data.written_as(format, numbers, days, codes)
    return Csv(Path(data), format, numbers, days, codes)


def _check_codes(name: str, fact: Fact, format: Format) -> None:
    """Refuse a code of a missing value that is a number or a day in the file's notation, and another one or
    none by itself: codes are compared after the file is read, so it would match nothing, and 01.01.1900 would
    count as the lower bound."""
    for code in (code for code in fact.missing if isinstance(code, str)):
        meant: list[Any] = []
        by_itself: list[Any] = []
        if isinstance(fact, Bounds):
            digits = code.replace(format.thousands, "") if format.thousands else code
            meant = _read(float, digits.replace(format.decimal, "."))
            by_itself = _read(float, code)
        elif isinstance(fact, Dates):
            meant = [day for form in format.dates for day in _read(datetime.strptime, code, form)][:1]
            by_itself = _read(datetime.fromisoformat, code)
        # by what they look like: NaN differs from itself
        if meant and str(meant) != str(by_itself):
            value = meant[0] if isinstance(fact, Bounds) else f'"{meant[0].date()}"'
            raise InvalidInput(
                f"column {name!r}: the code {code!r} is written as in the file, and codes are compared after "
                f"the file is read. Write missing = [{value}]."
            )


def _read(convert: Callable[..., Any], *arguments: str) -> list[Any]:
    """Return what a text says, as a list of one; an empty list where it says nothing."""
    with suppress(ValueError):
        return [convert(*arguments)]
    return []


# The characters that make a path a pattern (`glob`).
_WILDCARDS = "*?["


@dataclass(frozen=True)
class Files:
    """Lists the files of one table, in order: at least one, all Parquet or all CSV.

    `parts` are paths, or CSV files with their format. `named_by`: the folder, pattern or list that was given
    for them, by which `complete` looks for files that came later.
    """

    parts: tuple[Path | Csv, ...]
    named_by: Any = field(default=None, compare=False)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(part.path if isinstance(part, Csv) else part for part in self.parts)

    @property
    def kind(self) -> str:
        return kind_of_file(self.paths[0])

    def complete(self) -> bool:
        """Return whether the folder or pattern still stands for these files and no others. A folder that is
        gone counts as complete here; the engine notices its missing files (`file_stamp`)."""
        try:
            now = None if self.named_by is None else several(self.named_by)
        except InvalidInput:
            return False
        return now is None or now.paths == self.paths

    def written_as(
        self,
        format: Any,
        numbers: tuple[str, ...],
        days: tuple[str, ...],
        codes: Mapping[str, Sequence[str]],
    ) -> Files:
        """Return the same CSV files with the format in which they are written; `numbers` and `days` are the
        columns whose text it parses, and `codes` the texts that it leaves as they are (`Csv`)."""
        return replace(self, parts=tuple(Csv(path, format, numbers, days, codes) for path in self.paths))


def kind_of_file(path: Path) -> str:
    """Return "parquet", "csv" (compressed or not), or "" for anything else: a copy "1.csv.bak" that an editor
    kept, a ledger "1.csv.ledger"."""
    suffixes = path.suffixes
    if len(suffixes) > 1 and suffixes[-1] in (".gz", ".zst"):
        return "csv" if suffixes[-2] in (".csv", ".tsv") else ""
    return {".parquet": "parquet", ".csv": "csv", ".tsv": "csv"}.get(path.suffix, "")


def several(data: Any) -> Files | None:
    """Return the files that a folder, a pattern or a list of paths stands for; None for anything else, such
    as a single file, a data frame or an address."""
    if isinstance(data, Files):
        return data
    if isinstance(data, list | tuple):
        if not data or not all(isinstance(part, str | Path) for part in data):
            return None
        return _check_files([Path(part) for part in data], "the list", list(data))
    if not isinstance(data, str | Path) or "://" in str(data) or "::" in str(data):
        return None
    refuse_empty(data)
    path = Path(data)
    if os.path.isdir(path):
        data_files = [p for p in _walk(path) if os.path.isfile(p) and kind_of_file(p)]
        return _check_files(sorted(data_files), repr(str(data)), data)
    if not os.path.exists(path) and any(mark in str(data) for mark in _WILDCARDS):
        matches = [Path(match) for match in glob.glob(str(data), recursive=True)]
        return _check_files(sorted(p for p in matches if p.is_file()), repr(str(data)), data)
    return None


def refuse_empty(data: Any) -> None:
    """Refuse the empty text as the path of data: to the system it is the current folder, which nobody meant.
    To be called before a text becomes a `Path`, in which the two cannot be told apart."""
    if isinstance(data, str) and data == "":
        raise InvalidInput("the name of the file is empty.")


def _walk(folder: Path) -> list[Path]:
    """Return everything below a folder that is neither a folder nor hidden; refuse a folder with a part that
    cannot be listed, as the table would lack its rows."""

    def refuse(error: OSError) -> None:
        raise InvalidInput(
            f"the folder {str(error.filename)!r} cannot be listed: {error.strerror}."
        ) from None

    paths = []
    for current, folders, names in os.walk(folder, onerror=refuse):
        # Changed in place: `os.walk` goes on into the folders that are left.
        folders[:] = [name for name in folders if not _hidden(name)]
        paths += [Path(current, name) for name in names if not _hidden(name)]
    return paths


def stand_in(data: Any) -> Path | None:
    """Return the path from which the table and its ledger get their names where `data` is a folder or a
    pattern: the folder that holds the files; where wildcards begin in the current folder or in the name of
    a folder, the text before the first wildcard ("visits" of "visits-*.parquet").

    A pattern with one wildcard, in the name of a folder ("data/*/x.parquet"), was named after that folder
    before ("data/*"). Where a ledger lies there, it goes on: a new one would be a fresh budget.
    """
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if not any(mark in str(data) for mark in _WILDCARDS) or os.path.exists(path):
        return path if path.name else path.resolve()
    wild_parts = [part for part in path.parts if any(mark in part for mark in _WILDCARDS)]
    first = wild_parts[0]
    in_one_folder = len(wild_parts) == 1 and first == path.name
    has_older_ledger = len(wild_parts) == 1 and os.path.exists(f"{path.parent}.ledger")
    if path.parent != Path() and path.parent.name and (in_one_folder or has_older_ledger):
        return path.parent
    prefix = first[: min(first.index(mark) for mark in _WILDCARDS if mark in first)].rstrip("-_. ")
    folder = Path(*path.parts[: path.parts.index(first)])
    return folder / prefix if prefix else folder.resolve()


def _hidden(name: str) -> bool:
    """Return whether a file or folder is one that a program keeps for itself (_SUCCESS,
    .ipynb_checkpoints)."""
    return name.startswith((".", "_"))


def _check_files(paths: Iterable[Path], what: str, named_by: Any) -> Files:
    """Return the files of a table; refuse any that is not there, is named twice, or is of another kind."""
    files = tuple(paths)
    if not files:
        raise InvalidInput(f"there is no Parquet or CSV file in {what}.")
    if gone := [path for path in files if not os.path.isfile(path)]:
        raise InvalidInput(f"there is no file {str(gone[0])!r}.")
    # Compared by device and inode: symbolic and hard links are the same file.
    stats = [path.stat() for path in files]
    if len({(stat.st_dev, stat.st_ino) for stat in stats}) < len(files):
        raise InvalidInput(f"a file is named twice in {what}: its rows would count twice.")
    kinds = {kind_of_file(path) for path in files}
    if kinds not in ({"parquet"}, {"csv"}):
        raise InvalidInput(
            f"the files of {what} are not all Parquet, nor all CSV. Give a pattern that means one kind, such "
            "as 'visits/*.parquet'."
        )
    return Files(files, named_by)


# How many decompressed bytes are read at once. A convention.
_BUFFER = 2**16


def open_bytes(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file to read its decompressed bytes. One that was cut off, is damaged or is not compressed as
    its name says is refused, here or while it is read."""
    name = os.fspath(path)
    if name.endswith(".zst"):
        return io.BufferedReader(_Decompressed(pa.CompressedInputStream(name, "zstd"), name), _BUFFER)
    if name.endswith(".gz"):
        return io.BufferedReader(_Decompressed(gzip.open(name, "rb"), name), _BUFFER)
    return open(name, "rb")


class _Decompressed(io.RawIOBase):
    """Reads a stream that decompresses, whose many errors become one refusal that names the file."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._file = stream, os.path.basename(name)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            # One with a number is the disk's, not of the decompression.
            if getattr(error, "errno", None) is not None:
                raise
            raise InvalidInput(
                f"{self._file!r} cannot be decompressed: it was cut off or damaged, or is not compressed as "
                "its name says. Copy or compress the file again."
            ) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_text(path: str | os.PathLike[str], *, errors: str, encoding: str | None = None) -> IO[str]:
    """Open a file as text in its encoding, or in UTF-8 with or without a byte-order mark, its line endings as
    they are."""
    return io.TextIOWrapper(open_bytes(path), encoding=encoding or "utf-8-sig", errors=errors, newline="")


def is_utf8(line: bytes) -> bool:
    """Return whether a line is text in UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


# The quote character, and the bytes of a file that are read at once.
_QUOTE, _CHUNK = ord('"'), 1 << 24


def multiline(file: IO[bytes], mark: str) -> bool | None:
    """Return whether some quoted text spans lines; None if quotes do not pair up as in RFC 4180. `mark` is
    the delimiter of fields.

    A quote opens a text at the start of a field and closes it at its end; two in a row inside stand for one.
    So the first, third, fifth, ... quote of a file comes after a delimiter, a line end or another quote, and
    the second, fourth, ... comes before one of these.

    >>> import io
    >>> multiline(io.BytesIO(b'a,b\\n1,"x ""y"" z"\\n'), ",")
    False
    >>> print(multiline(io.BytesIO(b'a,b\\n1,"x\\n2,y\\n'), ","))
    None
    """
    ends = np.array([ord(mark), ord("\n"), ord("\r")], np.uint8)
    count, before, spans = 0, ord("\n"), False
    for chunk, after in _chunks(file):
        positions = np.flatnonzero(chunk == _QUOTE)
        bordered = np.concatenate([[before], chunk, [after]]).astype(np.uint8)
        opening = (count + np.arange(len(positions))) % 2 == 0
        # The byte at a position of `chunk` is one further in `bordered`: this is the byte before an opening
        # quote, and the byte after a closing one.
        outside = np.where(opening, bordered[positions], bordered[positions + 2])
        if not (np.isin(outside, ends) | (outside == _QUOTE)).all():
            return None
        if len(positions) or count % 2:
            lines = np.flatnonzero((chunk == ends[1]) | (chunk == ends[2]))
            spans |= bool(((count + np.searchsorted(positions, lines)) % 2).any())
        count, before = count + len(positions), int(chunk[-1])
    return None if count % 2 else spans


def _chunks(file: IO[bytes]) -> Iterator[tuple[Any, int]]:
    """Yield the bytes of a file in chunks, each with the byte that follows it (a line feed after the
    last)."""
    part = file.read(_CHUNK).removeprefix(codecs.BOM_UTF8)
    while part:
        following = file.read(_CHUNK)
        yield np.frombuffer(part, np.uint8), following[0] if following else ord("\n")
        part = following


PREFIX, TRIAL_PREFIX, FILES_PREFIX = "discreet-spill-", "discreet-trial-", "discreet-files-"
_LOCK = "in-use"
# Seconds after which a folder without a lock file, which was not completely made, counts as left behind by a
# crashed process; chosen by hand, not tuned.
_GRACE = 24 * 3600.0


class PrivateFolder:
    """Holds a private folder (mode 0700) for as long as this process needs it. Folders of the same prefix
    that crashed processes left behind are removed first."""

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._pid = os.getpid()
        # The file is locked before it gets its final name. Otherwise a `sweep` between its creation and its
        # locking could take the lock and remove the folder; not where an open file cannot be removed.
        provisional = self.path / (f"{_LOCK}-soon" if _system.MOVES_OPEN_FILES else _LOCK)
        self._lock = _system.create_file(provisional)
        _system.lock(self._lock)
        if _system.MOVES_OPEN_FILES:
            provisional.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder with its contents. A forked child does not remove its parent's folder."""
        if self._pid == os.getpid():
            # First, as some systems remove no open file. Another process that sweeps now removes it, too.
            with suppress(OSError):
                os.close(self._lock)
            shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.remove()


class Spill(PrivateFolder):
    """Holds a private folder for data that does not fit into an engine's memory."""

    def __init__(self) -> None:
        super().__init__(PREFIX)


def sweep(prefix: str = PREFIX) -> list[Path]:
    """Remove the folders that crashed processes of this user have left behind, and return their paths."""
    leftovers = [path for path in Path(tempfile.gettempdir()).glob(prefix + "*") if _is_left(path)]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return leftovers


def _is_left(path: Path) -> bool:
    """Return whether a folder of this user belongs to no running process."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or not _system.is_own(status):
            return False
        handle = _system.open_file(path / _LOCK)
    except FileNotFoundError:
        # There is no lock file, or the folder itself is gone: then `status` is not set, and not used.
        return path.exists() and time.time() - status.st_mtime > _GRACE
    except OSError:
        return False
    try:
        return _system.try_lock(handle)
    except OSError:
        return False
    finally:
        os.close(handle)
