"""Provides audits and attacks: lower bounds on epsilon for anything that claims one, membership inference,
reconstruction and linkage, and measures of what tables with k-anonymity and its successors disclose.
"""

from typing import TYPE_CHECKING

from .. import _registry
from .audit import audit as audit

if TYPE_CHECKING:
    from .anonymity import SUPPRESSED as SUPPRESSED
    from .anonymity import Groups as Groups
    from .anonymity import Ratings as Ratings
    from .anonymity import SideKnowledge as SideKnowledge
    from .anonymity import ToInterval as ToInterval
    from .anonymity import ToPrefix as ToPrefix
    from .anonymity import background_knowledge as background_knowledge
    from .anonymity import differencing as differencing
    from .anonymity import distinct_l_diversity as distinct_l_diversity
    from .anonymity import generalize as generalize
    from .anonymity import homogeneity as homogeneity
    from .anonymity import intersection as intersection
    from .anonymity import k_anonymity as k_anonymity
    from .anonymity import link as link
    from .anonymity import linked as linked
    from .anonymity import made_up_ratings as made_up_ratings
    from .anonymity import mondrian as mondrian
    from .anonymity import reconstruct as reconstruct
    from .anonymity import risk as risk
    from .anonymity import side_knowledge as side_knowledge
    from .anonymity import t_closeness as t_closeness
    from .audit import epsilon_of_labels as epsilon_of_labels
    from .audit import explained as explained
    from .audit import floating_point_attack as floating_point_attack
    from .audit import from_outputs as from_outputs
    from .audit import lowest_bit as lowest_bit
    from .audit import precision_attack as precision_attack
    from .audit import transcript as transcript
    from .canaries import audit_canaries as audit_canaries
    from .canaries import audit_one_run as audit_one_run
    from .canaries import curve_refuted as curve_refuted
    from .canaries import guess_by_score as guess_by_score
    from .canaries import one_run_epsilon as one_run_epsilon
    from .canaries import one_run_gaussian_epsilon as one_run_gaussian_epsilon
    from .canaries import one_run_mu as one_run_mu
    from .canaries import one_run_p_value as one_run_p_value
    from .canaries import step_scores as step_scores
    from .membership import Roc as Roc
    from .membership import Shadows as Shadows
    from .membership import attribute_inference as attribute_inference
    from .membership import by_loss as by_loss
    from .membership import exposure as exposure
    from .membership import guess_attributes as guess_attributes
    from .membership import halves as halves
    from .membership import invert as invert
    from .membership import lira as lira
    from .membership import lira_roc as lira_roc
    from .membership import log_perplexity as log_perplexity
    from .membership import logit_scaled as logit_scaled
    from .membership import margins as margins
    from .membership import train_shadows as train_shadows
    from .outputs import Guesses as Guesses
    from .report import Report as Report

__all__, __getattr__, __dir__ = _registry.exports(__name__)
