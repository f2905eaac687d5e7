"""Records to probabilities: the golden replay, what is refused and how, and that a row's company does not count."""

import base64
import dataclasses
import io
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from rayloom import bundle, config, evaluation, features, models
from rayloom.bundle import BundleConfig, Golden
from rayloom.errors import BundleError, InvalidRecords
from rayloom.features import CategoryState, DateState, FeatureState, HashState, ImageState, TextState
from rayloom.serving.engine import PACK_TOKENS
from rayloom.serving.predictor import HEAVY_ROWS, ROWS, Predictor
from rayloom.serving.schema import Schema

GOOD = {"day": "2013-11-04", "carrier": "AA", "distance": 500, "wind": 7.5}


def parse(records, columns) -> pa.Table:
    """Records as the table that a model is given."""
    schema = Schema(columns)
    return schema.table(schema.read(records))


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
    golden[row] = golden[row].model_copy(update={"answer": golden[row].answer + 1e-3})
    with pytest.raises(BundleError, match=rf"Golden row {row} of .*other is answered 0\.\d+, training answered 0\.\d+"):
        Predictor(write_toy_bundle(golden, "other")).replay(1e-6)


def test_a_difference_within_the_tolerance_is_told(write_toy_bundle, toy_bundle):
    golden = list(toy_bundle.golden)
    golden[2] = golden[2].model_copy(update={"answer": golden[2].answer + 1e-3})
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


class Brightness(nn.Module):
    """A user's own network: the mean of an image."""

    def forward(self, batch):
        return batch["image"].mean((1, 2, 3))


def brightness(model: config.Model, state: FeatureState) -> nn.Module:
    return Brightness()


@pytest.fixture
def predictor_of(tmp_path):
    """Makes a predictor with fresh weights for a feature state."""

    def make(state: FeatureState, family: str = "tabular", metrics: dict = {"validation_threshold": 0.5}) -> Predictor:
        torch.manual_seed(3)
        model = config.Tabular(hidden=[4]) if family == "tabular" else config.Own(family=family)
        save_file(models.build(model, state).state_dict(), tmp_path / "fresh.safetensors")
        spec = config.Features.model_validate({"label": state.label, "columns": {"x": {"kind": "number"}}})
        about = BundleConfig(name="toy", seed=17, dataset="0123456789ab", model=model, features=spec)
        folder = tmp_path / f"made-{len(list(tmp_path.iterdir()))}"
        return Predictor(bundle.write(folder, about, state, tmp_path / "fresh.safetensors", metrics, []))

    return make


def test_an_answer_is_probability_and_label(predictor, toy_records):
    probabilities = predictor.predict_records(toy_records).tolist()
    expected = [{"probability": value, "label": int(value >= 0.5)} for value in probabilities]
    assert predictor.answer(toy_records) == expected and type(predictor.answer(toy_records)[0]["label"]) is int


SHADES = FeatureState(label="y", columns={"shade": CategoryState(values=["blue", "red"])}, classes=["milk", "tea", "wine"])
RECORDS = [{"shade": shade} for shade in ("blue", "red", None)]


def test_an_answer_of_three_classes_is_the_most_probable_label_with_all_probabilities(predictor_of):
    predictor = predictor_of(SHADES)
    expected = predictor.predict_records(RECORDS)
    assert (expected.dtype, expected.shape) == (np.float32, (3, 3)) and expected.sum(1) == pytest.approx(1, abs=1e-6)
    assert predictor.answer(RECORDS) == [
        {
            "label": SHADES.classes[row.argmax()],
            "probability": row.max(),
            "probabilities": dict(zip(SHADES.classes, row.tolist(), strict=True)),
        }
        for row in expected
    ]


def test_classes_of_whole_numbers_are_labels_as_numbers_and_keys_as_text(predictor_of):
    answer = predictor_of(SHADES.model_copy(update={"classes": [3, 5, 7]})).answer(RECORDS[:1])[0]
    assert answer["label"] in (3, 5, 7) and list(answer["probabilities"]) == ["3", "5", "7"]


def test_golden_answers_of_three_classes_are_replayed(predictor_of):
    predictor = predictor_of(SHADES)
    answers = predictor.predict_records(RECORDS).tolist()
    golden = [Golden(record=record, answer=answer) for record, answer in zip(RECORDS, answers, strict=True)]
    assert with_golden(predictor, golden).replay(1e-6) == 0
    golden[1] = Golden(record=RECORDS[1], answer=[0.5, 0.2, 0.3])
    with pytest.raises(BundleError, match=r"Golden row 1 of .* is answered"):
        with_golden(predictor, golden).replay(1e-6)


