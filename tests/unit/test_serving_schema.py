"""A request's fields: what is taken and as what, what is refused and how, one row or many."""

import base64
import datetime
import math

import pyarrow as pa
import pytest

from rayloom.errors import InvalidRecords
from rayloom.features import CategoryState, DateState, HashState, ImageState, NumberState, TextState
from rayloom.serving.schema import FEW, Schema

NUMBER = NumberState(center=0.0, spread=1.0, impute=0.0, flag=True)
TEXT = CategoryState(values=["AA", "UA"])
INTEGER = CategoryState(values=["1", "3"], type="integer")
BOOLEAN = HashState(buckets=4, type="boolean")
DATE = DateState(parts=["day"])
IMAGE = ImageState(height=2, width=3, channels=1, resize=False, mean=[0.5], deviation=[0.25])

SCHEMA = Schema(
    {
        "number": NUMBER,
        "text": TEXT,
        "integer": INTEGER,
        "boolean": BOOLEAN,
        "date": DATE,
        "image": IMAGE,
        "long": TextState(tokenizer="{}", max_tokens=4, vocabulary=4),
    }
)
GOOD = {"number": 7.5, "text": "AA", "integer": 3, "boolean": True, "date": "2013-11-05", "image": "QUI=", "long": "so late"}
CHECKED = {
    "number": [7.5],
    "text": ["AA"],
    "integer": [3],
    "boolean": [True],
    "date": [datetime.date(2013, 11, 5)],
    "image": [b"AB"],
    "long": ["so late"],
}


def refusal(call, *given) -> tuple:
    """(status, row, field, message) with which a call refuses."""
    with pytest.raises(InvalidRecords) as caught:
        call(*given)
    error = caught.value
    return error.status, error.row, error.field, error.message


def one(column) -> Schema:
    return Schema({"x": column})


def test_a_record_of_every_kind_is_read():
    assert SCHEMA.read([GOOD]) == CHECKED


def test_the_columns_are_in_the_schemas_order():
    assert list(SCHEMA.read([dict(reversed(GOOD.items()))])) == list(GOOD)
    assert list(SCHEMA.read_columns({name: [GOOD[name]] for name in reversed(GOOD)})) == list(GOOD)


def test_records_and_their_columns_are_read_alike():
    records = [GOOD, dict.fromkeys(GOOD), GOOD]
    assert SCHEMA.read_columns({name: [record[name] for record in records] for name in GOOD}) == SCHEMA.read(records)


def test_the_table_has_the_schemas_types():
    table = SCHEMA.table(SCHEMA.read([GOOD, dict.fromkeys(GOOD)]))
    types = [pa.float64(), pa.string(), pa.int64(), pa.bool_(), pa.date32(), pa.binary(), pa.string()]
    assert table.schema.types == types and table.column_names == list(GOOD)
    assert table.to_pylist() == [{name: values[0] for name, values in CHECKED.items()}, dict.fromkeys(GOOD)]


def test_a_table_of_few_rows_is_the_beginning_of_one_of_many():
    records = [GOOD, dict.fromkeys(GOOD)] * FEW
    few, many = (SCHEMA.table(SCHEMA.read(rows)) for rows in (records[:FEW], records))
    assert few.equals(many.slice(0, FEW)) and few.schema.equals(many.schema, check_metadata=True)


@pytest.mark.parametrize("column", [NUMBER, TEXT, INTEGER, BOOLEAN, DATE, IMAGE])
def test_a_column_of_nulls_keeps_its_type(column):
    schema = one(column)
    table = schema.table(schema.read([{"x": None}] * 3))
    assert table.schema == schema.arrow and table["x"].null_count == 3


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (NUMBER, 5, 5.0),
        (NUMBER, -0.0, 0.0),
        (NUMBER, 2**60, float(2**60)),
        (NUMBER, 10**308, 1e308),
        (NUMBER, 5e-324, 5e-324),
        (INTEGER, 2**63 - 1, 2**63 - 1),
        (INTEGER, -(2**63), -(2**63)),
        (TEXT, "", ""),
        (TEXT, "日本 ✈", "日本 ✈"),
        (TEXT, "a\x00b", "a\x00b"),
        (BOOLEAN, False, False),
        (DATE, "2024-02-29", datetime.date(2024, 2, 29)),
        (DATE, "2024-07-01T00:30:00+02:00", datetime.date(2024, 6, 30)),
        (DATE, "2024-07-01 23:00", datetime.date(2024, 7, 1)),
        (DATE, datetime.date(2024, 7, 1), datetime.date(2024, 7, 1)),
        (IMAGE, "", b""),
        (IMAGE, b"\x00\xff", b"\x00\xff"),
    ],
)
def test_a_value_is_taken_as_what_it_is(column, value, expected):
    found = one(column).read([{"x": value}])["x"][0]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (NUMBER, True, "expected a number or null, found a boolean"),
        (NUMBER, "5", "expected a number or null, found text"),
        (NUMBER, [5], "expected a number or null, found a list"),
        (NUMBER, {}, "expected a number or null, found an object"),
        (NUMBER, math.nan, "expected a finite number"),
        (NUMBER, -math.inf, "expected a finite number"),
        (NUMBER, 10**400, "expected a finite number"),
        (INTEGER, 3.4, "expected a whole number or null, found a number"),
        (INTEGER, 3.0, "expected a whole number or null, found a number"),
        (INTEGER, True, "expected a whole number or null, found a boolean"),
        (INTEGER, 2**63, "expected a whole number of 64 bits"),
        (INTEGER, -(2**63) - 1, "expected a whole number of 64 bits"),
        (TEXT, 5, "expected text or null, found a number"),
        (TEXT, b"AA", "expected text or null, found bytes"),
        (TEXT, "\ud800", "expected text that UTF-8 can hold, found a lone surrogate"),
        (BOOLEAN, 1, "expected true, false or null, found a number"),
        (BOOLEAN, "true", "expected true, false or null, found text"),
        (DATE, "2013-02-29", "expected a date such as '2013-11-05' or null"),
        (DATE, 15000, "expected a date such as '2013-11-05' or null"),
        (DATE, "0001-01-01T00:00:00+14:00", "expected a date such as '2013-11-05' or null"),
        (DATE, "\ud800", "expected a date such as '2013-11-05' or null"),
        (IMAGE, "no base64!", "expected an image file in base64 or null"),
        (IMAGE, "é", "expected an image file in base64 or null"),
        (IMAGE, 5, "expected an image file in base64 or null"),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
