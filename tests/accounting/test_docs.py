"""The page about accounting shows the table that the code builds, and its examples run."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path

import pytest

from discreet import REPLACE, ZERO_OUT
from discreet import accounting as acc

from .zoo import ZOO, instances, table

PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"
TABLES = {
    "<!-- table: event x accountant -->\n": ("<!-- end of table -->", table),
    "<!-- table: events -->\n": ("<!-- end of events -->", instances),
}


@pytest.mark.parametrize("start", TABLES)
def test_the_tables_of_events_and_accountants_are_current(start: str) -> None:
    end, make = TABLES[start]
    head, rest = PAGE.read_text().split(start)
    shown, tail = rest.split(end)
    current = make() + "\n"
    if os.environ.get("DISCREET_UPDATE_DOCS"):  # how the page is renewed
        PAGE.write_text(head + start + current + end + tail)
        return
    assert shown == current, "run this test with DISCREET_UPDATE_DOCS=1 to renew docs/accounting.md"


def test_an_event_of_the_table_can_be_typed_as_it_is_written() -> None:
    scope = {name: getattr(acc, name) for name in dir(acc)} | {"REPLACE": REPLACE, "ZERO_OUT": ZERO_OUT}
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", instances(), re.M)
    assert {name: eval(text, scope | {"Fraction": Fraction}) for name, text in rows} == ZOO


def test_what_the_page_says_that_renyi_accounting_loses_is_what_it_loses() -> None:
    row = re.compile(
        r"^\| ([\d.]+)(?: \(everybody\))? \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \| (\d+)% \|$", re.M
    )
    rows = row.findall(PAGE.read_text())
    assert len(rows) == 5
    for rate, steps, rdp, pld, more in rows:
        step = acc.Gaussian(noise_multiplier=2.0)
        run = (step if rate == "1" else step.sampled(float(rate))).repeated(int(steps.replace(",", "")))
        both = [acc.epsilon(run, delta=1e-6, accountant=name) for name in ("rdp", "pld")]
        assert [f"{value:.4g}" for value in both] == [rdp, pld]
        assert f"{100 * (both[0] / both[1] - 1):.0f}" == more


def test_the_examples_of_the_page_run_and_say_what_it_says() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    scope: dict[str, object] = {"acc": acc}
    for block in blocks:
        for line in block.strip().splitlines():
            code, _, shown = line.partition("  # -> ")
            if shown:
                assert f"{eval(code, scope):.4g}" == shown.strip(), code
            elif code.strip():
                exec(code, scope)
