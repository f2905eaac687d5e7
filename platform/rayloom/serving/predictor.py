"""Raw records to answers, from a bundle alone. No Ray, Spark or MLflow.

An answer is {"probability": of the second class, "label": the class} for two classes, {"label": the most probable class,
"probability": its own, "probabilities": {class: its probability}} for more. It has "unseen": [names] where categories of the
record have values that training saw rarely or never; these count as unknown, so the answer may be worth less.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file

from rayloom import evaluation, features, models
from rayloom.bundle import Bundle
from rayloom.errors import BundleError, DataError, InvalidRecords
from rayloom.features import ColumnState, ImageState, TextState, images
from rayloom.serving import engine
from rayloom.serving.schema import Columns, Schema

ROWS, HEAVY_ROWS = 8192, 128
"""The most rows scored at once, and the most of those with texts or images: memory is bounded, answers are the same."""

CHARACTERS = 4
"""Of a token, about, as in English. It need not be right, only alike from text to text: a model's pace is in these tokens."""


class Predictor:
    """A bundle's model, ready to answer.

    Args:
        bundle: a verified bundle.
        device: of torch, where the model computes; answers come back as NumPy arrays.
        tokens: with padding, that the model takes in one pass; a CPU takes fewer.

    Raises:
        BundleError: the weights do not fit the model that the bundle's config describes.
    """

    def __init__(self, bundle: Bundle, device: str | torch.device = "cpu", tokens: int = engine.TOKENS):
        self.bundle, self.device = bundle, torch.device(device)
        self.tokens = min(tokens, engine.PACK_TOKENS) if self.device.type == "cpu" else tokens
        self.schema = Schema(bundle.state.columns)
        self.transform = features.Transform(bundle.state)
        self.threshold = float(bundle.metrics.get("validation_threshold", 0.5))
        self.temperature = float(bundle.metrics.get("validation_temperature", 1.0))
        self.is_heavy = any(isinstance(column, TextState | ImageState) for column in bundle.state.columns.values())
        self.most = HEAVY_ROWS if self.is_heavy else ROWS
        self.model = models.build(bundle.config.model, bundle.state)
        try:
            self.model.load_state_dict(load_file(bundle.weights))
        except RuntimeError as error:
            raise BundleError(
                f"{bundle.weights} does not fit the model in config.json ({str(error).splitlines()[0]})."
            ) from None
        self.model.to(self.device).eval()
        engine.fuse_attention(self.model)

    def predict(self, rows: pa.Table) -> np.ndarray:
        """Calibrated probabilities of rows with the features' columns: float32 (n,) of the second of two classes, or
        (n, classes)."""
        parts = [self._logits(rows.slice(start, self.most)) for start in range(0, max(len(rows), 1), self.most)]
        return evaluation.probabilities(np.concatenate(parts), self.temperature)

    def _logits(self, rows: pa.Table) -> np.ndarray:
        return engine.logits(self.model, self.transform.apply(rows), self.device, self.tokens)

    def weigh(self, columns: Columns) -> list[int] | None:
        """About how many tokens each row has; for images, 1 a row. None where rows cost too little to be told apart."""
        for name, column in self.bundle.state.columns.items():
            if isinstance(column, TextState):
                return [min(column.max_tokens, 2 + len(text or "") // CHARACTERS) for text in columns[name]]
            if isinstance(column, ImageState):
                return [1] * len(columns[name])
        return None

    def predict_records(self, records: Any) -> np.ndarray:
        """`predict` of a JSON list of records.

        Raises:
            InvalidRecords: see `Schema.read`, and 422 where an image cannot be used.
        """
        return self._predict(self.schema.table(self.schema.read(records)))

    def answer(self, records: Any) -> list[dict[str, Any]]:
        """What a client gets for each record of a JSON list.

        Raises:
            InvalidRecords: see `Schema.read`, and 422 where an image cannot be used.
        """
        return self.answer_rows(self.schema.table(self.schema.read(records)))

    def answer_rows(self, rows: pa.Table) -> list[dict[str, Any]]:
        """What a client gets for each row of a table of the schema's types.

        Raises:
            InvalidRecords: 422 where an image cannot be used.
        """
        answers = [self._answer(given) for given in self._predict(rows).tolist()]
        for name, where in self.transform.unseen(rows).items():
            for row in np.flatnonzero(where):
                answers[row].setdefault("unseen", []).append(name)
        return answers

    def _answer(self, given: float | list[float]) -> dict[str, Any]:
        """What a client gets for a row's probability, or for its probabilities of more than two classes."""
        classes = self.bundle.state.classes
        if not isinstance(given, list):
            return {"probability": given, "label": classes[given >= self.threshold]}
        best = given.index(max(given))
        named = {str(name): probability for name, probability in zip(classes, given, strict=True)}
        return {"label": classes[best], "probability": given[best], "probabilities": named}

    def _predict(self, rows: pa.Table) -> np.ndarray:
        """`predict`, where what may be wrong with a row is the client's."""
        try:
            return self.predict(rows)
        except DataError:
            _refuse_images(rows, self.bundle.state.columns)
            raise

    def replay(self, tolerance: float) -> float:
        """Answers the golden rows anew and returns the largest difference.

        Raises:
            BundleError: a difference is over `tolerance` (the sentence names the row), or there are no golden rows.
        """
        if not self.bundle.golden:
            raise BundleError(f"{self.bundle.folder} has no golden rows: nothing shows that it answers rightly; train again.")
        expected = np.array([golden.answer for golden in self.bundle.golden])
        answers = self.predict_records([golden.record for golden in self.bundle.golden])
        if answers.shape != expected.shape:
            raise BundleError(f"The golden rows of {self.bundle.folder} are not of the model's classes; train again.")
        differences = np.abs(answers - expected)
        worst = np.unravel_index(int(differences.argmax()), differences.shape)
        if not differences[worst] <= tolerance:
            raise BundleError(
                f"Golden row {worst[0]} of {self.bundle.folder} is answered {answers[worst]:.8f}, training answered "
                f"{expected[worst]:.8f} (tolerance {tolerance:g}); the model is not served. Train and register it again."
            )
        return float(differences[worst])


def _refuse_images(rows: pa.Table, columns: dict[str, ColumnState]) -> None:
    """Raises InvalidRecords for the first image that cannot be used."""
    for name, column in columns.items():
        if isinstance(column, ImageState):
            for row, data in enumerate(rows[name].to_pylist()):
                try:
                    _ = data is None or images.decode(column, data, f"in field '{name}'")
                except DataError as error:
                    raise InvalidRecords(422, str(error), row, name) from None
