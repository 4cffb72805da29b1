"""Trust, tested: lower bounds on epsilon for anything that claims one, and the attacks that privacy must withstand."""

from .audit import audit, epsilon_of_labels, from_outputs, transcript
from .claims import Claim
from .floating import explained, floating_point_attack, lowest_bit, precision_attack
from .one_run import (
    audit_one_run,
    guess_by_score,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    one_run_mu,
    one_run_p_value,
)
from .rates import Guesses
from .report import Report
from .summation import SumAttack, attempt, attempt_on_ours
from .timing import Timing, timing

__all__ = [
    "Claim",
    "Guesses",
    "Report",
    "SumAttack",
    "Timing",
    "attempt",
    "attempt_on_ours",
    "audit",
    "audit_one_run",
    "epsilon_of_labels",
    "explained",
    "floating_point_attack",
    "from_outputs",
    "guess_by_score",
    "lowest_bit",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "one_run_mu",
    "one_run_p_value",
    "precision_attack",
    "timing",
    "transcript",
]
