"""Holds a private answer: the table of released values, how far off they may be, what they cost, and how they
were made, in words.

Everything in it follows from released values and public parameters, so it can be stored, sent and drawn
freely.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .. import _require
from .._errors import InvalidInput, MissingExtra, UnknownAttribute
from .._registry import described, from_json, to_json
from .._text import visible
from ..accounting import Event
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from .means import MeanColumn
from .public_size import PublicSize
from .ranges import Range

Value = str | int | float | bool | None


@described("query.Answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(_require.NearestNames):
    """Holds a private answer. Each row of `rows` and of `deviations` (standard deviations of the noise) has
    one entry per column; a deviation is None for keys and for chosen values (quantiles, modes).

    Confidence intervals of a column come from its entry in one of three fields, else from its deviations.
    `noises`: for a column that is one noisy number per row, the integer noise, and the amount that one step
    of it stands for; these intervals are exact. `means`: for averages. `ranges`: for variances, standard
    deviations and expressions. The intervals of `means` and `ranges` hold for tables of every size. A column
    with none of them (a number of `WorkloadQuery`) is a linear combination of draws of the noises `combined`,
    and has intervals from its deviations (`noise_tails.laplace_width`).

    `sql` and `plan`: the query, and how it was answered, in words. `notes`: errors that the intervals do not
    cover, in words.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    deviations: tuple[tuple[float | None, ...], ...]
    noises: tuple[tuple[IntegerLaplace | IntegerGaussian | PublicSize, Fraction] | None, ...]
    event: Event
    epsilon: float | None = None
    delta: float = 0.0
    rho: float | None = None
    sql: str = ""
    plan: tuple[str, ...] = ()
    means: tuple[MeanColumn | None, ...] = ()
    ranges: tuple[Range | None, ...] = ()
    notes: tuple[str, ...] = ()
    combined: tuple[IntegerLaplace | IntegerGaussian, ...] = ()

    def _unknown(self, name: str) -> UnknownAttribute:
        """Return the error for an unknown attribute; for the name of a column it says to write
        answer[name]."""
        if name in self.columns:
            return UnknownAttribute(
                f"'Answer' object has no attribute {name!r}, but a column of that name: write "
                f"answer[{name!r}]."
            )
        return _require.NearestNames._unknown(self, name)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """Return the values of a column."""
        return [row[self._at(column)] for row in self.rows]

    @property
    def value(self) -> Any:
        """The value of an answer with one row and one column."""
        if len(self.rows) != 1 or len(self.columns) != 1:
            raise InvalidInput(
                f"this answer has {len(self.rows)} rows of {list(self.columns)}: name a column, "
                f"answer['...']."
            )
        return self.rows[0][0]

    def __float__(self) -> float:
        """Return the number of an answer with one row and one column."""
        value = self.value
        if not isinstance(value, int | float):
            raise InvalidInput(f"the answer is {value!r}, which is no number.")
        return float(value)

    def error(self, confidence: float = 0.95) -> dict[str, list[float | None]]:
        """Return, for every column that has errors, how far each of its values may be from the truth with
        this confidence; the confidence is that of each value by itself."""
        _require.open_probability(confidence=confidence)
        errors: dict[str, list[float | None]] = {}
        for i, name in enumerate(self.columns):
            widths = self._widths(i, confidence)
            if any(width is not None for width in widths):
                errors[name] = widths
        return errors

    def interval(self, confidence: float = 0.95) -> dict[str, list[tuple[float, float] | None]]:
        """Return the confidence interval of each value, for every column of `error`; it is computed from
        public parameters and released values only."""
        intervals: dict[str, list[tuple[float, float] | None]] = {}
        for name, widths in self.error(confidence).items():
            column = self._interval_column(self._at(name))
            intervals[name] = [
                None
                if v is None or w is None
                else (float(v) - w, float(v) + w)
                if column is None
                else column.interval(r, confidence)
                for r, (v, w) in enumerate(zip(self[name], widths, strict=True))
            ]
        return intervals

    def _interval_column(self, i: int) -> MeanColumn | Range | None:
        """Return the object that computes the intervals of column `i`, if it has one."""
        mean = self.means[i] if self.means else None
        return mean if mean is not None or not self.ranges else self.ranges[i]

    def _widths(self, i: int, confidence: float) -> list[float | None]:
        """Return, for each row of a column, how far the ends of its interval are from its value, at most;
        None where there is no interval."""
        noise = self.noises[i]
        if noise is not None:
            width = float(noise[0].error(confidence) * noise[1])
            return [width] * len(self.rows)
        column = self._interval_column(i)
        if column is not None:
            intervals = [column.interval(r, confidence) for r in range(len(self.rows))]
            return [
                None if row[i] is None or ends is None else max(ends[1] - row[i], row[i] - ends[0], 0.0)
                for row, ends in zip(self.rows, intervals, strict=True)
            ]
        if not self.combined:
            return [None] * len(self.rows)
        z = max(noise.combined_width(confidence) for noise in self.combined)
        return [None if row[i] is None else z * row[i] for row in self.deviations]  # type: ignore[operator]

    def _is_exact(self, column: str) -> bool:
        """Return whether the numbers of a column are public, and so without noise."""
        noise = self.noises[self._at(column)]
        return noise is not None and isinstance(noise[0], PublicSize)

    def _at(self, column: str) -> int:
        """Return the position of a column."""
        if column not in self.columns:
            raise InvalidInput(f"the answer has no column {column!r}; it has {', '.join(self.columns)}.")
        return self.columns.index(column)

    def bars(self, value: str | None = None, confidence: float = 0.95) -> dict[str, list[Any]]:
        """Return what a bar chart with error bars needs: the heights and errors of one column, and as labels
        the columns without deviations (keys, and chosen values such as medians). By default the first column
        with errors is drawn."""
        errors = self.error(confidence)
        name = value if value is not None else next(iter(errors), None)
        if name is None or name not in errors:
            raise InvalidInput(f"no bars for column {name!r}; columns with errors: {', '.join(errors)}.")
        keys = (
            [
                i
                for i, column in enumerate(zip(*self.deviations, strict=True))
                if all(d is None for d in column)
            ]
            if self.rows
            else []
        )
        labels = [", ".join(str(row[i]) for i in keys) for row in self.rows]
        return {"labels": labels, "heights": self[name], "errors": errors[name]}

    def to_dict(self) -> dict[str, list[Any]]:
        return {name: self[name] for name in self.columns}

    def to_arrow(self) -> Any:
        import pyarrow as pa

        return pa.table({name: _array(self[name]) for name in self.columns})

    def to_pandas(self, *, intervals: float | None = None) -> Any:
        """Return a data frame; with `intervals=0.95`, each column n that has errors is followed by two
        more, the ends of its 95% confidence intervals: `n_lower` and `n_upper`."""
        try:
            import pandas as pd  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise MissingExtra("to_pandas needs pandas: pip install 'discreet[frames]'.") from None
        return pd.DataFrame(self.to_dict() if intervals is None else self._with_intervals(intervals))

    def _with_intervals(self, confidence: float) -> dict[str, list[Any]]:
        """Return the columns, each that has errors followed by the lower and upper ends of its intervals."""
        intervals = self.interval(confidence)
        columns: dict[str, list[Any]] = {}
        for i, name in enumerate(self.columns):
            columns[name] = self[name]
            # An average without a value (more noise than rows) has its two columns, too: a script that reads
            # them must not fail by chance.
            nothing = None if self._interval_column(i) is None else [None] * len(self.rows)
            if (ends_of_rows := intervals.get(name, nothing)) is not None:
                for side, suffix in enumerate(("lower", "upper")):
                    columns[_free(f"{name}_{suffix}", self.columns)] = [
                        None if ends is None else ends[side] for ends in ends_of_rows
                    ]
        return columns

    def plot(self, value: str | None = None, *, confidence: float = 0.95, ax: Any = None) -> Any:
        """Draw one column as bars with error bars, with matplotlib; returns the axes."""
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise MissingExtra.of("plots", "plot needs matplotlib") from None
        bars = self.bars(value, confidence)
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        heights = [float("nan") if h is None else float(h) for h in bars["heights"]]
        ax.bar(
            range(len(heights)), heights, yerr=[e or 0.0 for e in bars["errors"]], color="#0b6e99", capsize=3
        )
        ax.set_xticks(range(len(heights)), [str(label) for label in bars["labels"]], rotation=30, ha="right")
        ax.set_ylabel(value if value is not None else next(iter(self.error(confidence))))
        ax.set_title(f"{self.price}; whiskers: {confidence:.0%} intervals", fontsize="small")
        return ax

    def _repr_html_(self) -> str:
        from .pages import answer_html

        return answer_html(self)

    def to_polars(self) -> Any:
        try:
            import polars  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise MissingExtra("to_polars needs polars: pip install polars.") from None
        return polars.from_arrow(self.to_arrow())

    def to_json(self) -> str:
        """Return the complete answer as JSON text; `Answer.from_json` is its exact inverse."""
        return json.dumps(to_json(self))

    @staticmethod
    def from_json(text: str) -> Answer:
        """Return the answer that `to_json` wrote."""
        try:
            description = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise InvalidInput("this is not JSON text, so not the description of an answer.") from None
        answer = from_json(description)
        if not isinstance(answer, Answer):
            raise InvalidInput("this is not the description of an answer.")
        return answer

    def text(
        self, confidence: float = 0.95, max_rows: int = 40, rest: str = "answer.rows or answer.to_pandas()"
    ) -> str:
        """Return a plain table for the terminal: values rounded by `shown_cell`, with the error beside them.

        At most `max_rows` rows are shown; `rest` is the text that says where to find the others.
        """
        errors = self.error(confidence)
        cells = [[visible(name) for name in self.columns]]
        for r, row in enumerate(self.rows[:max_rows]):
            cells.append(
                [
                    visible(shown_cell(v, errors[n][r] if n in errors else None, exact=self._is_exact(n)))
                    for n, v in zip(self.columns, row, strict=True)
                ]
            )
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                _pad(c, w, right) for c, w, right in zip(line, widths, self._numeric_columns(), strict=True)
            ).rstrip()
            for line in cells
        ]
        lines.insert(1, "  ".join("-" * w for w in widths))
        if len(self.rows) > max_rows:
            lines.append(f"... {len(self.rows) - max_rows:,} more rows: {rest}")
        without_errors = "no ±: see below" if self.notes else "no ±"
        if self.rows and all(value is None for row in self.rows for value in row):
            without_errors = "-: no value, as where the noise outweighs the number of rows"
        if errors and all(map(self._is_exact, errors)):
            footer = "exact"
        else:
            footer = f"{confidence:.0%} of errors are within ±" if errors else without_errors
        return "\n".join([*lines, f"({footer}; {self.price})", *(f"({note})" for note in self.notes)])

    @property
    def price(self) -> str:
        """The price in words."""
        if 0.0 in (self.epsilon, self.rho):
            return "free"
        if self.rho is not None:
            return f"rho {self.rho:.4g}"
        return f"epsilon {self.epsilon:.4g}" + (f", delta {self.delta:g}" if self.delta else "")

    def _numeric_columns(self) -> list[bool]:
        """Return for each column whether it holds numbers, by its first row; these are aligned right."""
        first: Sequence[Any] = self.rows[0] if self.rows else [None] * len(self.columns)
        return [isinstance(v, int | float) and not isinstance(v, bool) for v in first]

    def __str__(self) -> str:
        return self.text()


def shown_cell(value: Value, error: float | None, *, exact: bool = False) -> str:
    """Return a value with its error beside it, both with as many decimals as show two digits of the error
    (none from 10 on, and none for integers); "-" for a missing value. A number that is `exact` says so."""
    if value is None:
        return "-"
    if exact:
        return f"{value:,} (exact)"
    if error is None or isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) else str(value)
    digits = 0 if error <= 0 else max(0, 1 - math.floor(math.log10(error)))
    if isinstance(value, int) or digits == 0:
        return f"{round(value):,} ± {math.ceil(error):,}"
    return f"{value:,.{digits}f} ± {error:,.{digits}f}"


def _free(name: str, names: Sequence[str]) -> str:
    """Return `name`, with underscores appended until no column has it."""
    return name if name not in names else _free(f"{name}_", names)


def _array(values: list[Any]) -> Any:
    """Return an Arrow array of released values; integers beyond 64 bits make the column one of floats."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):
        return pa.array([None if v is None else float(v) for v in values])


def _pad(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)
