"""POST /invocations: MLflow's scoring protocol. https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally/

    {"dataframe_split": {"columns": [...], "data": [[...], ...], "index": [...]}}
    {"dataframe_records": [{...}, ...]}        {"instances": [{...}, ...]}
    {"inputs": {"field": [...], ...}}          {"inputs": [{...}, ...]}
    text/csv with a header

The answer is {"predictions": [answers], "model": {"name", "version"}}. Clients hold their rows in pandas, which has NaN for
what is missing and floats for whole numbers among them, so in this protocol NaN and a CSV's empty cell are null, and 3.0 is
taken where a whole number is expected. "params" are ignored, as MLflow ignores them for a model that declares none.
Not here: rows without names of their fields, Parquet bodies, and the unwrapped form for chat models.
"""

import csv
import io
from typing import Any

from rayloom.errors import InvalidRecords, hint
from rayloom.serving.protocols.exchange import (
    JSON,
    Call,
    Headers,
    Limits,
    Model,
    Reply,
    json_reply,
    loads_with_nan,
    media_type,
    named,
    require_finite,
    require_rows,
)
from rayloom.serving.schema import BOOLEAN, INTEGER, NUMBER, Columns, Kind, Schema, shown

CSV = "text/csv"
FORMS = ("dataframe_split", "dataframe_records", "instances", "inputs")
FOUND = f"expected an object with exactly one of {', '.join(FORMS)}"


def decode(body: bytes, headers: Headers, schema: Schema, limits: Limits) -> Call:
    """A request's rows.

    Raises:
        InvalidRecords: 400, 413, 415 or 422.
    """
    if media_type(headers, (JSON, CSV)) == CSV:
        columns = _read_csv(body, schema, limits)
    else:
        columns = _read_form(loads_with_nan(body), schema, limits)
    checked = _checked(columns, schema)
    return Call(checked, len(next(iter(checked.values()))))


def encode(answers: list[dict[str, Any]], model: Model, call: Call) -> Reply:
    """The reply.

    Raises:
        ServingError: an answer is not finite.
    """
    require_finite(answers)
    return json_reply({"predictions": answers, "model": named(model)})


def refuse(error: InvalidRecords) -> dict[str, Any]:
    """The JSON body of an error: MLflow's code and message, and what Rayloom says besides."""
    code = {400: "BAD_REQUEST", 413: "REQUEST_LIMIT_EXCEEDED", 415: "BAD_REQUEST"}.get(error.status, "INVALID_PARAMETER_VALUE")
    return {"error_code": code, "message": str(error), **error.body()}


def _checked(columns: dict[str, list], schema: Schema) -> Columns:
    for name, kind in schema.kinds.items():
        if kind is INTEGER and float in set(map(type, columns.get(name, ()))):
            columns[name] = [int(value) if _is_whole(value) else value for value in columns[name]]
    return schema.read_columns(columns)


def _is_whole(value: Any) -> bool:
    """Whether this is a float that stands for one whole number only, as each does up to 2**53."""
    return type(value) is float and value.is_integer() and abs(value) <= 2**53


def _read_form(values: Any, schema: Schema, limits: Limits) -> dict[str, list]:
    if not isinstance(values, dict):
        raise InvalidRecords(400, FOUND)
    forms = values.keys() & set(FORMS)
    unknown = next((shown(name) for name in values if name not in FORMS and name != "params"), None)
    if len(forms) != 1 or unknown is not None:
        more = "" if unknown is None else f"; found '{unknown}'{hint(unknown, FORMS)}"
        raise InvalidRecords(400, f"{FOUND}{more}")
    if not isinstance(values.get("params"), dict | None):
        raise InvalidRecords(400, "'params' is not an object; leave it out, the model has no parameters")
    form = forms.pop()
    given = values[form]
    if form == "dataframe_split":
        return _split(given, schema, limits)
    if form == "inputs" and isinstance(given, dict):
        return _inputs(given, limits)
    return _records(form, given, schema, limits)


