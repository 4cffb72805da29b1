"""The main chapter: a table, a budget, and an analyst who asks in SQL."""

from __future__ import annotations

import pyarrow as pa

from ... import session as sessions
from ..._errors import DiscreetError
from ...curator import Budget
from ...query import Answer
from ...session.opening import TRIAL
from ...tables import Memory, rand_hie
from .stage import Bar, Stage

TITLE = "One dataset, one budget: SQL for people who may not see the rows"

EPSILON = 1.0
QUESTION = """SELECT coinsurance, COUNT(DISTINCT person) AS people, AVG(visits) AS visits
FROM rand_hie GROUP BY coinsurance ORDER BY coinsurance"""


def run(stage: Stage) -> None:
    """Open a session, preview a question, ask it twice, exceed the budget, and show the ledger."""
    data = rand_hie()
    people = sessions.open(
        data,
        budget=Budget(epsilon=2, delta=1e-6),
        analysts={"ann": Budget(epsilon=1.5)},
        ledger=TRIAL,
    )
    stage.say(
        "The RAND Health Insurance Experiment gave families health insurance at random: some paid "
        "nothing for care, others up to "
        "the whole bill. People who pay less see the doctor more often: how much more? Most people have "
        "several rows; each person "
        "is protected with all their rows. The steward sets a budget of epsilon 2, and 1.5 as the limit "
        "of the analyst ann. She never sees a row.\n"
    )
    ann = people.as_analyst("ann")
    stage.code(QUESTION)
    stage.say("\n[bold]Before asking[/] (free: no data is touched)\n")
    stage.plain(str(ann.preview(QUESTION, epsilon=EPSILON, rows=5, groups=1)))
    answer = ann.sql(QUESTION, epsilon=EPSILON, rows=5, groups=1)
    stage.say("\n[bold]The answer[/], charged to the ledger before it was computed\n")
    stage.plain(str(answer))
    bars = _bars(answer, data)
    stage.say("\nvisits per year, by the percentage of the bill that the person pays\n")
    stage.bars(bars, digits=2)
    stage.say(
        "\n[bold]Asked again[/] the same question is free; another one is refused once the budget is gone:\n"
    )
    again = ann.sql(QUESTION.lower(), epsilon=EPSILON, rows=5, groups=1)
    stage.say(f"same answer: {again.rows == answer.rows}, spent: {people.spent:.3g} of 2")
    for text in ("SELECT AVG(spending) AS dollars FROM rand_hie", "SELECT * FROM rand_hie"):
        try:
            ann.sql(text, epsilon=EPSILON, rows=5)
        except DiscreetError as refusal:
            stage.plain(f"{text}\n  -> {refusal}")
    stage.say(
        "\n[bold]The ledger[/], signed and chained by hashes, has the opening, the charge and the release. "
        "Questions that were repeated or refused cost nothing and leave no entry:\n"
    )
    rows = [
        [str(e.seq), e.kind, e.body.get("analyst", ""), e.hash.hex()[:12]] for e in people.ledger.entries()
    ]
    stage.table(["entry", "what", "who", "hash"], rows)
    # `verify` returns what is wrong with the ledger
    verdict = "nothing is missing or changed" if not people.curator.verify() else "TAMPERED"
    stage.say(f"\nverified: {verdict}.")
    stage.picture(
        "one-budget",
        bars,
        title="Doctor visits per year, by share of the bill that people pay",
        caption=f"RAND Health Insurance Experiment, all years; all rows of a person protected, epsilon "
        f"{EPSILON:g}. "
        "x: percentage of the bill",
    )


def _bars(answer: Answer, data: Memory) -> list[Bar]:
    """Return one bar per insurance plan: the private average, its 95% error, and the true average."""
    table = pa.Table.from_batches(data.batches(["coinsurance", "visits"]))
    true = dict(
        zip(*table.group_by("coinsurance").aggregate([("visits", "mean")]).to_pydict().values(), strict=True)
    )
    plans = zip(answer["coinsurance"], answer["visits"], answer.error(0.95)["visits"], strict=True)
    return [
        Bar(f"{plan}%", float(value), float(error or 0), float(true[plan])) for plan, value, error in plans
    ]
