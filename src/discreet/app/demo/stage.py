"""What a chapter of the demo can do: speak, show a table, draw bars with whiskers, save the same as a
picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ..._errors import MissingExtra

INK, ACCENT, PALE = "#1f2933", "#0b6e99", "#b8c4ce"


@dataclass(frozen=True)
class Bar:
    """One row of a chart: a private value with its error, and the truth beside it where everybody may know
    it."""

    label: str
    value: float
    error: float
    truth: float | None


@dataclass(frozen=True)
class Stage:
    console: Console
    out: Path
    # remarks that were made already: the same one is not made in every chapter
    remarks: set[str] = field(default_factory=set)

    def title(self, number: int, text: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{number}. {text}", align="left", style=ACCENT)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=False)

    def plain(self, text: str) -> None:
        """Print text as it is: brackets are no markup, lines are not joined."""
        self.console.print(Text(text), soft_wrap=True)

    def aside(self, text: str) -> None:
        """Print a remark in small letters, once, as it is: the brackets of discreet[plots] are no markup."""
        if text not in self.remarks:
            self.console.print(Text(text, style="dim"))
        self.remarks.add(text)

    def code(self, sql: str) -> None:
        """Print a question in SQL."""
        self.console.print(Syntax(sql, "sql", theme="ansi_light", background_color="default"))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        for position, name in enumerate(columns):
            table.add_column(name, justify="left" if position == 0 or not name.strip() else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def bars(self, bars: Sequence[Bar], *, digits: int = 0) -> None:
        """Print the chart in the terminal: a bar to the private value, a whisker over its error, a mark at
        the truth."""
        labels = max(len(bar.label) for bar in bars)
        width = max(20, min(64, self.console.width - labels - 12))
        top = max(max(bar.value + bar.error, bar.truth or 0) for bar in bars) or 1.0
        for bar in bars:
            line = Text(f"{bar.label:>{labels}} ")
            line.append_text(_line(bar, width, top))
            line.append(f" {bar.value:,.{digits}f}", style="bold")
            self.console.print(line)
        self.console.print(
            Text.assemble(
                " " * (labels + 1),
                ("█", ACCENT),
                " private value   ",
                ("├┤", "bold"),
                " 95 in 100   ",
                ("◆", "bold red"),
                " truth",
            )
        )

    def picture(self, name: str, bars: Sequence[Bar], *, title: str, caption: str) -> Path | None:
        """Save the same chart as a PNG. Without matplotlib, say how to get it, and go on."""
        try:
            path = draw(self.out / f"{name}.png", bars, title, caption)
        except MissingExtra as missing:
            self.aside(str(missing))
            return None
        self.say(f"[dim]picture saved as[/] {path}")
        return path


def _line(bar: Bar, width: int, top: float) -> Text:
    def column(value: float) -> int:
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
    # outside: it never covers a bar
    figure.legend(frameon=False, loc="outside lower right", ncols=3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
