"""Plots: each file that is promised is there, is a picture, and no class count is too many to draw."""

import numpy as np
import pytest
from PIL import Image

from rayloom import plots
from rayloom.evaluation import Answers

TITLES = {
    2: ["roc", "precision_recall", "calibration", "confusion_matrix"],
    3: ["confusion_matrix", "reliability", "f1_by_class"],
    100: ["confusion_matrix", "reliability", "f1_by_class"],
}


@pytest.mark.parametrize("classes", TITLES)
def test_every_plot_is_a_picture(classes, tmp_path):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, classes, 60)
    given = rng.dirichlet(np.ones(classes), 60).astype(np.float32)
    answers = Answers(labels, given[:, 1] if classes == 2 else given)
    drawn = plots.draw(answers, list(range(classes)), "toy v1", tmp_path)
    assert [path.stem for path in drawn] == TITLES[classes]
    assert all(Image.open(path).size == (720, 600) for path in drawn)