def test_a_value_that_would_lose_something_is_refused_by_row_and_field(column, value, said, before):
    records = [{"x": None}] * before + [{"x": value}, {"x": value}]
    assert refusal(one(column).read, records) == (422, before, "x", f"field 'x': {said}")


def test_the_first_bad_row_of_many_is_named():
    records = [{"x": float(row)} for row in range(10_000)]
    records[7_000] = records[9_000] = {"x": "5"}
    assert refusal(one(NUMBER).read, records)[:3] == (422, 7_000, "x")


def test_numbers_whose_sum_is_no_number_are_taken():
    values = [1.7e308, 1.7e308, None, -5]
    assert one(NUMBER).read([{"x": value} for value in values])["x"] == values


@pytest.mark.parametrize("values", [[math.inf, -math.inf], [1.0, math.nan], [math.inf, 1.7e308]])
def test_infinities_do_not_hide_in_a_sum(values):
    assert refusal(one(NUMBER).read_columns, {"x": values})[3] == "field 'x': expected a finite number"


@pytest.mark.parametrize("body", [None, {}, "[]", 5, [], GOOD])
def test_what_is_no_list_of_records_is_refused(body):
    assert refusal(SCHEMA.read, body) == (400, None, None, "expected a JSON list with at least one record")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (None, "expected an object, found null"),
        ([], "expected an object, found a list"),
        ("number", "expected an object, found text"),
        (7, "expected an object, found a number"),
    ],
)
@pytest.mark.parametrize("schema", [SCHEMA, one(NUMBER)])
def test_what_is_no_record_is_refused_by_row(schema, record, said):
    good = {name: None for name in schema.columns}
    assert refusal(schema.read, [good, record]) == (422, 1, None, said)


def test_a_missing_field_is_refused_by_row():
    record = {name: value for name, value in GOOD.items() if name != "text"}
    said = "field 'text' is missing; send null where it is not known"
    assert refusal(SCHEMA.read, [GOOD, record]) == (422, 1, "text", said)


def test_an_unknown_field_is_refused_with_the_nearest_one():
    status, row, field, said = refusal(SCHEMA.read, [{**GOOD, "numbr": 1}])
    assert (status, row, field) == (422, 0, "numbr")
    assert said.startswith("unknown field 'numbr'; did you mean 'number'? Known: boolean, ")


def test_an_unknown_field_in_place_of_another_is_told_as_missing():
    assert refusal(one(NUMBER).read, [{"y": 1}])[2:] == ("x", "field 'x' is missing; send null where it is not known")


@pytest.mark.parametrize("name", ["\ud800", "a" * 100_000])
def test_a_name_that_no_answer_could_hold_is_refused(name):
    status, _, field, said = refusal(SCHEMA.read, [{**GOOD, name: 1}])
    assert status == 422 and len(field) <= 80 and len(said.encode()) < 400


def test_a_field_named_twice_is_refused():
    assert refusal(one(NUMBER).require_names, ["x", "x"]) == (422, None, "x", "field 'x' is there twice")


def test_columns_of_unequal_lengths_are_refused():
    schema = Schema({"x": NUMBER, "y": TEXT})
    assert refusal(schema.read_columns, {"x": [1, 2], "y": ["AA"]}) == (422, None, "y", "field 'y': 1 values, 'x' has 2")


def test_columns_without_a_row_are_refused():
    assert refusal(one(NUMBER).read_columns, {"x": []}) == (400, None, None, "expected at least one record")


@pytest.mark.parametrize(("columns", "field"), [({"x": [1.0]}, "y"), ({"x": [1.0], "y": [None], "z": [1]}, "z")])
def test_columns_are_the_models_fields(columns, field):
    assert refusal(Schema({"x": NUMBER, "y": TEXT}).read_columns, columns)[:3] == (422, None, field)


def test_the_client_is_told_in_json():
    with pytest.raises(InvalidRecords) as caught:
        SCHEMA.read([{**GOOD, "number": "five"}])
    message = "field 'number': expected a number or null, found text"
    assert caught.value.body() == {"error": {"message": message, "row": 0, "field": "number"}}


def test_an_image_comes_back_as_its_bytes():
    data = bytes(range(256))
    assert one(IMAGE).read([{"x": base64.b64encode(data).decode()}])["x"] == [data]
