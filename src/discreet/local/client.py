"""A budget that is kept on the device: it answers each question once, and refuses what it cannot afford.

Nobody else can keep it: a collector that is not trusted is not trusted to count. The state is JSON for the
device to store; it holds what was answered, never the values.
"""

from __future__ import annotations

import json
import threading
from fractions import Fraction
from typing import Any

from .. import _require
from .._errors import BudgetExceeded, InvalidInput
from .._registry import to_json
from ..sampling import Entropy
from ._base import LocalRandomizer


class ClientBudget:
    """Limits all that one device will ever tell, over all questions and collectors: a limit on the sum of
    epsilons.

    Guarantee: everything that leaves through `answer`, to whoever, is together epsilon-DP for the device's
               owner.
    Proof:     basic composition: each question is charged the epsilon of its randomizer before anything is
               drawn, and a repeated question gets the stored report (or, from long-term randomizers, another
               copy of the stored permanent answer), which depends on nothing new.
    Assumes:   every report leaves through here, the state is kept and not rolled back, and which questions
               come does not depend on values.

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
        """Return the report to this question: drawn and charged the first time, the same one (at no cost)
        ever after, whatever the value is then.
        """
        key = self._key(question, randomizer)
        lasting = hasattr(randomizer, "start")
        with self._lock:
            if key not in self._answers:
                if not randomizer.is_single(value):
                    raise InvalidInput(
                        "a device answers with one value of its own, not with a list. Nothing was "
                        "drawn or charged."
                    )
                before = self._spent
                self._charge(randomizer)
                try:
                    self._answers[key] = (randomizer.start if lasting else randomizer.respond)(
                        value, entropy=entropy
                    )
                except InvalidInput:
                    # refused before anything was drawn (tests/contracts/test_randomizers.py)
                    self._spent = before
                    raise
            stored = self._answers[key]
        return randomizer.report(stored, entropy=entropy) if lasting else stored

    def renew(self, question: str, randomizer: Any, /) -> None:
        """Forget the answer to a question, so that the next one is drawn, and paid for, afresh. Do it by
        the calendar, not by the value.
        """
        with self._lock:
            self._answers.pop(self._key(question, randomizer), None)

    def to_json(self) -> dict[str, Any]:
        """Return the state, for the device to store: limits, what was spent, and stored reports. It holds no
        values; keep it secret all the same.
        """
        return {"epsilon": str(self.epsilon), "spent": str(self._spent), "answers": dict(self._answers)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClientBudget:
        """Return the budget that was stored."""
        try:
            budget = cls(epsilon=Fraction(data["epsilon"]))
            budget._spent = Fraction(data["spent"])
            budget._answers = dict(data["answers"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise InvalidInput(
                "this is not the stored state of a ClientBudget. Nothing was loaded."
            ) from None
        if not 0 <= budget._spent <= budget.epsilon:
            raise InvalidInput(
                "the stored state has spent more than its limit, or less than nothing. Nothing was loaded."
            )
        return budget

    def _charge(self, randomizer: Any) -> None:
        """Record a charge before anything is drawn; it stands even if drawing fails after it: a failure may
        waste budget, never leak."""
        cost = _require.exact(randomizer.epsilon, "epsilon")
        if cost > self.remaining:
            raise BudgetExceeded(
                f"this answer costs epsilon = {float(cost):.6g}, and {float(self.remaining):.6g} of "
                f"{float(self.epsilon):.6g} is left on this device. Nothing was drawn or charged."
            )
        self._spent += cost

    @staticmethod
    def _key(question: str, randomizer: Any) -> str:
        if not isinstance(question, str):
            raise _require.fail("question", type(question).__name__, "a text that names the question")
        if not isinstance(randomizer, LocalRandomizer):
            raise _require.fail(
                "randomizer", type(randomizer).__name__, "a client randomizer of discreet.local"
            )
        return json.dumps([question, to_json(randomizer)], sort_keys=True)
