"""`discreet dossier`: the papers that others ask for, drafted from a ledger: an entry for the registry of
deployments, the questions of NIST SP 800-226, an annex for a data-protection impact assessment, and on demand
an audit. What the software enforces or the ledger records is answered; the rest is asked of the steward.

The words are in data/dossier.toml. Only the ledger is read, never the data.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer

from ... import __version__, _registry, auditing
from ... import session as sessions
from ..._drawing import Markup, Section, element, markup, page, table
from ..._errors import DescriptionError, InvalidInput
from ..._public import ADD_REMOVE
from ..._round import UpperAmount
from ..._text import visible
from ...accounting import events
from ...auditing.report import as_claim
from ...curator import STEWARD, Budget
from ...curator.accounts import SPENDING, Account
from ...curator.curator import Books, read_only
from ...explaining import explain, words
from ...explaining.explanation import label_rows
from ...explaining.risk import Risk
from ...mechanisms import Mechanism
from ...tables import Memory, dummy
from ..ledger_view import kept
from ..web import charts
from . import forms
from .audit import bar
from .ledger import LEDGER
from .options import FORCE
from .query import print_note
from .releases import PAGE_STYLE

# What stands where the software cannot answer.
ASK = "The steward must answer."
_BY = {"enforced": "enforced", "ledger": "by the ledger", "steward": "the steward"}
# The most mechanisms that one audit runs, the dearest first: each takes seconds to minutes. Chosen by hand.
_MOST_AUDITED = 5


def dossier(
    path: Path = LEDGER,
    *,
    out: Path = typer.Option("dossier", "--out", help="The folder for registry.yaml, dossier.html and .md."),
    runs: int = typer.Option(
        0, "--audit", help="Also run the dearest mechanisms this often on made-up tables, such as 2000 times."
    ),
    force: bool = FORCE,
) -> None:
    if runs and runs < 40:
        raise InvalidInput(f"--audit needs at least 40 runs, got {runs}.")
    files = [out / name for name in ("registry.yaml", "dossier.md", "dossier.html")]
    for file in files:
        forms.check(file, force=force, data=[path], makes_folder=True)
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"--out is a folder, and {str(out)!r} is a file. Name another one.")
    curator = read_only(path)
    facts = _facts(curator)
    words_of = resources.files("discreet").joinpath("data/dossier.toml").read_text("utf-8")
    template = _filled(tomllib.loads(words_of), facts)
    registry = template["registry"]
    registry["deployment"]["privacy_loss"]["privacy_parameters"] = _parameters(curator.policy.budget)
    parts = [(part["title"], [_section(**one) for one in part["section"]]) for part in template["part"]]
    explanation = sessions.Session(curator).explain(audience="policy")
    parts.append(("What the bounds mean", list(explanation.sections)))
    if runs:
        parts.append(("Proved from above, attacked from below", [_audited(curator, runs)]))
    head = [("Data", f"{facts['table']}, version {facts['version']}"), *label_rows(explanation.risk)]
    head += [("Signed head of the ledger", facts["anchor"]), ("Made by", f"discreet {__version__}")]
    title = f"Dossier: {facts['table']}"
    out.mkdir(exist_ok=True, parents=True)
    texts = (_yaml(registry), _markdown(title, head, parts), _html(title, head, parts))
    for file, text in zip(files, texts, strict=True):
        forms.write(file, text, force=force)
    asked = sum(row[1] == _BY["steward"] for _, own in parts for section in own for row in section.rows)
    print_note(f"written: {', '.join(map(str, files))}. {asked} questions are for the steward")


def _filled(template: Any, facts: dict[str, str]) -> Any:
    """Return a template with the facts in their places."""
    if isinstance(template, dict):
        return {name: _filled(part, facts) for name, part in template.items()}
    if isinstance(template, list):
        return [_filled(part, facts) for part in template]
    return template.format(**facts) if isinstance(template, str) else template


def _section(heading: str, rows: Iterable[Sequence[str]], lines: Sequence[str] = ()) -> Section:
    """Return a section of the template: its questions, who answers them, and the answers."""
    answered = (
        (question, _BY[by], f"{answer} [{ASK}]".strip() if by == "steward" else answer)
        for question, by, answer in rows
    )
    columns = ("asked", "answered by", "answer")
    return Section(heading=heading, lines=tuple(lines), columns=columns, rows=tuple(answered))


def _facts(curator: Books) -> dict[str, str]:
    """Return what the template needs, in words: from the entries, the policy and the public facts."""
    public, ledger, policy = curator.source.public, curator.ledger, curator.policy
    charges = list(ledger.entries(kind=SPENDING))
    bodies = [charge.body for charge in charges]
    limit = _parameters(policy.budget)
    per, noun, column = policy.budget.per, words.unit_noun(public.unit), public.unit.column
    entered = [str(body.get("text")) for body in bodies if not kept(body).startswith("kept")]
    leaves = Counter(
        type(leaf).__name__ for body in bodies for leaf in events.leaves(events.from_json(body["event"]))
    )
    versions = {of["public"]["version"] for of in _described(bodies)} or {public.version}
    limited = sum(own is not None for _, own in policy.analysts)
    now = sessions.Session(curator).explain().risk
    # A person may have rows in many periods: what all of them together may cost bounds what can be learned.
    most = policy.budget if per is None or column is None else per.limit
    final = None if most is None else explain(most, neighbors=public.neighbors).risk
    first, last = (charges or [ledger.genesis])[0].time, (charges or [ledger.genesis])[-1].time
    together = "without a limit" if per is None or per.limit is None else _amount(per.limit)
    least = policy.least_people(public)
    guards = {"question": policy.max_per_question, "day": policy.max_per_day}
    facts = {
        "ask": ASK,
        "small": _SMALL[1].format(least) if least else _SMALL[0],
        "guards": " and ".join(f"{float(most):g} per {of}" for of, most in guards.items() if most) or "none",
        "software": __version__,
        "table": public.table,
        "slug": re.sub(r"[^a-z0-9]+", "-", public.table.lower()).strip("-") or "table",
        "version": public.version or "not declared",
        "versions": ", ".join(sorted(map(str, versions))) or "none",
        "source": "Dynamic" if len(versions) > 1 or per else "Static",
        "columns": "; ".join(" ".join(line.split()) for line in str(public).splitlines()[1:]),
        "size": f"{public.size:,} (declared as public)" if public.size else "not declared",
        "noun": noun,
        "unit": f"{noun} (all rows of one {column})" if column else "row",
        "rows": ", ".join(f"{n}: {getattr(public.unit, n) or 'by question'}" for n in ("rows", "groups")),
        "neighbors": public.neighbors.value,
        "neighbor_words": words.protected(now, noun),
        "budget": _amount(policy.budget),
        "periods": f", for each {per.every or 'value'} of {per.column} by itself, and all together {together}"
        if per
        else "",
        "variant": _VARIANTS["rho" if "rho" in limit else "delta" if limit["delta"] else "epsilon"],
        "delta_by": "steward" if policy.budget.delta else "enforced",
        "delta": f"{policy.budget.delta:g}",
        "spent": "; ".join(map(_spent, curator.accounts_of(STEWARD))),
        "charges": f"{len(charges):,}",
        "first": charts.minute(first),
        "last": charts.minute(last),
        "date": first[:10],
        "mechanisms": ", ".join(f"{name} ({n:,})" for name, n in leaves.most_common()) or "none so far",
        "marks": ", ".join(f"{n:,} {how}" for how, n in Counter(map(kept, bodies)).items()) or "none so far",
        "elsewhere": f"{len(entered)} ({'; '.join(entered[:5])})" if entered else "none",
        "looked": f"{sum(1 for _ in ledger.entries(kind='looked')):,}",
        "analysts": f"Analysts who may ask: {len(policy.analysts)}, {limited} with limits of their own",
        "product": _product(bodies),
        "groups": " ".join(words.groups(now)),
        "key": ledger.genesis.body["key"],
        "anchor": str(ledger.anchor),
    }
    for name, risk in (("now", now), ("final", final)):
        facts |= {f"{name}_{bound}": text for bound, text in _bounds(risk).items()}
    return {name: visible(text) for name, text in facts.items()}


_SMALL = (
    "Groups are shown whatever their size, with noise; those that nobody declared pass a private selection",
    "In SQL a group of fewer than {:,} people is shown with a small probability, which the answer states",
)
_VARIANTS = {"rho": "Zero-concentrated DP", "delta": "Approximate DP", "epsilon": "Pure DP"}


def _bounds(risk: Risk | None) -> dict[str, str]:
    """Return the bounds of a risk, in words; None is that of periods that nothing limits together."""
    if risk is None or not words.has_bounded_odds(risk):
        return dict.fromkeys(("50", "1", "test", "odds"), "anything (there is no limit)")
    beliefs = {"50": words.out_of(risk.after(0.5)), "1": words.out_of(risk.after(0.01))}
    test = words.out_of(risk.true_positives(0.05))
    return {**beliefs, "test": test, "odds": words.number(risk.odds_factor)}


def _described(bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the descriptions of the mechanisms that were charged."""
    return [body["mechanism"] for body in bodies if isinstance(body.get("mechanism"), dict)]


