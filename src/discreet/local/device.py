"""Keeps a privacy budget on the device of one person: each question is answered once, and refused if the
budget does not suffice.

The budget is kept on the device because a collector that is not trusted with values cannot be trusted to
count what was spent. The state is JSON, for the device to store; it holds the reports
(from long-term randomizers, the permanent answers), never the values.
"""

from __future__ import annotations

import json
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import BudgetExceeded, InvalidInput
from .._registry import to_json
from ..sampling import Entropy
from ._base import require_entropy, require_randomizer
from .longterm import LongTermResponse

# The file with the client for browsers.
SCRIPT = Path(__file__).parent / "js" / "discreet-local.mjs"


class ClientBudget:
    """Limits the sum of the epsilons of all reports that one device ever sends, over all questions and
    collectors.

    Guarantee: all reports that `answer` ever returns, to all collectors, are together epsilon-DP for the
               owner of the device.
    Proof:     basic composition: each question is charged the epsilon of its randomizer before the value is
               looked at, and the budget alone decides whether it is refused. A repeated question gets the
               stored report (or, from long-term randomizers, another noisy copy of the stored permanent
               answer), which depends on the value in no new way.
    Assumes:   every report comes from `answer`; the state is stored before a report is sent, and never rolled
               back; which questions are asked and renewed does not depend on values.

    >>> from discreet import local, sampling
    >>> device = ClientBudget(epsilon=1)
    >>> oracle, entropy = local.KaryResponse(epsilon=1, domain=5), sampling.Entropy()
    >>> first = device.answer("favorite", oracle, 3, entropy=entropy)
    >>> first == device.answer("favorite", oracle, 3, entropy=entropy)
    True
    >>> device.remaining
    Fraction(0, 1)
    """

    def __init__(self, *, epsilon: Any) -> None:
        _require.positive(epsilon=epsilon)
        self.epsilon = _require.exact(epsilon, "epsilon")
        self._spent = Fraction(0)
        self._answers: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def spent(self) -> Fraction:
        return self._spent

    @property
    def remaining(self) -> Fraction:
        return self.epsilon - self._spent

    def answer(self, question: str, randomizer: Any, value: Any, /, *, entropy: Entropy) -> Any:
        """Return the report to this question. It is charged and drawn the first time; afterwards the same
        report is returned, free, even if the value has changed.

        No value is refused: what is none of the randomizer's values is charged and reported as a fixed public
        one (`LocalRandomizer`), because a refusal would tell the collector something about the value.
        """
        key = self._key(question, randomizer)
        require_entropy(entropy)
        # A long-term randomizer has a permanent answer (`start`), of which each report is a noisy copy.
        is_memoized = isinstance(randomizer, LongTermResponse)
        with self._lock:
            if key not in self._answers:
                self._charge(randomizer)
                self._answers[key] = (
                    randomizer.start(value, entropy=entropy)
                    if is_memoized
                    else randomizer._respond_one(value, entropy)
                )
            stored = self._answers[key]
        return randomizer.report(stored, entropy=entropy) if is_memoized else stored

    def renew(self, question: str, randomizer: Any, /) -> None:
        """Forget the stored answer to a question, so that the next answer is drawn anew and charged again.
        Call it at times that do not depend on the value, such as every month.
        """
        with self._lock:
            self._answers.pop(self._key(question, randomizer), None)

    def to_json(self) -> dict[str, Any]:
        """Return the state for the device to store: the limit, what was spent, and the stored answers. It
        holds no values, but permanent answers of long-term randomizers, so it must stay secret.
        """
        return {"epsilon": str(self.epsilon), "spent": str(self._spent), "answers": dict(self._answers)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClientBudget:
        """Return the budget with a state that `to_json` returned."""
        try:
            budget = cls(epsilon=Fraction(data["epsilon"]))
            budget._spent = Fraction(data["spent"])
            budget._answers = dict(data["answers"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            raise InvalidInput("this is not the stored state of a ClientBudget.") from None
        if not 0 <= budget._spent <= budget.epsilon:
            raise InvalidInput("the stored state has spent more than its limit, or less than nothing.")
        return budget

    def _charge(self, randomizer: Any) -> None:
        """Charge before the value is looked at. The charge stays if drawing fails afterwards: a failure may
        waste budget, but no refusal is free."""
        cost = _require.exact(randomizer.epsilon, "epsilon")
        if cost > self.remaining:
            raise BudgetExceeded(
                f"this answer costs epsilon = {float(cost):.6g}, and {float(self.remaining):.6g} of "
                f"{float(self.epsilon):.6g} is left on this device."
            )
        self._spent += cost

    @staticmethod
    def _key(question: str, randomizer: Any) -> str:
        """Return the key of a stored answer: the question and the randomizer with all its parameters. Its
        form must not change, or stored answers would be drawn and sent again."""
        _require.must(
            isinstance(question, str), "question", type(question).__name__, "a text that names the question"
        )
        require_randomizer(randomizer)
        return json.dumps([question, to_json(randomizer)], sort_keys=True)