def test_golden_answers_of_other_classes_are_refused(predictor_of):
    with pytest.raises(BundleError, match=r"golden rows of .* are not of the model's classes"):
        with_golden(predictor_of(SHADES), [Golden(record=RECORDS[0], answer=[0.5, 0.5])]).replay(1e-6)


def with_golden(predictor: Predictor, golden: list[Golden]) -> Predictor:
    return Predictor(dataclasses.replace(predictor.bundle, golden=golden))


@pytest.mark.parametrize("classes", [[0, 1], ["milk", "tea", "wine"]])
def test_the_bundles_temperature_is_what_logits_are_divided_by(predictor_of, classes):
    state = SHADES.model_copy(update={"classes": classes})
    warm, plain = (predictor_of(state, metrics={"validation_temperature": value}) for value in (2.5, 1.0))
    logits = np.log(plain.predict_records(RECORDS).astype(float))
    if len(classes) == 2:
        logits -= np.log1p(-plain.predict_records(RECORDS).astype(float))
    expected = evaluation.probabilities(logits, 2.5)
    assert warm.predict_records(RECORDS) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("classes", [[0, 1], ["milk", "tea", "wine"]])
def test_answers_of_validation_are_the_predictors_bit_for_bit(predictor_of, classes):
    state = SHADES.model_copy(update={"classes": classes})
    rows = parse(RECORDS, state.columns)
    plain = predictor_of(state)
    arrays = {name: torch.from_numpy(array) for name, array in features.apply(state, rows).items()}
    with torch.inference_mode():
        logits = plain.model(arrays).numpy()
    metrics, answers = evaluation.judge(np.array([0, 1, 1]), logits, config.Evaluate())
    bundled = {f"validation_{name}": value for name, value in metrics.items()}
    assert predictor_of(state, metrics=json.loads(json.dumps(bundled))).predict(rows).tolist() == answers.tolist()


@pytest.mark.parametrize("most", [1, 3, 8])
def test_rows_scored_in_parts_get_the_same_answers(predictor, toy_rows, most):
    whole = predictor.predict(toy_rows)
    predictor.most = most
    assert predictor.predict(toy_rows) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_model_lies_on_the_device_that_it_is_given(toy_bundle, device):
    """benchmarks.serve_gpu compares a GPU's answers with a CPU's."""
    assert {weights.device.type for weights in Predictor(toy_bundle, device).model.parameters()} == {device}


@pytest.mark.parametrize(("given", "expected"), [(100, 100), (50_000, PACK_TOKENS)])
def test_a_cpu_takes_few_tokens_at_once(toy_bundle, given, expected):
    assert Predictor(toy_bundle, tokens=given).tokens == expected


def test_what_a_row_costs_is_told_of_texts_and_images(predictor, image_predictor):
    assert predictor.weigh({"day": [None], "carrier": [None], "distance": [1.0], "wind": [1.0]}) is None
    assert image_predictor.weigh({"face": [b"", None]}) == [1, 1]
    predictor.bundle.state.columns["text"] = TextState(tokenizer="{}", max_tokens=16, vocabulary=4)
    assert predictor.weigh({"text": ["", None, "red " * 4, "red " * 100]}) == [2, 2, 6, 16]


def test_texts_and_images_are_scored_few_at_once(image_predictor, predictor):
    assert (image_predictor.most, predictor.most) == (HEAVY_ROWS, ROWS)


def test_unseen_categories_are_named_in_the_answers_that_have_them(predictor):
    records = [GOOD, {**GOOD, "carrier": "✈"}, {**GOOD, "carrier": None}, {**GOOD, "carrier": "ZZ"}]  # ZZ is rare in training
    assert [answer.get("unseen") for answer in predictor.answer(records)] == [None, ["carrier"], None, ["carrier"]]


def test_an_unseen_category_is_answered_as_a_missing_one(predictor):
    unseen, missing = predictor.predict_records([{**GOOD, "carrier": "✈"}, {**GOOD, "carrier": None}]).tolist()
    assert unseen == missing


def test_a_label_of_text_is_answered_by_its_name(predictor_of):
    columns = {"shade": CategoryState(values=["blue", "red"])}
    predictor = predictor_of(FeatureState(label="y", columns=columns, classes=["no", "yes"]))
    answers = predictor.answer([{"shade": shade} for shade in ("blue", "red", None)])
    assert [answer["label"] for answer in answers] == ["yes" if answer["probability"] >= 0.5 else "no" for answer in answers]