def _records(form: str, given: Any, schema: Schema, limits: Limits) -> dict[str, list]:
    if not isinstance(given, list) or not given:
        raise InvalidRecords(400, f"'{form}': expected a list with at least one record")
    require_rows(len(given), limits)
    return schema.transpose(given)


def _split(given: Any, schema: Schema, limits: Limits) -> dict[str, list]:
    """{"columns": names, "data": rows, "index": ignored}, as pandas writes a frame with `orient="split"`."""
    if not isinstance(given, dict) or not {"columns", "data"} <= given.keys() <= {"columns", "data", "index"}:
        raise InvalidRecords(400, "'dataframe_split': expected an object with 'columns', 'data' and at most 'index'")
    names, rows, index = given["columns"], given["data"], given.get("index")
    if not isinstance(names, list) or not isinstance(rows, list) or not rows:
        raise InvalidRecords(400, "'dataframe_split': expected 'columns' as a list and 'data' as a list with at least one row")
    require_rows(len(rows), limits)
    if index is not None and (not isinstance(index, list) or len(index) != len(rows)):
        raise InvalidRecords(400, "'dataframe_split': 'index' is not a list as long as 'data'; it can be left out")
    if set(map(type, names)) - {str}:
        raise InvalidRecords(422, "'dataframe_split': the names in 'columns' are not all text")
    schema.require_names(names)
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {len(names)}:
        row = next(row for row, values in enumerate(rows) if type(values) is not list or len(values) != len(names))
        raise InvalidRecords(422, f"expected a list of {len(names)} values, one for each of 'columns'", row)
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _inputs(given: dict[str, Any], limits: Limits) -> dict[str, list]:
    """Lists by field, of values or of lists of one value as (n, 1) arrays are written; or one record."""
    if not any(isinstance(values, list) for values in given.values()):
        return {name: [value] for name, value in given.items()}
    columns = {}
    for name, values in given.items():
        if not isinstance(values, list):
            raise InvalidRecords(422, f"field '{shown(name)}': expected a list, as the others are", None, shown(name))
        require_rows(len(values), limits)
        nested = bool(values) and set(map(type, values)) == {list} and set(map(len, values)) == {1}
        columns[name] = [value for (value,) in values] if nested else values
    return columns


def _read_csv(body: bytes, schema: Schema, limits: Limits) -> dict[str, list]:
    """A file with a header, as pandas writes one; a first column without a name is the frame's index."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        names = next(lines, [])
        schema.require_names(names[1:] if names[:1] == [""] else names)
        rows: list[list[str]] = []
        for cells in filter(None, lines):  # an empty line is no row
            if len(cells) != len(names):
                raise InvalidRecords(422, f"{len(cells)} cells, the header has {len(names)}", len(rows))
            rows.append(cells)
            require_rows(len(rows), limits)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidRecords(400, f"the body is not CSV: {error!s:.200}") from None
    if not rows:
        raise InvalidRecords(400, "expected CSV with a header and at least one row")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return {name: _cells(columns[name], kind) for name, kind in schema.kinds.items()}


def _cells(cells: list[str], kind: Kind) -> list:
    """What the cells of a field say; a cell that cannot be read stays text, which the schema refuses by row."""
    if kind in (NUMBER, INTEGER):
        return [None if cell == "" else _number(cell) for cell in cells]
    if kind is BOOLEAN:
        known = {"": None, "true": True, "false": False}
        return [known.get(cell.lower(), cell) for cell in cells]
    return [cell or None for cell in cells]


def _number(cell: str) -> int | float | str | None:
    if "_" in cell or not cell.isascii():
        return cell  # Python reads 1_000 and ١ as numbers, CSV does not
    try:
        number = int(cell) if cell.isdigit() or (cell[0] in "+-" and cell[1:].isdigit()) else float(cell)
    except ValueError:
        return cell
    return None if number != number else number
