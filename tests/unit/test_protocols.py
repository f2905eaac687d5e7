"""Each protocol: the same rows whatever the form, replies that its clients read, and all that is malformed refused."""

import datetime
import json
import math
import random
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pytest
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

from rayloom.errors import InvalidRecords, ServingError
from rayloom.features import CategoryState, DateState, ImageState, NumberState
from rayloom.serving.protocols import PROTOCOLS, Call, Limits, Model, inference, invocations, records
from rayloom.serving.protocols.arrow import STREAM
from rayloom.serving.schema import Schema
from tests.malformed import Fields, Malformed, corpus, inputs, stream, tensor

NUMBER = NumberState(center=0.0, spread=1.0, impute=0.0, flag=True)
SCHEMA = Schema(
    {
        "day": DateState(parts=["day"]),
        "carrier": CategoryState(values=["AA", "UA"]),
        "gate": CategoryState(values=["1", "3"], type="integer"),
        "holiday": CategoryState(values=["false", "true"], type="boolean"),
        "distance": NUMBER,
        "wind": NUMBER,
    }
)
GOOD = {"day": "2013-11-04", "carrier": "AA", "gate": 3, "holiday": True, "distance": 500, "wind": 7.5}
ROWS = [GOOD, {**GOOD, "carrier": "é ✈", "wind": None, "holiday": False}, {**GOOD, "carrier": None, "gate": 1, "wind": -1.5}]
LIMITS = Limits(200)
FIELDS = Fields(GOOD, "distance", "carrier", "day", LIMITS.max_rows)
CASES = corpus(FIELDS)
JSON, CSV, ARROW = ({b"content-type": kind.encode()} for kind in ("application/json", "text/csv", STREAM))

TWO = Model("flights", 3, [0, 1])
THREE = Model("drinks", 1, ["milk", "tea", "wine"])
PAIR = [{"probability": 0.25, "label": 0}, {"probability": 0.75, "label": 1, "unseen": ["carrier", "gate"]}]
DRINK = [{"label": "tea", "probability": 0.5, "probabilities": {"milk": 0.25, "tea": 0.5, "wine": 0.25}}]


def refusal(protocol, body: bytes, headers: dict = JSON, schema: Schema = SCHEMA) -> InvalidRecords:
    with pytest.raises(InvalidRecords) as caught:
        protocol.decode(body, headers, schema, LIMITS)
    return caught.value


def infer(rows: list[dict], **more) -> bytes:
    """Rows as tensors in JSON."""
    types = {name: inference.DATATYPES[kind] for name, kind in SCHEMA.kinds.items()}
    inputs = [
        {"name": name, "shape": [len(rows)], "datatype": datatype, "data": [row[name] for row in rows]}
        for name, datatype in types.items()
    ]
    return orjson.dumps({"inputs": inputs, **more})


def reply(model: Model, answers: list[dict], **more):
    """What the Open Inference Protocol replies to a request that says `more`."""
    call = inference.decode(infer(ROWS[: len(answers)], **more), JSON, SCHEMA, LIMITS)
    return inference.encode(answers, model, call)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_malformed_body_gets_the_right_status_and_a_sentence(case: Malformed):
    headers = {b"content-type": case.content_type.encode("latin-1")}
    headers |= {name.encode(): text.encode() for name, text in case.headers.items()}
    error = refusal(PROTOCOLS[case.path], case.body, headers)
    assert error.status == case.status and 0 < len(str(error)) < 600
    orjson.dumps(PROTOCOLS[case.path].refuse(error))  # a client can be told


def test_the_tensors_that_the_corpus_changes_are_taken_unchanged():
    assert inference.decode(orjson.dumps({"inputs": inputs(FIELDS)}), JSON, SCHEMA, LIMITS).columns == SCHEMA.read([GOOD])


def test_the_corpus_is_of_200_cases_with_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES) >= 200


def split(rows: list[dict]) -> dict:
    return {"columns": list(GOOD), "data": [list(row.values()) for row in rows]}


def sheet(rows: list[dict]) -> bytes:
    return pd.DataFrame(rows, dtype=object).to_csv(index=False).encode()


def lists(rows: list[dict]) -> dict:
    return {name: [row[name] for row in rows] for name in reversed(GOOD)}


