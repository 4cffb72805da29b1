import importlib

import numpy as np
import pytest

from tests.priced_once import an_event_is_priced_once  # noqa: F401


@pytest.fixture
def runs_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits by position instead of a fresh draw, for tests of what an audit finds.

    Their runs are seeded, and in the order in which they were made, which depends on nothing: so each split is as
    good as a drawn one, and the tests are the same each time. That splits are drawn is tested in test_audit.py,
    test_membership.py and test_one_run.py.
    """
    for module in ("audit", "canaries"):
        # By its full name: the package has a function `audit`, too.
        monkeypatch.setattr(importlib.import_module(f"discreet.auditing.{module}"), "fresh_order", np.arange)
