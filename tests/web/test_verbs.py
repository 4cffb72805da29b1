"""The table of a worker's verbs: every one has its function, and a worker needs no FastAPI."""

from __future__ import annotations

import subprocess
import sys

import pytest

from discreet.app.web.verbs import VERBS


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_its_function(name):
    verb = VERBS[name]
    assert callable(getattr(verb.load(), verb.name))


def test_a_worker_loads_neither_fastapi_nor_rooms_that_it_was_not_asked_for():
    code = "import sys, discreet.app.web.verbs; print([m for m in ('fastapi', 'torch', 'discreet.synthetic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