def _spent(account: Account) -> str:
    rule = account.rule
    return f"{account.of}: {rule.unit} {UpperAmount(account.used):.4g} of {float(rule.total):g}"


def _parameters(budget: Budget) -> dict[str, float]:
    """Return the limit as the registry has it."""
    amounts = {"rho": budget.rho, "epsilon": budget.epsilon, "delta": budget.delta}
    return {name: float(value) for name, value in amounts.items() if value is not None}


def _amount(budget: Budget) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in _parameters(budget).items() if value)


def _product(bodies: list[dict[str, Any]]) -> str:
    """Return the type of data product, one of the registry's list, by what was charged for."""
    kinds = {of["type"].split(".")[0] for of in _described(bodies)}
    kinds |= {"learning" for body in bodies if body.get("steps")}
    if kinds and kinds <= {"learning", "tabular"}:
        return "Machine learning model"
    return "Synthetic data" if kinds == {"synthetic"} else "SQL queries"


def _audited(curator: Books, runs: int) -> Section:
    """Return the section that has, for the dearest mechanisms, what is proved of their epsilon and what an
    attack has found on two tables, made up from public facts, that differ in one unit."""
    bodies = [entry.body for entry in curator.ledger.entries(kind=SPENDING)]
    distinct = {json.dumps(of, sort_keys=True): of for of in _described(bodies)}
    priced = [
        (as_claim(None, one, None), one)
        for one in filter(None, map(_mechanism, distinct.values()))
        # tables that are joined, and neighbors of a public size, are not made up
        if isinstance(one, Mechanism) and one.public.neighbors is ADD_REMOVE
        if not one.public.tables and not one.public.size
    ]
    tried = sorted(priced, key=lambda pair: -pair[0].epsilon)[:_MOST_AUDITED]
    rows = []
    for proved, mechanism in tried:
        made = dummy(mechanism.public, 1)
        columns = pa.Table.from_batches(list(made.batches(made.column_names)))
        # one person with as many equal rows as count, and nobody
        most = min(mechanism.public.unit.rows or 1, 100) if mechanism.public.unit.column else 1
        tables = [Memory(columns.take(pa.array([0] * n, pa.int64())), mechanism.public) for n in (most, 0)]
        with bar(runs) as shown:
            report = auditing.audit(
                mechanism, *tables, runs=runs, confidence=1 - 0.05 / len(tried), progress=shown
            )
        name = " ".join(str(getattr(mechanism, "sql", type(mechanism).__name__)).split())
        found = "refuted" if report.refuted else "not refuted"
        bound = f"{proved.epsilon:.4g}" + (f" at delta {proved.delta:g}" if proved.delta else "")
        rows.append((name, bound, f"{report.epsilon:.3g}", found))
    lines = (
        f"The epsilon of one release lies between the two numbers: above is proved, below was found by an "
        f"attack in {runs:,} runs on each of two tables, made up, that differ in one unit. All lower bounds "
        "hold together with 95% confidence. A small one says that this attack on these tables found no more.",
        f"{len(tried)} of {len(distinct)} mechanisms were run, the dearest; mechanisms that join tables or "
        "stay open are not.",
    )
    titles = ("release", "proved: at most", "found: at least", "the claim is")
    return Section(heading="Audit", lines=lines, columns=titles, rows=tuple(rows))


