"""Raw records to answers, from a bundle alone. No Ray, Spark or MLflow.

An answer is {"probability": of the second class, "label": the class} for two classes, {"label": the most probable class,
"probability": its own, "probabilities": {class: its probability}} for more. It has "unseen": [names] where categories of the
record have values that training saw rarely or never; these count as unknown, so the answer may be worth less.
"""

import base64
import binascii
import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file

from rayloom import evaluation, features, models
from rayloom.bundle import Bundle
from rayloom.errors import BundleError, DataError, InvalidRecords, hint
from rayloom.features import CategoryState, ColumnState, DateState, HashState, ImageState, TextState, images

ROWS, HEAVY_ROWS = 8192, 128
"""The most rows scored at once, and the most of those with texts or images: memory is bounded, answers are the same."""


class Predictor:
    """A bundle's model, ready to answer.

    Args:
        bundle: a verified bundle.

    Raises:
        BundleError: the weights do not fit the model that the bundle's config describes.
    """

    def __init__(self, bundle: Bundle):
        self.bundle = bundle
        self.threshold = float(bundle.metrics.get("validation_threshold", 0.5))
        self.temperature = float(bundle.metrics.get("validation_temperature", 1.0))
        is_heavy = any(isinstance(column, TextState | ImageState) for column in bundle.state.columns.values())
        self.most = HEAVY_ROWS if is_heavy else ROWS
        self.model = models.build(bundle.config.model, bundle.state)
        try:
            self.model.load_state_dict(load_file(bundle.weights))
        except RuntimeError as error:
            raise BundleError(
                f"{bundle.weights} does not fit the model in config.json ({str(error).splitlines()[0]})."
            ) from None
        self.model.eval()

    def predict(self, rows: pa.Table) -> np.ndarray:
        """Calibrated probabilities of rows with the features' columns: float32 (n,) of the second of two classes, or
        (n, classes)."""
        parts = [self._logits(rows.slice(start, self.most)) for start in range(0, max(len(rows), 1), self.most)]
        return evaluation.probabilities(np.concatenate(parts), self.temperature)

    def _logits(self, rows: pa.Table) -> np.ndarray:
        arrays = features.apply(self.bundle.state, rows)
        with torch.inference_mode():
            return self.model({name: torch.from_numpy(array) for name, array in arrays.items()}).float().numpy()

    def predict_records(self, records: Any) -> np.ndarray:
        """`predict` of a JSON list of records.

        Raises:
            InvalidRecords: see `parse`.
        """
        return self._predict(parse(records, self.bundle.state.columns))

    def answer(self, records: Any) -> list[dict[str, Any]]:
        """What a client gets for each record of a JSON list.

        Raises:
            InvalidRecords: see `parse`.
        """
        rows = parse(records, self.bundle.state.columns)
        answers = [self._answer(given) for given in self._predict(rows).tolist()]
        for name, where in features.unseen(self.bundle.state, rows).items():
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


def parse(records: Any, columns: dict[str, ColumnState]) -> pa.Table:
    """A JSON list of records as a table; every field must be there, null where its value is not known.

    Raises:
        InvalidRecords: 400 where this is no list of objects or an empty one; 422 naming row and field where one is missing,
            unknown, or of the wrong type. Images are text in base64; whether they can be decoded shows in prediction.
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
    read, kind = _reading(column)
    return pa.array(
        [None if record[name] is None else read(row, name, record[name]) for row, record in enumerate(records)], kind
    )


def _reading(column: ColumnState) -> tuple[Callable[[int, str, Any], Any], pa.DataType]:
    """What checks a field's value, where it is not null, and the type that its column has."""
    match column:
        case CategoryState(type="integer") | HashState(type="integer"):
            return _whole, pa.int64()
        case CategoryState(type="boolean") | HashState(type="boolean"):
            return _boolean, pa.bool_()
        case CategoryState() | HashState() | TextState():
            return _text, pa.string()
        case DateState():
            return _date, pa.date32()
        case ImageState():
            return _image, pa.binary()
    return _number, pa.float64()


def _number(row: int, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRecords(422, f"field '{name}': expected a number or null, found {_kind(value)}", row, name)
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise InvalidRecords(422, f"field '{name}': expected a finite number", row, name)
    return number


def _text(row: int, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRecords(422, f"field '{name}': expected text or null, found {_kind(value)}", row, name)
    return value


def _whole(row: int, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRecords(422, f"field '{name}': expected a whole number or null, found {_kind(value)}", row, name)
    if not -(2**63) <= value < 2**63:
        raise InvalidRecords(422, f"field '{name}': expected a whole number of 64 bits", row, name)
    return value


def _boolean(row: int, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRecords(422, f"field '{name}': expected true, false or null, found {_kind(value)}", row, name)
    return value


def _date(row: int, name: str, value: Any) -> datetime.date:
    """A date, or the date in UTC of a timestamp, which is in UTC where it does not say its offset."""
    try:
        moment = datetime.datetime.fromisoformat(value)
        return moment.astimezone(datetime.UTC).date() if moment.tzinfo else moment.date()
    except (TypeError, ValueError, OverflowError):
        raise InvalidRecords(422, f"field '{name}': expected a date such as '2013-11-05' or null", row, name) from None


def _image(row: int, name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise InvalidRecords(422, f"field '{name}': expected an image file in base64 or null", row, name) from None


def _refuse_images(rows: pa.Table, columns: dict[str, ColumnState]) -> None:
    """Raises InvalidRecords for the first image that cannot be used."""
    for name, column in columns.items():
        if isinstance(column, ImageState):
            for row, data in enumerate(rows[name].to_pylist()):
                try:
                    _ = data is None or images.decode(column, data, f"in field '{name}'")
                except DataError as error:
                    raise InvalidRecords(422, str(error), row, name) from None


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
