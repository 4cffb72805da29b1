"""One instance of every event, for tables of event x accountant."""

from __future__ import annotations

from discreet.accounting.examples import EXAMPLES

ZOO = EXAMPLES