FORMS: dict[str, tuple] = {
    "records": (records, orjson.dumps(ROWS), JSON),
    "no type": (records, orjson.dumps(ROWS), {}),
    "charset": (records, orjson.dumps(ROWS), {b"content-type": b"Application/JSON; charset=UTF-8"}),
    "curl's type": (records, orjson.dumps(ROWS), {b"content-type": b"application/x-www-form-urlencoded"}),
    "Arrow": (records, stream(SCHEMA.table(SCHEMA.read(ROWS))), ARROW),
    "Arrow as Python's types": (records, stream(pa.Table.from_pylist(ROWS)), ARROW),
    "Arrow in batches": (records, stream(pa.Table.from_pylist(ROWS), 1), ARROW),
    "dataframe_split": (invocations, orjson.dumps({"dataframe_split": split(ROWS)}), JSON),
    "dataframe_split with an index": (
        invocations,
        orjson.dumps({"dataframe_split": {**split(ROWS), "index": [5, 6, 7]}}),
        JSON,
    ),
    "dataframe_records": (invocations, orjson.dumps({"dataframe_records": ROWS}), JSON),
    "instances": (invocations, orjson.dumps({"instances": ROWS, "params": {"k": 1}}), JSON),
    "inputs": (invocations, orjson.dumps({"inputs": lists(ROWS), "params": None}), JSON),
    "inputs as records": (invocations, orjson.dumps({"inputs": ROWS}), JSON),
    "inputs nested": (
        invocations,
        orjson.dumps({"inputs": {name: [[value] for value in values] for name, values in lists(ROWS).items()}}),
        JSON,
    ),
    "CSV": (invocations, sheet(ROWS), CSV),
    "CSV with a mark and an index": (invocations, pd.DataFrame(ROWS, dtype=object).to_csv().encode("utf-8-sig"), CSV),
    "CSV of Windows": (invocations, sheet(ROWS).replace(b"\n", b"\r\n"), CSV),
    "tensors": (inference, infer(ROWS), JSON),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_come_out_of_every_form(form):
    protocol, body, headers = FORMS[form]
    call = protocol.decode(body, headers, SCHEMA, LIMITS)
    assert (call.rows, call.columns) == (3, SCHEMA.read(ROWS)) and list(call.columns) == list(GOOD)


def test_one_record_may_be_sent_as_inputs():
    assert invocations.decode(orjson.dumps({"inputs": GOOD}), JSON, SCHEMA, LIMITS).columns == SCHEMA.read([GOOD])


@pytest.mark.parametrize("rows", [LIMITS.max_rows, LIMITS.max_rows + 1])
def test_the_limit_is_named(rows):
    body = orjson.dumps([GOOD] * rows)
    if rows == LIMITS.max_rows:
        assert records.decode(body, JSON, SCHEMA, LIMITS).rows == rows
    else:
        assert str(refusal(records, body)) == "201 records, the limit is 200; send them in parts"


def test_an_unknown_media_type_is_told_the_known_ones():
    said = str(refusal(records, b"[]", {b"content-type": b"text/plain; charset=utf-8"}))
    assert said.startswith("the body's type 'text/plain; charset=utf-8' is not one of application/json, application/vnd.")


# MLflow


@pytest.mark.parametrize(
    ("name", "sent", "taken"),
    [("wind", "NaN", None), ("carrier", "NaN", None), ("gate", "NaN", None), ("gate", "3.0", 3), ("gate", "-4.0", -4)],
)
def test_what_pandas_writes_for_missing_and_whole_numbers_is_taken(name, sent, taken):
    body = json.dumps({"dataframe_split": split([{**GOOD, name: "@"}])}).replace('"@"', sent).encode()
    assert invocations.decode(body, JSON, SCHEMA, LIMITS).columns[name] == [taken]


@pytest.mark.parametrize("sent", ["3.4", "9007199254740994.0", "true", '"3"', "Infinity"])
def test_what_would_lose_something_is_refused_of_pandas_too(sent):
    body = json.dumps({"dataframe_split": split([{**GOOD, "gate": "@"}])}).replace('"@"', sent).encode()
    error = refusal(invocations, body)
    assert (error.status, error.row, error.field) == (422, 0, "gate")


def test_a_lone_surrogate_does_not_slip_in_beside_nan():
    body = json.dumps({"dataframe_records": [{**GOOD, "wind": math.nan, "carrier": "\ud800"}]}).encode()
    assert refusal(invocations, body).status == 400


def test_nan_is_no_number_where_clients_write_json():
    assert refusal(records, json.dumps([{**GOOD, "wind": math.nan}]).encode()).status == 400


@pytest.mark.parametrize(
    ("cell", "taken"), [("5", 5), ("5.5", 5.5), ("-5", -5), ("1e3", 1000), ("", None), ("nan", None), (" 5", 5)]
)
def test_a_cell_is_read_as_a_number(cell, taken):
    body = f"{','.join(GOOD)}\n,,,,{cell},\n".encode()
    assert invocations.decode(body, CSV, SCHEMA, LIMITS).columns["distance"] == [taken]


def test_mlflows_error_has_a_code():
    error = InvalidRecords(422, "field 'x': no", 3, "x")
    said = {"message": "field 'x': no", "row": 3, "field": "x"}
    assert invocations.refuse(error) == {"error_code": "INVALID_PARAMETER_VALUE", "message": "field 'x': no", "error": said}


class Answering(BaseHTTPRequestHandler):
    """/invocations with answers that tell how far the flight is."""

    def do_GET(self):
        self.send(200, b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower().encode(): text.encode() for name, text in self.headers.items()}
        try:
            call = invocations.decode(body, headers, SCHEMA, LIMITS)
        except InvalidRecords as error:
            return self.send(error.status, orjson.dumps(invocations.refuse(error)))
        answers = [{"probability": distance / 1000, "label": int(distance > 500)} for distance in call.columns["distance"]]
        self.send(200, invocations.encode(answers, TWO, call).body)

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def mlflow_client():
    """MLflow's own client, and a server for it."""
    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield ScoringServerClient("127.0.0.1", server.server_port)
    server.shutdown()
    thread.join()
    server.server_close()


FRAME = pd.DataFrame([{**row, "distance": 250.0 * (place + 1)} for place, row in enumerate(ROWS)])


def test_mlflows_client_gets_its_answers(mlflow_client):
    mlflow_client.ping()
    found = mlflow_client.invoke(FRAME).get_predictions()
    assert found.to_dict("list") == {"probability": [0.25, 0.5, 0.75], "label": [0, 0, 1]}


def test_mlflows_client_may_send_whole_numbers_with_missing_ones_and_timestamps(mlflow_client):
    frame = FRAME.assign(gate=[1, None, 3], day=pd.to_datetime(FRAME["day"]))
    assert frame["gate"].dtype == float  # that is what makes it worth a test
    assert mlflow_client.invoke(frame, params={"verbose": True})["model"] == {"name": "flights", "version": 3}


def test_mlflows_client_is_told_what_is_wrong(mlflow_client):
    with pytest.raises(Exception, match=r"error code 422, response: .*field 'wind' is missing"):
        mlflow_client.invoke(FRAME.drop(columns="wind"))


# Replies


def test_records_are_answered_with_the_model():
    made = records.encode(PAIR, TWO, records.decode(orjson.dumps(ROWS[:2]), JSON, SCHEMA, LIMITS))
    assert orjson.loads(made.body) == {"model": {"name": "flights", "version": 3}, "predictions": PAIR}
    assert made.headers == [(b"content-type", b"application/json")]


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.parametrize("probability", [math.nan, math.inf])
def test_an_answer_that_is_no_number_is_never_sent(protocol, probability):
    with pytest.raises(ServingError, match="a probability that is not a number"):
        protocol.encode([PAIR[0], {"probability": probability, "label": 0}], TWO, Call({}, 2))


@pytest.mark.parametrize(("model", "answers"), [(TWO, PAIR), (THREE, DRINK)])
def test_an_arrow_stream_is_answered_where_it_is_asked_for(model, answers):
    headers = {**JSON, b"accept": b"application/vnd.apache.arrow.stream, */*;q=0.1"}
    made = records.encode(answers, model, records.decode(orjson.dumps(ROWS[: len(answers)]), headers, SCHEMA, LIMITS))
    table = pa.ipc.open_stream(made.body).read_all()
    assert made.headers == [(b"content-type", STREAM.encode())]
    assert table["probability"].to_pylist() == [answer["probability"] for answer in answers]
    assert table["label"].to_pylist() == [answer["label"] for answer in answers]
    assert table["unseen"].to_pylist() == [answer.get("unseen") for answer in answers]
    assert table.schema.metadata[b"classes"].decode().split("\n") == [str(name) for name in model.classes]


def test_an_arrow_stream_of_three_classes_has_their_probabilities():
    made = records.encode(DRINK, THREE, Call({}, 1, True))
    assert pa.ipc.open_stream(made.body).read_all()["probabilities"].to_pylist() == [[0.25, 0.5, 0.25]]


# Arrow


@pytest.mark.parametrize(
    ("name", "array", "taken"),
    [
        ("distance", pa.array([5, None], pa.int8()), [5.0, None]),
        ("distance", pa.array([1.5, None], pa.float16()), [1.5, None]),
        ("distance", pa.nulls(2), [None, None]),
        ("gate", pa.array([2**63 - 1, None], pa.uint64()), [2**63 - 1, None]),
        ("holiday", pa.array([False, None]), [False, None]),
        ("carrier", pa.array(["AA", None], pa.large_string()), ["AA", None]),
        ("carrier", pa.array(["AA", None]).dictionary_encode(), ["AA", None]),
        ("day", pa.array(["2013-11-05", None]), [datetime.date(2013, 11, 5), None]),
        ("day", pa.array([datetime.date(2013, 11, 5), None], pa.date64()), [datetime.date(2013, 11, 5), None]),
        ("day", pa.array([-1, None], pa.timestamp("s", "Asia/Tokyo")), [datetime.date(1969, 12, 31), None]),
    ],
)
def test_a_column_is_taken_in_the_types_that_hold_the_same(name, array, taken):
    table = pa.Table.from_pylist([GOOD, GOOD])
    table = table.set_column(table.column_names.index(name), name, array)
    assert records.decode(stream(table), ARROW, SCHEMA, LIMITS).columns[name] == taken


def test_a_stream_with_bytes_changed_is_refused_or_read_and_nothing_else():
    chance = random.Random(17)
    table = pa.Table.from_pylist(ROWS)
    whole = [stream(table), stream(table.set_column(1, "carrier", table["carrier"].dictionary_encode()))]
    statuses = set()
    for _ in range(3000):
        body = bytearray(chance.choice(whole))
        for _ in range(chance.choice([1, 2, 8])):
            body[chance.randrange(len(body))] = chance.choice([0, 1, 127, 128, 255])
        try:
            records.decode(bytes(body), ARROW, SCHEMA, LIMITS)
        except InvalidRecords as error:
            statuses.add(error.status)
    assert {400, 422} <= statuses <= {400, 413, 422}


# The Open Inference Protocol


def test_tensors_are_answered_with_all_outputs_and_the_id():
    made = reply(TWO, PAIR, id="seven")
    assert made.headers == [(b"content-type", b"application/json")]
    assert orjson.loads(made.body) == {
        "model_name": "flights",
        "model_version": "3",
        "id": "seven",
        "outputs": [
            {"name": "probability", "datatype": "FP32", "shape": [2], "data": [0.25, 0.75]},
            {"name": "label", "datatype": "INT64", "shape": [2], "data": [0, 1]},
            {"name": "unseen", "datatype": "BYTES", "shape": [2], "data": ["", "carrier,gate"]},
        ],
    }


def test_three_classes_are_a_matrix_and_a_text():
    first, second, _ = orjson.loads(reply(THREE, DRINK).body)["outputs"]
    assert first == {"name": "probability", "datatype": "FP32", "shape": [1, 3], "data": [0.25, 0.5, 0.25]}
    assert second == {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["tea"]}


def test_only_the_outputs_that_are_asked_for_are_sent():
    made = reply(TWO, PAIR, outputs=[{"name": "label"}])
    assert [output["name"] for output in orjson.loads(made.body)["outputs"]] == ["label"]


@pytest.mark.parametrize(
    ("asked", "binary"),
    [
        ({"parameters": {"binary_data_output": True}}, ["probability", "label", "unseen"]),
        ({"outputs": [{"name": "label", "parameters": {"binary_data": True}}, {"name": "probability"}]}, ["label"]),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "unseen"}, {"name": "label", "parameters": {"binary_data": False}}],
            },
            ["unseen"],
        ),
    ],
)
def test_outputs_are_binary_where_it_is_asked_for(asked, binary):
    made = reply(TWO, PAIR, **asked)
    headers = dict(made.headers)
    length = int(headers[b"inference-header-content-length"])
    tail = made.body[length:]
    data = {
        "probability": struct.pack("<2f", 0.25, 0.75),
        "label": struct.pack("<2q", 0, 1),
        "unseen": struct.pack("<II", 0, 12) + b"carrier,gate",
    }
    sizes = {one["name"]: one.get("parameters") for one in orjson.loads(made.body[:length])["outputs"]}
    assert {name for name, said in sizes.items() if said} == set(binary)
    assert all(sizes[name] == {"binary_data_size": len(data[name])} for name in binary)
    assert tail == b"".join(data[name] for name in binary) and headers[b"content-type"] == b"application/octet-stream"


