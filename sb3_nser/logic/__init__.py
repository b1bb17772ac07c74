"""Rules as differentiable first-order logic: grounding, fitting, judging, scoring."""

from sb3_nser.logic.bank import RuleBank
from sb3_nser.logic.fit import FitReport, fit
from sb3_nser.logic.grounding import Dataset, build_bank, judge, scales_from
from sb3_nser.logic.operators import (
    Goedel,
    Lukasiewicz,
    Product,
    TNorm,
    negation,
    p_mean,
    p_mean_error,
    reichenbach,
    tnorm_by_name,
)
from sb3_nser.logic.scoring import Scorer, scorer
from sb3_nser.logic.steps import Steps
from sb3_nser.rules.entry import moved_rule

__all__ = [
    "Dataset",
    "FitReport",
    "Goedel",
    "Lukasiewicz",
    "Product",
    "RuleBank",
    "Scorer",
    "Steps",
    "TNorm",
    "build_bank",
    "fit",
    "judge",
    "moved_rule",
    "negation",
    "p_mean",
    "p_mean_error",
    "reichenbach",
    "scales_from",
    "scorer",
    "tnorm_by_name",
]