def test_columns_that_told_nothing_in_training_tell_nothing_when_served(predictor_of):
    """Column A all 5.0 and column B all null in training; A = 7 and B = 0 when served."""
    kinds = {"A": {"kind": "number"}, "B": {"kind": "number"}, "C": {"kind": "number"}}
    spec = config.Features.model_validate({"label": "y", "columns": kinds})
    rows = pa.table({"A": [5.0] * 4, "B": pa.array([None] * 4, pa.float64()), "C": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]})
    state, warnings = features.fit(spec, features.summarize(spec, rows))
    predictor = predictor_of(state)
    trained, served = predictor.predict_records([{"A": 5, "B": None, "C": 2}, {"A": 7, "B": 0, "C": 2}]).tolist()
    assert np.isfinite(served) and served == trained
    assert [warning.split(" in ")[0] for warning in warnings] == ["feature A is constant", "feature B has no value"]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        (CategoryState(values=["1", "3"], type="integer"), [3, 1, None], [[2], [1], [0]]),
        (CategoryState(values=["false", "true"], type="boolean"), [True, False, None], [[2], [1], [0]]),
        (DateState(parts=["day"]), ["2024-07-01T00:30:00+02:00", "2024-07-01T23:00:00", None], [[30], [1], [0]]),
    ],
)
def test_a_category_is_found_in_the_type_that_it_had_in_training(column, values, expected):
    state = FeatureState(label="y", columns={"x": column})
    assert features.apply(state, parse([{"x": value} for value in values], state.columns))["categories"].tolist() == expected


@pytest.mark.parametrize("kind", [CategoryState(values=["1"], type="integer"), HashState(buckets=4, type="integer")])
@pytest.mark.parametrize(
    ("value", "said"),
    [("1", "found text"), (True, "found a boolean"), (1.5, "found a number"), (2**63, "expected a whole number of 64 bits")],
)
def test_a_whole_number_is_expected_where_training_had_one(kind, value, said):
    with pytest.raises(InvalidRecords, match=f"field 'x': expected a whole number.*{said}|{said}"):
        parse([{"x": value}], {"x": kind})


@pytest.mark.parametrize("value", ["true", 1, 0.0])
def test_a_boolean_is_expected_where_training_had_one(value):
    with pytest.raises(InvalidRecords, match="field 'x': expected true, false or null, found"):
        parse([{"x": value}], {"x": CategoryState(values=["true"], type="boolean")})


def test_text_is_text():
    column = TextState(tokenizer="{}", max_tokens=4, vocabulary=4)
    assert parse([{"x": "red"}, {"x": None}], {"x": column})["x"].to_pylist() == ["red", None]
    with pytest.raises(InvalidRecords, match="field 'x': expected text or null, found a number"):
        parse([{"x": 5}], {"x": column})


GREY = ImageState(height=2, width=3, channels=1, resize=False, mean=[0.5], deviation=[0.25])


def png(height: int, value: int) -> str:
    """A grey image file as a client sends it."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((height, 3), value, np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.fixture
def image_predictor(predictor_of) -> Predictor:
    return predictor_of(FeatureState(label="y", columns={"face": GREY}), f"{__name__}:brightness")


def test_an_image_is_answered_by_its_pixels(image_predictor):
    found = image_predictor.predict_records([{"face": png(2, 255)}, {"face": None}])
    assert found == pytest.approx([1 / (1 + np.exp(-2)), 0.5], abs=1e-6)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no base64!", "field 'face': expected an image file in base64 or null"),
        (5, "field 'face': expected an image file in base64 or null"),
        ("é", "field 'face': expected an image file in base64 or null"),
        (base64.b64encode(b"no image").decode(), "The image in field 'face' cannot be used (not one of PNG"),
        (png(2, 9)[:60], "The image in field 'face' cannot be used ("),
        (png(5, 9), "The image in field 'face' is of size 5x3, those of the training split are 2x3"),
    ],
)
def test_an_image_that_cannot_be_used_is_refused_by_row_and_field(image_predictor, value, said):
    with pytest.raises(InvalidRecords) as caught:
        image_predictor.answer([{"face": png(2, 9)}, {"face": value}])
    assert (caught.value.status, caught.value.row, caught.value.field) == (422, 1, "face")
    assert caught.value.message.startswith(said)