BINARY: dict[str, tuple[str, Callable[[], bytes], list]] = {
    "FP64": ("distance", lambda: np.array([1.5, np.nan, -2]).astype("<f8").tobytes(), [1.5, None, -2.0]),
    "FP32": ("distance", lambda: np.array([1.5, np.nan, -2]).astype("<f4").tobytes(), [1.5, None, -2.0]),
    "FP16": ("wind", lambda: np.array([1.5, np.nan, -2]).astype("<f2").tobytes(), [1.5, None, -2.0]),
    "INT32": ("gate", lambda: np.array([1, -3, 2**31 - 1]).astype("<i4").tobytes(), [1, -3, 2**31 - 1]),
    "UINT16": ("distance", lambda: np.array([1, 3, 65535]).astype("<u2").tobytes(), [1.0, 3.0, 65535.0]),
    "BOOL": ("holiday", lambda: b"\x00\x01\x01", [False, True, True]),
    "BYTES": (
        "carrier",
        lambda: b"".join(struct.pack("<I", len(one)) + one for one in (b"AA", b"", "é".encode())),
        ["AA", "", "é"],
    ),
}


@pytest.mark.parametrize("datatype", BINARY)
@pytest.mark.parametrize("shape", [[3], [3, 1]])
def test_binary_data_is_read(datatype, shape):
    name, make, taken = BINARY[datatype]
    request = orjson.loads(infer(ROWS))
    size = {"binary_data_size": len(make())}
    binary = {"name": name, "datatype": datatype, "shape": shape, "parameters": size}
    inputs = [binary if one["name"] == name else one for one in request["inputs"]]
    head = orjson.dumps({"inputs": inputs})
    headers = {b"inference-header-content-length": str(len(head)).encode()}
    assert inference.decode(head + make(), headers, SCHEMA, LIMITS).columns[name] == taken