def _mechanism(described: Any) -> Any:
    """Return a mechanism from its description; None for one of a third party's that is not allowed here."""
    with suppress(DescriptionError):
        return _registry.from_json(described)


def _yaml(value: Any, indent: str = "") -> str:
    """Return nested mappings and lists as YAML; a text is written as in JSON, which YAML reads."""
    if isinstance(value, dict):
        return "".join(
            f"{indent}{name}:\n{_yaml(of, indent + '  ')}"
            if isinstance(of, dict | list)
            else f"{indent}{name}: {_scalar(of)}\n"
            for name, of in value.items()
        )
    return "".join(f"{indent}- {_scalar(of)}\n" for of in value)


def _scalar(value: Any) -> str:
    """Return a text or a number; to some readers of YAML 1e-06 is a text, and 1.0e-06 is none."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text)


Parts = list[tuple[str, list[Section]]]


def _html(title: str, head: Sequence[tuple[str, str]], parts: Parts) -> str:
    body = [element("h2", name) + markup(*(section.html("h3") for section in own)) for name, own in parts]
    return page(title, element("h1", title), table((), head), *map(Markup, body), style=PAGE_STYLE)


def _markdown(title: str, head: Sequence[tuple[str, str]], parts: Parts) -> str:
    lines = [f"# {_cell(title)}", "", *_rows(("", ""), head)]
    for name, sections in parts:
        lines += ["", f"## {name}"]
        for section in sections:
            lines += ["", f"### {section.heading}", ""]
            lines += [f"{_cell(line)}\n" for line in section.lines]
            lines += _rows(section.columns, section.rows) if section.rows else []
    return "\n".join(lines) + "\n"


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(map(_cell, row)) + " |" for row in cells]


def _cell(text: str) -> str:
    """Return a text that is no markup of Markdown or HTML: names of tables and questions are of others."""
    return re.sub(r"([\\`*_\[\]|<>])", r"\\\1", text)
