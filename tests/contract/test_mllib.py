"""The peer on Spark MLlib, held against scikit-learn on the same rows."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from rayloom.costs import mllib
from rayloom.worker import Arrays


def make_rows(rows: int, seed: int) -> Arrays:
    """Rows whose label depends on a number and a category, with noise."""
    rng = np.random.default_rng(seed)
    numbers, categories = rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(0, 3, (rows, 1))
    label = numbers[:, 0] + 2 * (categories[:, 0] == 1) + rng.normal(size=rows) > 1
    return {"numbers": numbers, "categories": categories, "label": label.astype(np.float32)}


@pytest.mark.parametrize(("kind", "tolerance"), [("gbt", 0.08), ("lr", 0.002)])
def test_mllib_ranks_test_rows_as_well_as_scikit_learn(spark, tmp_path, monkeypatch, kind, tolerance):
    monkeypatch.setattr(mllib, "TREES", 2)  # seconds each, and 400 rows need no more
    splits = {"train": make_rows(400, 3), "test": make_rows(200, 4)}
    cost = mllib.measure(spark, kind, splits, [3], 17, tmp_path)
    inputs = {name: np.column_stack([rows["numbers"], np.eye(3)[rows["categories"][:, 0]]]) for name, rows in splits.items()}
    model = LogisticRegression(C=1e6).fit(inputs["train"], splits["train"]["label"])
    expected = roc_auc_score(splits["test"]["label"], model.decision_function(inputs["test"]))
    assert cost.auc == pytest.approx(expected, abs=tolerance) and cost.seconds > 0
