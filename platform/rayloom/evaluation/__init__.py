"""How good a model is: on validation rows, whose temperature and threshold go into the bundle, and on test rows, for the gate.

NumPy only, so that a training worker starts fast; scikit-learn is imported where a baseline is trained.
"""

from rayloom.evaluation.baseline import boosted_trees, pixels, words
from rayloom.evaluation.bootstrap import Comparison, compare
from rayloom.evaluation.calibration import fit_temperature, probabilities
from rayloom.evaluation.gate import Outcome, Rival, judge_gate, require
from rayloom.evaluation.leaks import refuse_leaks, single_feature_auc
from rayloom.evaluation.metrics import Answers, confusion, reliability, require_several_classes, score, score_classes
from rayloom.evaluation.mistakes import worst
from rayloom.evaluation.report import Report
from rayloom.evaluation.slices import Slice, slice_rows
from rayloom.evaluation.validation import best_threshold, check, judge, selection

__all__ = [
    "Answers",
    "Comparison",
    "Outcome",
    "Report",
    "Rival",
    "Slice",
    "best_threshold",
    "boosted_trees",
    "check",
    "compare",
    "confusion",
    "fit_temperature",
    "judge",
    "judge_gate",
    "pixels",
    "probabilities",
    "refuse_leaks",
    "reliability",
    "require",
    "require_several_classes",
    "score",
    "score_classes",
    "selection",
    "single_feature_auc",
    "slice_rows",
    "words",
    "worst",
]
