"""The page about accounting shows the table that the code builds, and its examples run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from discreet import accounting as acc

from .zoo import table

PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"
START, END = "<!-- table: event x accountant -->\n", "<!-- end of table -->"


def test_the_table_of_events_and_accountants_is_current() -> None:
    text = PAGE.read_text()
    head, rest = text.split(START)
    shown, tail = rest.split(END)
    current = table() + "\n"
    if os.environ.get("DISCREET_UPDATE_DOCS"):  # how the page is renewed
        PAGE.write_text(head + START + current + END + tail)
        return
    assert shown == current, "run this test with DISCREET_UPDATE_DOCS=1 to renew docs/accounting.md"


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
