"""Records to probabilities: the golden replay, what is refused and how, and that a row's company does not count."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rayloom.errors import BundleError, InvalidRecords
from rayloom.serving.predictor import Predictor, parse

GOOD = {"day": "2013-11-04", "carrier": "AA", "distance": 500, "wind": 7.5}


@pytest.fixture
def predictor(toy_bundle) -> Predictor:
    return Predictor(toy_bundle)


@pytest.fixture
def refusal(toy_state):
    """(status, row, field, message) with which a body is refused."""

    def refuse(body) -> tuple:
        with pytest.raises(InvalidRecords) as caught:
            parse(body, toy_state.columns)
        error = caught.value
        return error.status, error.row, error.field, error.message

    return refuse


def test_the_golden_rows_are_answered_as_in_training(predictor):
    assert predictor.replay(1e-6) <= 1e-6


@pytest.mark.parametrize("row", [0, 3, 7])
def test_a_golden_answer_that_differs_is_refused_by_row(write_toy_bundle, toy_bundle, row):
    golden = list(toy_bundle.golden)
    golden[row] = golden[row].model_copy(update={"probability": golden[row].probability + 1e-3})
    with pytest.raises(BundleError, match=rf"Golden row {row} of .*other is answered 0\.\d+, training answered 0\.\d+"):
        Predictor(write_toy_bundle(golden, "other")).replay(1e-6)


def test_a_difference_within_the_tolerance_is_told(write_toy_bundle, toy_bundle):
    golden = list(toy_bundle.golden)
    golden[2] = golden[2].model_copy(update={"probability": golden[2].probability + 1e-3})
    assert Predictor(write_toy_bundle(golden, "other")).replay(1e-2) == pytest.approx(1e-3, abs=1e-6)


def test_a_bundle_without_golden_rows_is_refused(write_toy_bundle):
    with pytest.raises(BundleError):
        Predictor(write_toy_bundle([], "other")).replay(1e-6)


def test_weights_that_do_not_fit_the_config_are_refused(write_toy_bundle, toy_weights):
    save_file({"layers.0.weight": torch.zeros(2, 2)}, toy_weights)
    with pytest.raises(BundleError, match=r"model.safetensors does not fit the model in config.json"):
        Predictor(write_toy_bundle([], "other"))


def test_the_threshold_is_the_bundles(predictor):
    assert predictor.threshold == 0.5


def test_answers_are_probabilities_one_a_record(predictor, toy_records):
    answers = predictor.predict_records(toy_records)
    assert (answers.dtype, answers.shape) == (np.float32, (8,)) and ((answers > 0) & (answers < 1)).all()


def test_records_are_answered_as_the_rows_that_they_were(predictor, toy_records, toy_rows):
    assert predictor.predict_records(toy_records) == pytest.approx(predictor.predict(toy_rows.slice(0, 8)), abs=1e-6)


def test_different_records_get_different_answers(predictor, toy_records):
    assert len(set(predictor.predict_records(toy_records).tolist())) == 8


def test_the_order_of_keys_does_not_count(predictor, toy_records):
    turned = [dict(reversed(record.items())) for record in toy_records]
    assert predictor.predict_records(turned).tolist() == predictor.predict_records(toy_records).tolist()


def test_the_company_of_a_record_does_not_count(predictor, toy_records):
    alone = [predictor.predict_records([record])[0] for record in toy_records]
    assert predictor.predict_records(toy_records) == pytest.approx(np.array(alone), abs=1e-6)


def test_a_record_among_a_thousand_gets_its_own_answer(predictor, toy_records):
    many = predictor.predict_records(toy_records * 125)
    assert many[992:] == pytest.approx(predictor.predict_records(toy_records), abs=1e-6)


def test_repeated_answers_are_the_same(predictor, toy_records):
    assert predictor.predict_records(toy_records).tolist() == predictor.predict_records(toy_records).tolist()


def test_a_record_of_nulls_is_answered(predictor):
    assert np.isfinite(predictor.predict_records([dict.fromkeys(GOOD)])).all()


def test_absurd_but_finite_numbers_are_answered(predictor):
    assert np.isfinite(predictor.predict_records([{**GOOD, "distance": 1e308, "wind": -1e308}])).all()


def test_a_category_that_training_never_saw_is_answered(predictor):
    assert np.isfinite(predictor.predict_records([{**GOOD, "carrier": "✈ " * 1000}])).all()


def test_whole_and_real_numbers_are_the_same(predictor):
    whole, real = (predictor.predict_records([{**GOOD, "distance": value}]).tolist() for value in (500, 500.0))
    assert whole == real


@pytest.mark.parametrize("body", [None, {}, {"records": [GOOD]}, "text", 3, [], GOOD])
def test_a_body_that_is_no_list_with_records_is_400(refusal, body):
    assert refusal(body) == (400, None, None, "expected a JSON list with at least one record")


@pytest.mark.parametrize(
    ("element", "kind"), [(None, "null"), ([], "a list"), ("text", "text"), (3, "a number"), (True, "a boolean")]
)
def test_an_element_that_is_no_object_is_refused_by_row(refusal, element, kind):
    assert refusal([GOOD, element]) == (422, 1, None, f"expected an object, found {kind}")


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_field_is_refused_by_row_and_name(refusal, name):
    record = {key: value for key, value in GOOD.items() if key != name}
    assert refusal([GOOD, GOOD, record]) == (422, 2, name, f"field '{name}' is missing; send null where it is not known")


def test_an_unknown_field_is_refused_with_the_nearest(refusal):
    status, row, field, message = refusal([{**GOOD, "distanse": 3}])
    assert (status, row, field) == (422, 0, "distanse") and "did you mean 'distance'?" in message


def test_the_label_is_an_unknown_field(refusal):
    assert refusal([{**GOOD, "late": 1}])[:3] == (422, 0, "late")


def test_a_long_unknown_field_is_shortened(refusal):
    _, _, field, message = refusal([{**GOOD, "x" * 10_000: 3}])
    assert len(field) == 80 and len(message) < 300


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("distance", True, "field 'distance': expected a number or null, found a boolean"),
        ("distance", "500", "field 'distance': expected a number or null, found text"),
        ("distance", [500], "field 'distance': expected a number or null, found a list"),
        ("distance", {}, "field 'distance': expected a number or null, found an object"),
        ("wind", float("nan"), "field 'wind': expected a finite number"),
        ("wind", float("inf"), "field 'wind': expected a finite number"),
        ("wind", float("-inf"), "field 'wind': expected a finite number"),
        pytest.param("wind", 10**400, "field 'wind': expected a finite number", id="wind-a huge whole number"),
        pytest.param("wind", -(10**400), "field 'wind': expected a finite number", id="wind-a huge negative number"),
        ("carrier", 5, "field 'carrier': expected text or null, found a number"),
        ("carrier", False, "field 'carrier': expected text or null, found a boolean"),
        ("carrier", ["AA"], "field 'carrier': expected text or null, found a list"),
        ("day", "2013-13-01", "field 'day': expected a date such as '2013-11-05' or null"),
        ("day", "2013-02-29", "field 'day': expected a date such as '2013-11-05' or null"),
        ("day", "yesterday", "field 'day': expected a date such as '2013-11-05' or null"),
        ("day", "", "field 'day': expected a date such as '2013-11-05' or null"),
        ("day", 20131105, "field 'day': expected a date such as '2013-11-05' or null"),
        ("day", ["2013-11-05"], "field 'day': expected a date such as '2013-11-05' or null"),
        ("day", True, "field 'day': expected a date such as '2013-11-05' or null"),
    ],
)
def test_a_value_that_is_not_acceptable_is_refused_by_row_and_field(refusal, name, value, message):
    assert refusal([GOOD, {**GOOD, name: value}]) == (422, 1, name, message)


def test_a_number_as_large_as_a_float_holds_is_accepted(toy_state):
    assert parse([{**GOOD, "wind": 10**308}], toy_state.columns)["wind"].to_pylist() == [1e308]


def test_the_error_is_the_json_that_a_client_gets(toy_state):
    with pytest.raises(InvalidRecords) as caught:
        parse([{**GOOD, "wind": "calm"}], toy_state.columns)
    message = "field 'wind': expected a number or null, found text"
    assert caught.value.body() == {"error": {"message": message, "row": 0, "field": "wind"}}
