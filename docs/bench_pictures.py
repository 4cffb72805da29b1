"""`python -m docs.bench_pictures`: draws the pictures of docs/benchmarks.md from the tables of other pages.

A figure stands in one place, the page of its package, where the run that measured it is described; the
pictures are drawn from there, by `make bench` after a run and by `make docs` before it builds: they cannot
disagree.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from discreet._drawing import Picture, Series

DOCS = Path(__file__).parent
FOLDER = DOCS / "benchmarks"


def table(page: str, first: str) -> list[dict[str, str]]:
    """Return the rows of the table of a page whose heading row begins with these cells."""
    lines = (DOCS / page).read_text().splitlines()
    starts = [
        number for number, line in enumerate(lines) if line.startswith(f"| {first}".replace("|  |", "| |"))
    ]
    if not starts:
        raise ValueError(f"{page} has no table that begins with {first!r}")
    names, rows = _cells(lines[starts[0]]), []
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(names, _cells(line), strict=True)))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(cell: str) -> float:
    """Return the first number of a cell, in seconds where it says ms or s."""
    match = re.search(r"([\d,]*\.?\d+)\s*(ms|ns|s\b)?", cell)
    if match is None:
        raise ValueError(f"no number in {cell!r}")
    return float(match.group(1).replace(",", "")) * (1000 if match.group(2) == "s" else 1)


def bars(
    title: str, y_label: str, rows: list[dict[str, str]], label: str, columns: dict[str, str]
) -> Picture:
    """Return bars of several columns; rows without a number in one of them are left out."""
    whole = [row for row in rows if all(re.search(r"\d", row[name]) for name in columns)]
    at = tuple(float(place) for place in range(len(whole)))
    return Picture(
        title=title,
        x_label="",
        y_label=y_label,
        labels=tuple(re.sub(r"[`]", "", row[label]) for row in whole),
        log_y=True,
        series=tuple(
            Series(shown, at, tuple(number(row[name]) for row in whole)) for name, shown in columns.items()
        ),
    )


def sampling() -> Picture:
    rows = [row for row in table("proofs/sampling.md", "| ours | numpy") if row["opendp"]]
    for row in rows:
        row[""] = row[""].replace("discrete_", "").replace("1e+09", "1e9").replace("(", " (")
    columns = {"ours": "discreet", "numpy, floats": "numpy's inexact floats", "opendp": "opendp"}
    return bars("Exact discrete noise: nanoseconds of CPU time per draw", "ns", rows, "", columns)


def accounting() -> Picture:
    rows = [row for row in table("proofs/pld.md", "rate, noise, steps, delta") if "ms" in row["ours"]]
    columns = {
        "ours": "discreet, certified",
        "dp-accounting 0.6.0, default / equal": "dp-accounting",
        "prv-accountant 0.2.0, default / equal": "prv-accountant",
    }
    return bars(
        "Epsilon of DP-SGD: milliseconds of CPU time", "ms", rows, "rate, noise, steps, delta", columns
    )


def learning() -> Picture:
    rows = table("learning.md", "model | ours")
    modes = ("Opacus 1.6: hooks", "ghost", "ExpandedWeights", "functorch")
    for row in rows:
        row["best"] = str(min(number(row[mode]) for mode in modes))
        row["model"] = row["model"].split(",")[0].replace("logistic regression", "logistic").split(" 784")[0]
    columns = {"ours": "discreet", "best": "best mode of Opacus", "jax-privacy 2.0": "jax-privacy"}
    return bars("DP-SGD: cost of a step over the plain one", "times", rows, "model", columns)


def tabular() -> Picture:
    rows = {row["epsilon"]: row for row in table("tabular.md", "epsilon | 0.1 | 0.5")}
    series = []
    for name, row in rows.items():
        if "accuracy" in name or "diffprivlib" in name:
            prices = [key for key in row if re.fullmatch(r"[\d.]+", key)]
            shown = re.sub(r" \(.*", "", name)
            values = tuple(number(row[price]) for price in prices)
            series.append(Series(shown, tuple(map(float, prices)), values))
    return Picture(
        title="Adult: accuracy of a linear model over epsilon", x_label="epsilon", y_label="accuracy",
        log_x=True, y_bottom=0.7, series=tuple(series),
    )  # fmt: skip


def workloads() -> Picture:
    rows = table("workloads.md", "workload, price")
    columns = {
        "ours (predicted)": "discreet",
        "noisy cells, summed": "noisy cells, summed",
        "OpenDP's tree": "OpenDP's tree",
    }
    return bars("Many counts at one price: error of an answer", "rmse", rows, "workload, price", columns)


def scale() -> Picture:
    """Return the CPU time of the bounded group-by on Spark over the number of rows, beside by hand and
    tmlt.analytics where these were measured."""
    rows = [row for row in table("databases.md", "engine | rows | ours") if row["engine"] == "Spark"]
    series = []
    for name, label in {
        "ours": "discreet",
        "by hand": "by hand",
        "tmlt.analytics 0.21": "tmlt.analytics",
    }.items():
        points = [row for row in rows if re.match(r"[\d.]+", row[name])]
        series.append(
            Series(
                label,
                tuple(number(row["rows"]) for row in points),
                tuple(number(row[name]) for row in points),
            )
        )
    return Picture(
        title="COUNT and SUM by group, 4 groups per person, on Spark local[2]", x_label="million rows",
        y_label="CPU-seconds", log_x=True, log_y=True, series=tuple(series),
    )  # fmt: skip


PICTURES: dict[str, Callable[[], Picture]] = {
    "sampling": sampling,
    "accounting": accounting,
    "learning": learning,
    "tabular": tabular,
    "workloads": workloads,
}


# Pictures of a package's own page.
OTHER_PICTURES: dict[str, Callable[[], Picture]] = {"scale": scale}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in {**PICTURES, **OTHER_PICTURES}.items():
        draw().save(FOLDER / f"{name}.svg")
        print(f"docs/benchmarks/{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
