"""Plain scikit-learn models on the same rows, to say what the network is worth. Imported when called: it takes seconds."""

import numpy as np

from rayloom import environment
from rayloom.errors import DataError
from rayloom.worker import Arrays


def boosted_trees(train: Arrays, test: Arrays, seed: int) -> np.ndarray:
    """HistGradientBoostingClassifier with its defaults, on numbers and categories as the network gets them.

    Returns:
        Probabilities of the test rows: float64 (n,) of the second of two classes, or (n, classes).
    """
    # Its threads wait for each other hundreds of times a second, by default with a busy CPU: up to ten times the CPU time,
    # where others need the CPUs. It is read once, when the first module with threads is imported; it is not for torch's
    # threads, nor for processes that start later.
    with environment.defaults({"OMP_WAIT_POLICY": "PASSIVE"}):
        from sklearn.ensemble import HistGradientBoostingClassifier

    def inputs(arrays: Arrays) -> np.ndarray:
        return np.hstack([arrays["numbers"], arrays["categories"].astype(np.float32)])

    model = HistGradientBoostingClassifier(random_state=seed).fit(inputs(train), train["label"])
    return _second_of_two(model.predict_proba(inputs(test)))


def words(texts: list[str], labels: np.ndarray, test: list[str]) -> np.ndarray:
    """Logistic regression on TF-IDF of the raw texts' words. Returns as `boosted_trees`.

    Raises:
        DataError: the texts have no words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectors = TfidfVectorizer(sublinear_tf=True)
    try:
        known = vectors.fit_transform(texts)
    except ValueError:
        raise DataError(
            "The training texts have no words, so that there is no baseline; set evaluate.baseline to false."
        ) from None
    model = LogisticRegression(C=10.0, max_iter=1000).fit(known, labels)
    return _second_of_two(model.predict_proba(vectors.transform(test)))


def pixels(train: Arrays, test: Arrays) -> np.ndarray:
    """Logistic regression on the standardised pixels. Returns as `boosted_trees`."""
    from sklearn.linear_model import LogisticRegression

    def inputs(arrays: Arrays) -> np.ndarray:
        return arrays["image"].reshape(len(arrays["image"]), -1)

    model = LogisticRegression(max_iter=1000).fit(inputs(train), train["label"])
    return _second_of_two(model.predict_proba(inputs(test)))


def _second_of_two(found: np.ndarray) -> np.ndarray:
    return found[:, 1] if found.shape[1] == 2 else found