def test_a_boolean_of_two_is_refused_by_row():
    head = orjson.dumps(
        {"inputs": [{"name": "x", "datatype": "BOOL", "shape": [3], "parameters": {"binary_data_size": 3}}]},
    )
    headers = {b"inference-header-content-length": str(len(head)).encode()}
    error = refusal(inference, head + b"\x01\x02\x03", headers, Schema({"x": SCHEMA.columns["holiday"]}))
    assert (error.status, error.row, error.field) == (422, 1, "x")


def test_an_image_is_a_file_in_binary_and_base64_in_json():
    schema = Schema({"x": ImageState(height=2, width=3, channels=1, resize=False, mean=[0.5], deviation=[0.25])})
    plain = inference.decode(orjson.dumps({"inputs": [tensor("x", "/w8=")]}), JSON, schema, LIMITS)
    head = orjson.dumps({"inputs": [tensor("x", "", data=None, parameters={"binary_data_size": 6})]})
    headers = {b"inference-header-content-length": str(len(head)).encode()}
    raw = inference.decode(head + struct.pack("<I", 2) + b"\xff\x0f", headers, schema, LIMITS)
    assert plain.columns == raw.columns == {"x": [b"\xff\x0f"]}


def test_keys_that_the_protocol_does_not_know_are_ignored():
    assert inference.decode(infer(ROWS, model_name="flights", new=1), JSON, SCHEMA, LIMITS).rows == 3


