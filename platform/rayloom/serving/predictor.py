"""Raw records to probabilities, from a bundle alone. No Ray, Spark or MLflow."""

import datetime
import math
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file

from rayloom import features, models
from rayloom.bundle import Bundle
from rayloom.errors import BundleError, InvalidRecords, hint
from rayloom.features import CategoryState, ColumnState, NumberState


class Predictor:
    """A bundle's model, ready to answer.

    Args:
        bundle: a verified bundle.

    Raises:
        BundleError: the weights do not fit the model that the bundle's config describes.
    """

    def __init__(self, bundle: Bundle):
        self.bundle = bundle
        self.threshold = float(bundle.metrics["validation_threshold"])
        self.model = models.build(bundle.config.model, bundle.state)
        try:
            self.model.load_state_dict(load_file(bundle.weights))
        except RuntimeError as error:
            raise BundleError(
                f"{bundle.weights} does not fit the model in config.json ({str(error).splitlines()[0]})."
            ) from None
        self.model.eval()

    def predict(self, rows: pa.Table) -> np.ndarray:
        """Probabilities float32 (n,) of rows with the features' columns."""
        arrays = features.apply(self.bundle.state, rows)
        with torch.inference_mode():
            return torch.sigmoid(self.model({name: torch.from_numpy(array) for name, array in arrays.items()})).numpy()

    def predict_records(self, records: Any) -> np.ndarray:
        """Probabilities float32 (n,) of a JSON list of records.

        Raises:
            InvalidRecords: see `parse`.
        """
        return self.predict(parse(records, self.bundle.state.columns))

    def replay(self, tolerance: float) -> float:
        """Answers the golden rows anew and returns the largest difference.

        Raises:
            BundleError: a difference is over `tolerance` (the sentence names the row), or there are no golden rows.
        """
        if not self.bundle.golden:
            raise BundleError(f"{self.bundle.folder} has no golden rows: nothing shows that it answers rightly; train again.")
        expected = np.array([golden.probability for golden in self.bundle.golden])
        answers = self.predict_records([golden.record for golden in self.bundle.golden])
        differences = np.abs(answers - expected)
        worst = int(differences.argmax())
        if not differences[worst] <= tolerance:
            raise BundleError(
                f"Golden row {worst} of {self.bundle.folder} is answered {answers[worst]:.8f}, training answered "
                f"{expected[worst]:.8f} (tolerance {tolerance:g}); the model is not served. Train and register it again."
            )
        return float(differences[worst])


def parse(records: Any, columns: dict[str, ColumnState]) -> pa.Table:
    """A JSON list of records as a table; every field must be there, null where its value is not known.

    Raises:
        InvalidRecords: 400 where this is no list of objects or an empty one; 422 naming row and field where one is missing,
            unknown, or of the wrong type.
    """
    if not isinstance(records, list) or not records:
        raise InvalidRecords(400, "expected a JSON list with at least one record")
    for row, record in enumerate(records):
        _check_fields(row, record, columns)
    return pa.table({name: _column(name, column, records) for name, column in columns.items()})


def _check_fields(row: int, record: Any, columns: dict[str, ColumnState]) -> None:
    if not isinstance(record, dict):
        raise InvalidRecords(422, f"expected an object, found {_kind(record)}", row)
    if record.keys() == columns.keys():
        return
    for name in columns:
        if name not in record:
            raise InvalidRecords(422, f"field '{name}' is missing; send null where it is not known", row, name)
    unknown = next(name for name in record if name not in columns)
    raise InvalidRecords(422, f"unknown field '{unknown:.80}'{hint(unknown, columns)}", row, unknown[:80])


def _column(name: str, column: ColumnState, records: list[dict]) -> pa.Array:
    values = [record[name] for record in records]
    if isinstance(column, NumberState):
        return pa.array([_number(row, name, value) for row, value in enumerate(values)], pa.float64())
    if isinstance(column, CategoryState):
        return pa.array([_text(row, name, value) for row, value in enumerate(values)], pa.string())
    return pa.array([_date(row, name, value) for row, value in enumerate(values)], pa.date32())


def _number(row: int, name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRecords(422, f"field '{name}': expected a number or null, found {_kind(value)}", row, name)
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise InvalidRecords(422, f"field '{name}': expected a finite number", row, name)
    return number


def _text(row: int, name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidRecords(422, f"field '{name}': expected text or null, found {_kind(value)}", row, name)
    return value


def _date(row: int, name: str, value: Any) -> datetime.date | None:
    if value is None:
        return None
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidRecords(422, f"field '{name}': expected a date such as '2013-11-05' or null", row, name) from None


def _kind(value: Any) -> str:
    """A value's type in JSON's words."""
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
