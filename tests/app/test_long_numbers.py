"""A number of 4,301 digits, more than Python reads, is a refusal wherever a text of the user's is read."""

from __future__ import annotations

import pytest

from discreet import tables
from discreet._errors import InvalidInput
from discreet.app.cli.forms import described
from discreet.app.cli.plan import _read_plan
from discreet.app.web.survey import load_survey

DIGITS = "1" * 4301


@pytest.mark.parametrize("read", [tables.load, _read_plan, load_survey])
def test_toml_with_a_long_number_is_refused(tmp_path, read):
    file = tmp_path / "x.toml"
    file.write_text(f"size = {DIGITS}\n")
    with pytest.raises(InvalidInput, match="4300 digits") as refusal:
        read(file)
    assert DIGITS not in str(refusal.value)


def test_json_with_a_long_number_is_refused(tmp_path):
    file = tmp_path / "event.json"
    file.write_text(f'{{"type": "accounting.PureDP", "epsilon": {DIGITS}}}')
    with pytest.raises(InvalidInput, match="is not JSON"):
        described(str(file))
