"""Provides audits and attacks: lower bounds on epsilon for anything that claims one, membership inference,
reconstruction and linkage, and measures of what tables with k-anonymity and its successors disclose.
"""

from .anonymity import (
    ReidentificationRisk,
    delta_presence,
    distinct_l_diversity,
    entropy_l_diversity,
    k_anonymity,
    recursive_l_diversity,
    risk,
    t_closeness,
)
from .attributes import Attributes, attribute_inference, guess_attributes, invert
from .audit import audit, epsilon_of_labels, from_outputs, transcript
from .canaries import CanaryAudit, audit_canaries, step_scores
from .claims import Claim, Lines
from .disclosure import Disclosed, background_knowledge, differencing, homogeneity, intersection
from .exposure import Exposure, estimated_exposure, exposure
from .floating import explained, floating_point_attack, lowest_bit, precision_attack
from .generalize import SUPPRESSED, Groups, ToInterval, ToPrefix, generalize, mondrian
from .linkage import Match, Ratings, SideKnowledge, link, linked, made_up_ratings, side_knowledge
from .membership import (
    Shadows,
    by_loss,
    by_quantile,
    by_shadows,
    halves,
    lira,
    lira_roc,
    logit_scaled,
    margins,
    train_shadows,
)
from .one_run import (
    audit_one_run,
    curve_refuted,
    guess_by_score,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    one_run_mu,
    one_run_p_value,
)
from .rates import Guesses
from .reconstruction import Reconstruction, reconstruct
from .report import Report
from .roc import Operating, Roc
from .summation import SumAttack, attempt, attempt_on_ours
from .timing import Clock, Timing, clock, timing

__all__ = [
    "Attributes",
    "CanaryAudit",
    "Claim",
    "Clock",
    "Disclosed",
    "Exposure",
    "Groups",
    "Guesses",
    "ToInterval",
    "SideKnowledge",
    "Lines",
    "Match",
    "Operating",
    "ToPrefix",
    "Ratings",
    "Reconstruction",
    "Report",
    "ReidentificationRisk",
    "Roc",
    "SUPPRESSED",
    "Shadows",
    "SumAttack",
    "Timing",
    "attempt",
    "attempt_on_ours",
    "attribute_inference",
    "audit",
    "audit_canaries",
    "audit_one_run",
    "background_knowledge",
    "by_loss",
    "by_quantile",
    "by_shadows",
    "clock",
    "curve_refuted",
    "delta_presence",
    "differencing",
    "distinct_l_diversity",
    "entropy_l_diversity",
    "epsilon_of_labels",
    "estimated_exposure",
    "explained",
    "exposure",
    "floating_point_attack",
    "from_outputs",
    "generalize",
    "guess_attributes",
    "guess_by_score",
    "halves",
    "homogeneity",
    "intersection",
    "invert",
    "k_anonymity",
    "link",
    "linked",
    "lira",
    "lira_roc",
    "logit_scaled",
    "lowest_bit",
    "made_up_ratings",
    "margins",
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
    "step_scores",
    "t_closeness",
    "timing",
    "train_shadows",
    "transcript",
]
