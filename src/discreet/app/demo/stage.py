"""Writes the output of the demo's chapters: text, tables and bar charts in the terminal, and pictures as
files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ..._errors import MissingExtra

# The colors of all pictures: text, what a chart is about, and what it is compared with.
INK, ACCENT, PALE = "#1f2933", "#0b6e99", "#b8c4ce"


@dataclass(frozen=True)
class Bar:
    """Holds one bar of a chart: a private value, the half-width of its 95% interval (`error`), and the true
    value where it is public."""

    label: str
    value: float
    error: float
    truth: float | None


@dataclass(frozen=True)
class Stage:
    """Prints to `console` and saves pictures in the folder `out`."""

    console: Console
    out: Path
    # the remarks printed so far: each is printed once, not in every chapter
    remarks: set[str] = field(default_factory=set)

    def title(self, number: int, text: str) -> None:
        """Print the heading of a chapter."""
        self.console.print()
        self.console.rule(f"[bold]{number}. {text}", align="left", style=ACCENT)

    def say(self, text: str) -> None:
        """Print text with rich's markup, such as [bold]. Text with brackets of its own goes to `plain` or
        `aside`."""
        self.console.print(text, highlight=False, soft_wrap=False)

    def plain(self, text: str) -> None:
        """Print text unchanged: brackets are not markup, and long lines are not wrapped."""
        self.console.print(Text(text), soft_wrap=True)

    def aside(self, text: str) -> None:
        """Print a remark dimmed, and only the first time. Brackets are not markup, because the remarks name
        extras, such as discreet[plots]."""
        if text not in self.remarks:
            self.console.print(Text(text, style="dim"))
        self.remarks.add(text)

    def saved(self, *paths: Path) -> None:
        """Print where pictures were saved. Brackets in a path are not markup."""
        noun = "picture" if len(paths) == 1 else "pictures"
        names = " and ".join(str(path) for path in paths)
        self.console.print(Text.assemble((f"{noun} saved as ", "dim"), names), highlight=False)

    def code(self, sql: str) -> None:
        """Print a question in SQL."""
        self.console.print(Syntax(sql, "sql", theme="ansi_light", background_color="default"))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; the first column, and columns without a name, are left-aligned."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        for position, name in enumerate(columns):
            table.add_column(name, justify="left" if position == 0 or not name.strip() else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def bars(self, bars: Sequence[Bar], *, digits: int = 0) -> None:
        """Print a chart: a bar up to each private value, a whisker for its 95% interval, and a mark at the
        true value. `digits` is the number of decimals of the values."""
        label_width = max(len(bar.label) for bar in bars)
        width = max(20, min(64, self.console.width - label_width - 12))
        top = max(max(bar.value + bar.error, bar.truth or 0) for bar in bars) or 1.0
        for bar in bars:
            line = Text(f"{bar.label:>{label_width}} ")
            line.append_text(_line(bar, width, top))
            line.append(f" {bar.value:,.{digits}f}", style="bold")
            self.console.print(line)
        self.console.print(
            Text.assemble(
                " " * (label_width + 1),
                ("█", ACCENT),
                " private value   ",
                ("├┤", "bold"),
                " 95 in 100   ",
                ("◆", "bold red"),
                " truth",
            )
        )

    def picture(self, name: str, bars: Sequence[Bar], *, title: str, caption: str) -> Path | None:
        """Save the chart of `bars` as `name`.png and return its path; without matplotlib print how to install
        it and return None."""
        try:
            path = draw(self.out / f"{name}.png", bars, title, caption)
        except MissingExtra as missing:
            self.aside(str(missing))
            return None
        self.saved(path)
        return path


def _line(bar: Bar, width: int, top: float) -> Text:
    """Return one bar as `width` characters, of which the last stands for the value `top`."""

    def column(value: float) -> int:
        """Return the character of a value; values outside the chart are drawn at its ends."""
        return max(0, min(width - 1, round(value / top * (width - 1))))

    cells = [(("█", ACCENT) if i <= column(bar.value) and bar.value > 0 else (" ", "")) for i in range(width)]
    low, high = column(bar.value - bar.error), column(bar.value + bar.error)
    for i in range(low, high + 1):
        glyph = "├" if i == low else "┤" if i == high else "─"
        cells[i] = (glyph, "bold")
    if bar.truth is not None:
        cells[column(bar.truth)] = ("◆", "bold red")
    line = Text()
    for glyph, style in cells:
        line.append(glyph, style=style)
    return line


def draw(path: Path, bars: Sequence[Bar], title: str, caption: str) -> Path:
    """Save bars with error bars as a PNG."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra.of("plots", "no picture: matplotlib is missing") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    positions = range(len(bars))
    values = [max(bar.value, 0) for bar in bars]
    axes.bar(positions, values, 0.62, color=PALE, label="private value", zorder=2)
    axes.errorbar(
        positions, [bar.value for bar in bars], yerr=[bar.error for bar in bars],
        fmt="none", ecolor=INK, elinewidth=1.6, capsize=7, capthick=1.6, label="95% interval", zorder=3,
    )  # fmt: skip
    truths = [
        (position, bar.truth) for position, bar in zip(positions, bars, strict=True) if bar.truth is not None
    ]
    if truths:
        axes.scatter(*zip(*truths, strict=True), marker="D", s=34, color=ACCENT, label="truth", zorder=4)
    axes.set_xticks(list(positions), [bar.label for bar in bars])
    axes.set_title(title, loc="left", fontsize=13, color=INK, fontweight="bold")
    axes.set_xlabel(caption, loc="left", fontsize=9, color="#52606d", labelpad=10)
    axes.yaxis.grid(visible=True, color="#e4e7eb", zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    # outside the axes, where it covers no bar
    figure.legend(frameon=False, loc="outside lower right", ncols=3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