def test_the_row_is_told_in_the_protocols_only_sentence():
    assert inference.refuse(InvalidRecords(422, "field 'x': no", 3, "x")) == {"error": "row 3: field 'x': no"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/models/flights/infer", ("flights", None, "infer")),
        ("/v2/models/flights/versions/3/infer", ("flights", "3", "infer")),
        ("/v2/models/flights", ("flights", None, "")),
        ("/v2/models/flights/", ("flights", None, "")),
        ("/v2/models/flights/versions/3", ("flights", "3", "")),
        ("/v2/models/flights/ready", ("flights", None, "ready")),
        ("/v2/models/a%20b/ready", ("a b", None, "ready")),
        ("/v2/models/", None),
        ("/v2/models//infer", None),
        ("/v2/models/flights/explain", None),
        ("/v2/models/flights/versions", None),
        ("/v2/models/flights/infer/more", None),
        ("/v2/health/live", None),
        ("/predict", None),
    ],
)
def test_a_path_names_model_version_and_verb(path, expected):
    assert inference.target(path) == expected


def test_the_metadata_names_every_tensor():
    said = inference.metadata(SCHEMA, THREE)
    assert {one["name"]: one["datatype"] for one in said["inputs"]} == {
        "day": "BYTES",
        "carrier": "BYTES",
        "gate": "INT64",
        "holiday": "BOOL",
        "distance": "FP64",
        "wind": "FP64",
    }
    assert said["outputs"][:2] == [
        {"name": "probability", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
    ]
    assert (said["name"], said["versions"]) == ("drinks", ["1"])


def test_the_server_says_what_it_can():
    assert inference.server("0.1.0")["extensions"] == ["binary_tensor_data"]
    assert (inference.live(), inference.ready(False)) == ({"live": True}, {"ready": False})
