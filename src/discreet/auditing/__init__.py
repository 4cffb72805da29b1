"""Trust, tested: lower bounds on epsilon for anything that claims one, and the attacks that privacy must withstand."""

from .anonymity import (
    Risk,
    delta_presence,
    distinct_l_diversity,
    entropy_l_diversity,
    k_anonymity,
    recursive_l_diversity,
    risk,
    t_closeness,
)
from .audit import audit, epsilon_of_labels, from_outputs, transcript
from .claims import Claim
from .disclosure import Disclosed, background_knowledge, differencing, homogeneity, intersection
from .floating import explained, floating_point_attack, lowest_bit, precision_attack
from .generalize import SUPPRESSED, Groups, Interval, Prefix, generalize, mondrian
from .linkage import Known, Match, Ratings, link, linked, made_up_ratings, side_knowledge
from .one_run import (
    audit_one_run,
    guess_by_score,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    one_run_mu,
    one_run_p_value,
)
from .rates import Guesses
from .reconstruction import Reconstruction, reconstruct
from .report import Report
from .summation import SumAttack, attempt, attempt_on_ours
from .timing import Timing, timing

__all__ = [
    "Claim",
    "Disclosed",
    "Groups",
    "Guesses",
    "Interval",
    "Known",
    "Match",
    "Prefix",
    "Ratings",
    "Reconstruction",
    "Report",
    "Risk",
    "SUPPRESSED",
    "SumAttack",
    "Timing",
    "attempt",
    "attempt_on_ours",
    "audit",
    "audit_one_run",
    "background_knowledge",
    "delta_presence",
    "differencing",
    "distinct_l_diversity",
    "entropy_l_diversity",
    "epsilon_of_labels",
    "explained",
    "floating_point_attack",
    "from_outputs",
    "generalize",
    "guess_by_score",
    "homogeneity",
    "intersection",
    "k_anonymity",
    "link",
    "linked",
    "lowest_bit",
    "made_up_ratings",
    "mondrian",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "one_run_mu",
    "one_run_p_value",
    "precision_attack",
    "reconstruct",
    "recursive_l_diversity",
    "risk",
    "side_knowledge",
    "t_closeness",
    "timing",
    "transcript",
]
