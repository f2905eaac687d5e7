"""Stage `evaluate`: how good a model is on the test split, and whether it becomes `@champion`."""

import numpy as np

from rayloom import cluster, datasets, evaluation, tracking
from rayloom.datasets import DatasetVersion
from rayloom.runs import Run
from rayloom.stages.model import Trained, summarize_registry


def evaluate(run: Run, dataset: DatasetVersion, trained: Trained) -> np.ndarray:
    """Scores every test row, draws the plots, compares with the baseline, and moves @champion if the gate agrees.

    Returns:
        Probabilities float32 (n,) of the test rows in the split's order.

    Raises:
        GateError: the model is not good enough; @champion stays.
    """
    from rayloom import plots  # Matplotlib is slow to import, and only evaluation draws

    pipeline = run.pipeline
    with run.stage("evaluate"):
        cluster.require({"CPU": 1.0}, "evaluate", "join another cluster", pipeline.cluster)
        labels, probabilities = datasets.predict(trained.bundle.folder, dataset.split("test"))
        evaluation.require_both_classes(labels, "test")
        test = evaluation.score(labels, probabilities, trained.bundle.metrics["validation_threshold"])
        run.summary["test"] = {name: test[name] for name in ("auc", "average_precision", "f1", "accuracy", "n")}
        if pipeline.evaluate.baseline:
            run.summary["test"]["baseline_auc"] = _baseline(run, dataset, trained)
        drawn = plots.draw(labels, probabilities, test["threshold"], str(trained.version), run.folder)
        tracking.record_evaluation(pipeline, trained.version, {**test, **run.summary["test"]}, drawn)
        evaluation.require(pipeline.evaluate.gate, test)
        tracking.promote(pipeline, trained.version)
        summarize_registry(run, trained.version, tracking.CHAMPION)
        return probabilities


def _baseline(run: Run, dataset: DatasetVersion, trained: Trained) -> float:
    state = trained.bundle.state
    train = trained.inputs or dataset.encode(state, "train")
    test = dataset.encode(state, "test")
    return evaluation.baseline_auc(train.read(0, train.rows), test.read(0, test.rows), run.pipeline.seed)
