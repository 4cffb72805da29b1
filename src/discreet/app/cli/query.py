"""`discreet query` and `discreet preview`: ask questions in SQL, and preview their price."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..._errors import MissingExtra
from ..._text import visible
from ...curator.policy import check_epsilon
from ...query import Answer
from ...query.preview import Preview
from ...session.terms import QuestionTerms, SuggestTerms, Terms, chosen
from .. import requests
from . import forms
from .options import DATA, FORCE, JSON, LARGE_EPSILON, SQL, Opening
from .parser import Only

# the options of a question that the shell has
TERMS = Only("epsilon within confidence delta rows groups other min_people")


def query(
    data: str = DATA,
    sql: str = SQL,
    *,
    terms: Annotated[QuestionTerms, Only(f"{TERMS.names} fresh")],
    opening: Opening,
    large_epsilon: bool = LARGE_EPSILON,
    out: Path = typer.Option(None, "--out", help="Also write the answer to this .csv or .xlsx file."),
    plot: Path = typer.Option(None, "--plot", help="Also draw bars with error bars into this PNG."),
    force: bool = FORCE,
    as_json: bool = JSON,
) -> None:
    check_epsilon(terms.epsilon, large_epsilon=large_epsilon)
    if plot is not None:
        _require_matplotlib()
    if out is not None:
        # loaded here: only --out needs it
        from .releases import check_answer, write_answer

        check_answer(out)
    plot = forms.picture(plot)  # type: ignore[assignment]
    inputs: list[str | Path] = [data, *([] if opening.schema is None else [opening.schema])]
    forms.check(plot, force=force, data=inputs)
    forms.check(out, force=force, data=inputs)
    forms.check_distinct(plot, out)
    session = opening.session(data)
    text, confidence = sql_text(sql), terms.confidence
    if terms.within is not None:
        price = session.preview(text, **chosen(terms, Terms)).query
        # Workloads have no accuracy to ask for: they are refused.
        assert isinstance(price, Preview)
        check_epsilon(price.epsilon, price.rho, large_epsilon=large_epsilon)
    # No account changes where the answer is served from the ledger.
    spent_before = [account.spent for account in session.accounts]
    answer = session.sql(text, **chosen(terms))
    is_free = spent_before == [account.spent for account in session.accounts]
    if out is not None:
        write_answer(out, answer, confidence, force=force)
    if as_json:
        print(json.dumps(requests.answer_json(answer, confidence, session) | {"free": is_free}))
        if plot is not None:
            _picture(plot, answer, confidence)
        return
    print(visible(answer.text(confidence, rest="--json has all"), keep="\n"))
    note = "asked before: served from the store, free; " if is_free else ""
    print_note(f"{note}used so far: {session.spent:.4g}; left: {session.remaining:.4g}")
    if plot is not None:
        print_note(f"picture saved as {_picture(plot, answer, confidence)}")


def preview(
    data: str = DATA,
    sql: str = SQL,
    *,
    terms: Annotated[Terms, TERMS],
    opening: Annotated[Opening, Only("schema ledger analyst periods engine")],
    as_json: bool = JSON,
) -> None:
    query_preview = opening.session(data).preview(sql_text(sql), **chosen(terms))
    if as_json:
        print(json.dumps(requests.preview_json(query_preview)))
        return
    print(visible(str(query_preview), keep="\n"))


def suggest(
    data: str = DATA,
    what: str = typer.Argument(..., help="A column of numbers, or one SELECT with a COUNT or a SUM."),
    *,
    terms: SuggestTerms,
    opening: Annotated[Opening, Only("schema ledger analyst periods engine")],
    as_json: bool = JSON,
    only_preview: bool = typer.Option(False, "--preview", help="Say what it would cost: free."),
) -> None:
    session, options = opening.session(data), chosen(terms)
    check_epsilon(terms.epsilon)
    if only_preview:
        print(visible("\n\n".join(map(str, session.preview_suggest(what, **options))), keep="\n"))
        return
    # as `preview_suggest` tells them apart
    if what.lstrip().upper().startswith(("SELECT", "WITH")):
        limits = session.suggest_limits(what, **options)
        facts = {"rows": limits.rows, "groups": limits.groups, "error": limits.error, "curve": limits.curve}
        text = str(limits)
    else:
        bounds = session.suggest(what, **options)
        facts = {"lower": bounds.lower, "upper": bounds.upper}
        text = f"lower = {bounds.lower}\nupper = {bounds.upper}"
    print(json.dumps(facts) if as_json else text)
    if not as_json:
        print_note(f"used so far: {session.spent:.4g}; left: {session.remaining:.4g}")


def sql_text(sql: str) -> str:
    """Return the SQL of the argument, or that on standard input for "-"."""
    return typer.get_text_stream("stdin").read() if sql == "-" else sql


def _require_matplotlib() -> None:
    """Refuse --plot without matplotlib, before the question is charged."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra.of("plots", "--plot needs matplotlib")


def _picture(path: Path, answer: Answer, confidence: float) -> Path:
    """Draw the answer as bars with error bars, and return the path."""
    # imported here: only --plot needs it
    from ..demo.stage import Bar, draw

    columns = answer.bars(confidence=confidence)
    triples = zip(columns["labels"], columns["heights"], columns["errors"], strict=True)
    bars = [Bar(_literal(label), float(height), float(error or 0), None) for label, height, error in triples]
    return draw(path, bars, "", f"{_literal(answer.sql)}\n{answer.price}; bars: {confidence:.0%} intervals")


def _literal(text: str) -> str:
    """Return a text in which matplotlib sees no formula: between two dollar signs it would parse one."""
    return text.replace("$", r"\$")


def print_note(text: str) -> None:
    """Print one dim line on standard error."""
    # Not with rich: its import takes longer than printing a line.
    typer.secho(visible(text), err=True, dim=True)


@contextmanager
def explaining_interruption(checkpoint: Path | None) -> Iterator[None]:
    """Say, when Ctrl-C stops a run that may have been charged, how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        print_note(
            "stopped. What the ledger shows as charged stays charged. Without --checkpoint the run is over."
            if checkpoint is None
            else f"stopped. What was charged stays paid for: the same command with --resume goes on from "
            f"{checkpoint}, free."
        )
        raise
