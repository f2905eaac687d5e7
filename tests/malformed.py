"""Bodies that no server may take, each with the status that is right: 400 not the protocol's form, 413 too much, 415 not a
type that is known, 422 a row or a field is wrong.

`corpus` makes them from a record that the model does take, so that each is wrong in one way. The bodies are written by hand,
not drawn: what they hold is what clients get wrong and what has broken servers before.
"""

import json
import struct
from typing import Any, NamedTuple

import pyarrow as pa

PREDICT, INVOCATIONS, INFER = "/predict", "/invocations", "/v2/models/{m}/infer"
JSON, CSV, STREAM, BINARY = "application/json", "text/csv", "application/vnd.apache.arrow.stream", "application/octet-stream"


class Malformed(NamedTuple):
    """A request and the status that it must get. `{m}` in a path is the model's name."""

    name: str
    path: str
    body: bytes
    status: int
    content_type: str = JSON
    headers: dict[str, str] = {}


class Fields(NamedTuple):
    """A record that the model takes, without nulls, the names of a field of each sort, and the most rows of a request."""

    good: dict[str, Any]
    number: str
    text: str
    date: str
    max_rows: int

    def changed(self, **changes: Any) -> dict[str, Any]:
        return {**self.good, **changes}

    def without(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in self.good.items() if key != name}


def corpus(fields: Fields) -> list[Malformed]:
    """All of them; the names are unique."""
    parts = (syntax, forms, records, values, types, mlflow, frames, sheets, tensors, tensor_values, raw, streams)
    return [case for part in parts for case in part(fields)]


def dump(value: Any) -> bytes:
    """JSON as Python writes it: NaN, Infinity and lone surrogates (escaped) among it."""
    return json.dumps(value).encode()


def raw_value(fields: Fields, name: str, text: str) -> bytes:
    """A list of one record in which the value of a field is written as `text`."""
    return dump([fields.changed(**{name: "@@"})]).replace(b'"@@"', text.encode())


SYNTAX = {
    "empty": b"",
    "a space": b" ",
    "a newline": b"\n",
    "NUL": b"\x00",
    "a word": b"hello",
    "an open list": b"[",
    "an open object": b"[{",
    "a closed list": b"]",
    "an unclosed list": b'[{"a": 1}',
    "an unclosed text": b'[{"a": "b}]',
    "a trailing comma": b'[{"a": 1},]',
    "a trailing comma in an object": b'[{"a": 1,}]',
    "two commas": b'[{"a": 1},,{"a": 1}]',
    "no colon": b'[{"a" 1}]',
    "no value": b'[{"a":}]',
    "no name": b"[{: 1}]",
    "a name without quotes": b"[{a: 1}]",
    "single quotes": b"[{'a': 1}]",
    "a comment": b'[{"a": 1}] // all',
    "a block comment": b'[/* all */ {"a": 1}]',
    "two documents": b'[{"a": 1}] [{"a": 1}]',
    "lines of JSON": b'{"a": 1}\n{"a": 2}\n',
    "Python's None": b'[{"a": None}]',
    "Python's True": b'[{"a": True}]',
    "undefined": b'[{"a": undefined}]',
    "a byte order mark": b'\xef\xbb\xbf[{"a": 1}]',
    "UTF-16": '[{"a": 1}]'.encode("utf-16"),
    "UTF-32": '[{"a": 1}]'.encode("utf-32-le"),
    "Latin-1": '[{"a": "é"}]'.encode("latin-1"),
    "a cut UTF-8 sequence": b'[{"a": "\xe2\x82"}]',
    "an overlong UTF-8 sequence": b'[{"a": "\xc0\xaf"}]',
    "a UTF-8 surrogate": b'[{"a": "\xed\xa0\x80"}]',
    "UTF-8 beyond Unicode": b'[{"a": "\xf4\x90\x80\x80"}]',
    "a lone high surrogate": b'[{"a": "\\ud800"}]',
    "a lone low surrogate": b'[{"a": "\\udc00"}]',
    "surrogates turned": b'[{"a": "\\udc00\\ud800"}]',
    "a lone surrogate as a name": b'[{"\\ud800": 1}]',
    "an unknown escape": b'[{"a": "\\x41"}]',
    "a short escape": b'[{"a": "\\u12"}]',
    "a control character in text": b'[{"a": "\x01"}]',
    "a raw newline in text": b'[{"a": "b\nc"}]',
    "1,100 lists": b"[" * 1100 + b"]" * 1100,
    "100,000 lists": b"[" * 100_000,
    "100,000 objects": b'{"a":' * 100_000,
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x8b\x8e\x05\x00",
    "a PNG": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "HTML": b"<html><body>hello</body></html>",
    "a form": b"a=1&b=2",
    "YAML": b"- a: 1\n",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00]\x94}\x94",
}


def syntax(fields: Fields) -> list[Malformed]:
    """What is no JSON, on every path that takes JSON."""
    cases = [Malformed(f"predict: {name}", PREDICT, body, 400) for name, body in SYNTAX.items()]
    some = ("empty", "a word", "an open object", "UTF-16", "Latin-1", "a lone high surrogate", "100,000 lists", "gzip")
    cases += [Malformed(f"invocations: {name}", INVOCATIONS, SYNTAX[name], 400) for name in some]
    return cases + [Malformed(f"infer: {name}", INFER, SYNTAX[name], 400) for name in some]


def forms(fields: Fields) -> list[Malformed]:
    """JSON that is no list of records."""
    good = fields.good
    whole = {
        "null": None,
        "true": True,
        "a number": 5,
        "a text": "records",
        "an object": {},
        "a record": good,
        "a record under a name": {"records": [good]},
        "an empty list": [],
        "a text of a list": dump([good]).decode(),
    }
    rows = {
        "null": None,
        "a number": 1,
        "a text": "record",
        "a boolean": False,
        "an empty list": [],
        "a list of records": [good],
        "a list of values": list(good.values()),
        "an empty object": {},
    }
    cases = [Malformed(f"predict: {name} is no list", PREDICT, dump(body), 400) for name, body in whole.items()]
    cases += [Malformed(f"predict: {name} as a record", PREDICT, dump([good, row]), 422) for name, row in rows.items()]
    many = [good] * (fields.max_rows + 1)
    return [*cases, Malformed("predict: too many records", PREDICT, dump(many), 413)]


def records(fields: Fields) -> list[Malformed]:
    """Fields that are missing or unknown."""
    good, number = fields.good, fields.number
    bodies = {
        "a field is missing": [fields.without(number)],
        "a field is missing in the last record": [good, good, fields.without(fields.text)],
        "a field is unknown": [fields.changed(extra=1)],
        "a field is unknown and null": [fields.changed(extra=None)],
        "a field's name in capitals": [{name.upper(): value for name, value in good.items()}],
        "a field's name with a space": [{f"{name} ": value for name, value in good.items()}],
        "an empty name": [fields.changed(**{"": 1})],
        "a name of NUL": [fields.changed(**{"\x00": 1})],
        "a name of 100,000 letters": [fields.changed(**{"a" * 100_000: 1})],
        "a name of another script": [fields.changed(**{"число": 1})],
        "__proto__": [fields.changed(__proto__={"a": 1})],
        "__class__": [fields.changed(__class__="str")],
        "10,000 unknown fields": [fields.changed(**{f"extra{place}": place for place in range(10_000)})],
    }
    return [Malformed(f"predict: {name}", PREDICT, dump(body), 422) for name, body in bodies.items()]


NO_NUMBERS = ["true", "false", '"5"', '""', '"NaN"', '"five"', "[]", "[5]", "{}", '{"$numberDouble": "5"}']
NOT_FINITE = ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "1" + "0" * 400, "-" + "9" * 5000]
NO_JSON_NUMBERS = ["01", "+1", ".5", "5.", "0x10", "1_000", "1e", "--1", "1,5", "1e+", "٣", "½", "inf", "nan", "0b1", "1n"]
NO_TEXTS = ["5", "0", "5.5", "true", "false", "[]", '["AA"]', "{}", "-1"]
NO_DATES = [
    '""',
    '"yesterday"',
    '"2013-13-01"',
    '"2013-00-10"',
    '"2013-02-29"',
    '"2013-1-1"',
    '"05.11.2013"',
    '"11/05/2013"',
    '"0000-01-01"',
    '"10000-01-01"',
    '"-2013-01-01"',
    '" 2013-11-05"',
    '"2013-11-05T25:00:00"',
    '"0001-01-01T00:00:00+14:00"',
    '"9999-12-31T23:59:59-12:00"',
    '"２０１３-11-05"',
    '"2013-11-05\\u0000"',
    '"2013-W60-1"',
    "20131105",
    "1383609600.0",
    "true",
    "[2013, 11, 5]",
    '{"$date": "2013-11-05"}',
]


def values(fields: Fields) -> list[Malformed]:
    """Values that a field does not take; where they are no JSON the body is not."""
    wrong = {fields.number: NO_NUMBERS, fields.text: NO_TEXTS, fields.date: NO_DATES}
    cases = [
        Malformed(f"predict: {name} is {text:.40}", PREDICT, raw_value(fields, name, text), 422)
        for name, texts in wrong.items()
        for text in texts
    ]
    return cases + [
        Malformed(f"predict: {fields.number} is {text:.40}", PREDICT, raw_value(fields, fields.number, text), 400)
        for text in (*NOT_FINITE, *NO_JSON_NUMBERS)
    ]


def types(fields: Fields) -> list[Malformed]:
    """Media types that are not known, and bodies that are compressed."""
    body = dump([fields.good])
    frame = dump({"dataframe_records": [fields.good]})
    unknown = [
        "text/plain",
        "text/html",
        "application/xml",
        "multipart/form-data; boundary=x",
        "image/png",
        "json",
        "*/*",
        ";",
        "é",
    ]
    cases = [Malformed(f"predict: type {name}", PREDICT, body, 415, name) for name in unknown if name != ";"]
    cases += [
        Malformed(f"predict: charset {name}", PREDICT, body, 415, f"{JSON}; charset={name}")
        for name in ("latin-1", "utf-16", "x")
    ]
    cases += [
        Malformed(f"predict: a body in {coding}", PREDICT, body, 415, headers={"content-encoding": coding})
        for coding in ("gzip", "br", "deflate, gzip")
    ]
    cases += [
        Malformed(f"invocations: type {name}", INVOCATIONS, frame, 415, name)
        for name in ("text/plain", "application/vnd.apache.parquet", STREAM, "application/x-www-form-urlencoded")
    ]
    cases.append(Malformed("invocations: charset latin-1", INVOCATIONS, frame, 415, f"{CSV}; charset=ISO-8859-1"))
    return cases + [
        Malformed(f"infer: type {name}", INFER, b"{}", 415, name) for name in ("text/csv", "application/grpc", STREAM)
    ]


def mlflow(fields: Fields) -> list[Malformed]:
    """What is no form of MLflow's protocol, or holds records that are wrong."""
    good, number, text = fields.good, fields.number, fields.text
    lists = {name: [value] for name, value in good.items()}
    not_the_form: dict[str, Any] = {
        "null": None,
        "a list": [good],
        "a record": good,
        "no form": {},
        "params only": {"params": {}},
        "two forms": {"inputs": lists, "instances": [good]},
        "an unknown form": {"dataframe_columns": lists},
        "a form and more": {"inputs": lists, "input": 1},
        "a signature": {"signature_name": "serving_default", "instances": [good]},
        "messages of a chat": {"messages": [{"role": "user", "content": "hello"}]},
        "params as a list": {"inputs": lists, "params": [1]},
        "params as text": {"inputs": lists, "params": "none"},
        "records as an object": {"dataframe_records": good},
        "records as null": {"dataframe_records": None},
        "no record": {"dataframe_records": []},
        "instances as text": {"instances": "all"},
        "no instance": {"instances": []},
        "inputs as null": {"inputs": None},
        "inputs as a number": {"inputs": 5},
        "no input": {"inputs": []},
        "no values": {"inputs": {name: [] for name in good}},
    }
    wrong: dict[str, Any] = {
        "instances without names": {"instances": [list(good.values())]},
        "instances of numbers": {"instances": [1, 2, 3]},
        "an instance is null": {"instances": [good, None]},
        "inputs without names": {"inputs": [[1.0, 2.0], [3.0, 4.0]]},
        "no field in inputs": {"inputs": {}},
        "a record lacks a field": {"dataframe_records": [fields.without(number)]},
        "a record has an unknown field": {"dataframe_records": [fields.changed(extra=1)]},
        "a number is text": {"dataframe_records": [fields.changed(**{number: "5"})]},
        "a number is Infinity": {"dataframe_records": [fields.changed(**{number: float("inf")})]},
        "a number is -Infinity": {"instances": [good, fields.changed(**{number: float("-inf")})]},
        "a text is a number": {"instances": [fields.changed(**{text: 5})]},
        "inputs lack a field": {"inputs": {name: values for name, values in lists.items() if name != text}},
        "an unknown input": {"inputs": {**lists, "extra": [1]}},
        "inputs of unequal lengths": {"inputs": {**lists, number: [1, 2]}},
        "an input is no list": {"inputs": {**lists, number: 5}},
        "an input is an object": {"inputs": {**lists, number: {"0": 5}}},
        "an input of pairs": {"inputs": {**lists, number: [[1, 2]]}},
        "an input nested twice": {"inputs": {**lists, number: [[[1]]]}},
        "one record lacks a field": {"inputs": fields.without(number)},
    }
    many = {name: values * (fields.max_rows + 1) for name, values in lists.items()}
    cases = [Malformed(f"invocations: {name}", INVOCATIONS, dump(body), 400) for name, body in not_the_form.items()]
    cases += [Malformed(f"invocations: {name}", INVOCATIONS, dump(body), 422) for name, body in wrong.items()]
    return [*cases, Malformed("invocations: too many values", INVOCATIONS, dump({"inputs": many}), 413)]


def frames(fields: Fields) -> list[Malformed]:
    """Frames that pandas would not write."""
    names, row = list(fields.good), list(fields.good.values())
    frame = {"columns": names, "data": [row]}
    not_the_form: dict[str, Any] = {
        "a list": [row],
        "null": None,
        "no data": {"columns": names},
        "no columns": {"data": [row]},
        "an unknown key": {**frame, "dtypes": []},
        "data as text": {**frame, "data": "rows"},
        "data as an object": {**frame, "data": {"0": row}},
        "no row": {**frame, "data": []},
        "columns as text": {**frame, "columns": "all"},
        "columns as null": {**frame, "columns": None},
        "a short index": {**frame, "index": []},
        "an index as a number": {**frame, "index": 0},
    }
    wrong: dict[str, Any] = {
        "a column is there twice": {"columns": [*names, names[0]], "data": [[*row, row[0]]]},
        "a column is there twice in the place of another": {"columns": [names[0], names[0], *names[2:]], "data": [row]},
        "a column is missing": {"columns": names[1:], "data": [row[1:]]},
        "a column is unknown": {"columns": [*names, "extra"], "data": [[*row, 1]]},
        "columns are numbers": {"columns": list(range(len(names))), "data": [row]},
        "columns are lists": {"columns": [[name] for name in names], "data": [row]},
        "a column is null": {"columns": [None, *names[1:]], "data": [row]},
        "a row is short": {**frame, "data": [row, row[1:]]},
        "a row is long": {**frame, "data": [row, [*row, 1]]},
        "a row is null": {**frame, "data": [row, None]},
        "a row is a record": {**frame, "data": [fields.good]},
        "a row is text": {**frame, "data": ["x" * len(names)]},
        "no column": {"columns": [], "data": [[]]},
        "a number is a list": {**frame, "data": [list(fields.changed(**{fields.number: [5]}).values())]},
        "a date is a number": {**frame, "data": [list(fields.changed(**{fields.date: 15000}).values())]},
    }
    cases = [
        Malformed(f"frame: {name}", INVOCATIONS, dump({"dataframe_split": body}), 400) for name, body in not_the_form.items()
    ]
    cases += [Malformed(f"frame: {name}", INVOCATIONS, dump({"dataframe_split": body}), 422) for name, body in wrong.items()]
    many = dump({"dataframe_split": {**frame, "data": [row] * (fields.max_rows + 1)}})
    return [*cases, Malformed("frame: too many rows", INVOCATIONS, many, 413)]


def sheets(fields: Fields) -> list[Malformed]:
    """CSV."""
    header = ",".join(fields.good)
    line = ",".join("" if value is None else str(value) for value in fields.good.values())

    def cell(name: str, text: str) -> str:
        return header + "\n" + ",".join(text if key == name else "" for key in fields.good) + "\n"

    bodies: dict[str, tuple[str | bytes, int]] = {
        "empty": ("", 422),
        "a newline": ("\n", 422),
        "no row": (header + "\n", 400),
        "no header": (line + "\n", 422),
        "a column is missing": (header.partition(",")[2] + "\n" + line.partition(",")[2], 422),
        "a column is unknown": (f"{header},extra\n{line},1", 422),
        "a column is there twice": (f"{header},{fields.number}\n{line},1", 422),
        "a row is short": (f"{header}\n{line}\n1", 422),
        "a row is long": (f"{header}\n{line},1", 422),
        "semicolons": (header.replace(",", ";") + "\n" + line.replace(",", ";"), 422),
        "tabs": (header.replace(",", "\t") + "\n" + line.replace(",", "\t"), 422),
        "an open quote": (cell(fields.text, '"AA'), 400),
        "text after a quote": (cell(fields.text, '"A"A'), 400),
        "a cell of 200,000 letters": (cell(fields.text, "a" * 200_000), 400),
        "Latin-1": (cell(fields.text, "é").encode("latin-1"), 400),
        "UTF-16": (cell(fields.text, "A").encode("utf-16"), 400),
        "NUL in a number": (cell(fields.number, "\x00"), 422),
        "a word as a number": (cell(fields.number, "five"), 422),
        "true as a number": (cell(fields.number, "true"), 422),
        "1_000": (cell(fields.number, "1_000"), 422),
        "١٢": (cell(fields.number, "١٢"), 422),
        "inf": (cell(fields.number, "inf"), 422),
        "1e999": (cell(fields.number, "1e999"), 422),
        "a number of 5,000 digits": (cell(fields.number, "9" * 5000), 422),
        "0x10": (cell(fields.number, "0x10"), 422),
        "no date": (cell(fields.date, "soon"), 422),
        "JSON": (dump([fields.good]), 422),
        "1,000,000 commas": ("," * 1_000_000, 422),
        "too many rows": (header + "\n" + (line + "\n") * (fields.max_rows + 1), 413),
    }
    return [
        Malformed(f"csv: {name}", INVOCATIONS, body if isinstance(body, bytes) else body.encode(), status, CSV)
        for name, (body, status) in bodies.items()
    ]


def tensor(name: str, value: Any, **changes: Any) -> dict[str, Any]:
    """One row of a field as an input of the Open Inference Protocol; a change to None leaves the key out."""
    datatype = {bool: "BOOL", int: "INT64", float: "FP64"}.get(type(value), "BYTES")
    made = {"name": name, "shape": [1], "datatype": datatype, "data": [value], **changes}
    return {key: value for key, value in made.items() if value is not None}


def inputs(fields: Fields, name: str | None = None, **changes: Any) -> list[dict[str, Any]]:
    """All fields as inputs, with changes to that of `name`."""
    good = {key: float(value) if key == fields.number else value for key, value in fields.good.items()}
    return [tensor(key, value, **(changes if key == name else {})) for key, value in good.items()]


def tensors(fields: Fields) -> list[Malformed]:
    """What is no request of the Open Inference Protocol, or says of a tensor what cannot be."""
    good, number = inputs(fields), fields.number
    not_the_form: dict[str, Any] = {
        "null": None,
        "a list": good,
        "no inputs": {},
        "inputs as null": {"inputs": None},
        "inputs as an object": {"inputs": {number: good[0]}},
        "no input": {"inputs": []},
        "an input is null": {"inputs": [None]},
        "an input is text": {"inputs": ["x"]},
        "an input without a name": {"inputs": [{**good[0], "name": None}]},
        "an input's name is a number": {"inputs": [{**good[0], "name": 5}]},
        "an id of a number": {"id": 5, "inputs": good},
        "an id of a list": {"id": ["5"], "inputs": good},
        "parameters as a list": {"parameters": [], "inputs": good},
        "parameters of an input as text": {"inputs": inputs(fields, number, parameters="x")},
        "outputs as text": {"inputs": good, "outputs": "label"},
        "an output is text": {"inputs": good, "outputs": ["label"]},
        "an output without a name": {"inputs": good, "outputs": [{}]},
        "an unknown output": {"inputs": good, "outputs": [{"name": "logits"}]},
        "an output's name is a list": {"inputs": good, "outputs": [{"name": []}]},
        "classification": {"inputs": good, "outputs": [{"name": "probability", "parameters": {"classification": 3}}]},
        "parameters of an output as a number": {"inputs": good, "outputs": [{"name": "label", "parameters": 1}]},
        "shared memory": {"inputs": inputs(fields, number, parameters={"shared_memory_region": "r"}, data=None)},
        "binary data that is not there": {"inputs": inputs(fields, number, parameters={"binary_data_size": 8}, data=None)},
        "a negative size": {"inputs": inputs(fields, number, parameters={"binary_data_size": -8}, data=None)},
        "a size of text": {"inputs": inputs(fields, number, parameters={"binary_data_size": "8"}, data=None)},
        "a size of true": {"inputs": inputs(fields, number, parameters={"binary_data_size": True}, data=None)},
        "a size and data": {"inputs": inputs(fields, number, parameters={"binary_data_size": 0})},
        "no row": {"inputs": [{**one, "shape": [0], "data": []} for one in good]},
    }
    wrong: dict[str, Any] = {
        "an input is missing": good[1:],
        "an input is unknown": [*good, tensor("extra", 1)],
        "an input is there twice": [*good, good[0]],
        "no shape": inputs(fields, number, shape=None),
        "an empty shape": inputs(fields, number, shape=[]),
        "a shape of text": inputs(fields, number, shape="1"),
        "a shape of texts": inputs(fields, number, shape=["1"]),
        "a shape of true": inputs(fields, number, shape=[True]),
        "a shape of 1.0": inputs(fields, number, shape=[1.0]),
        "a shape of -1": inputs(fields, number, shape=[-1]),
        "a shape [1, 2]": inputs(fields, number, shape=[1, 2], data=[1, 2]),
        "a shape [1, 1, 1]": inputs(fields, number, shape=[1, 1, 1]),
        "a shape [1, -1]": inputs(fields, number, shape=[1, -1]),
        "a shape that is not the data's": inputs(fields, number, shape=[2]),
        "no datatype": inputs(fields, number, datatype=None),
        "a datatype of a number": inputs(fields, number, datatype=64),
        "a datatype of a list": inputs(fields, number, datatype=["FP64"]),
        "an unknown datatype": inputs(fields, number, datatype="FP128"),
        "a datatype in small letters": inputs(fields, number, datatype="fp64"),
        "BF16": inputs(fields, number, datatype="BF16"),
        "no data": inputs(fields, number, data=None),
        "data of text": inputs(fields, number, data="5"),
        "data of a number": inputs(fields, number, data=5),
        "data of an object": inputs(fields, number, data={"0": 5}),
        "empty data": inputs(fields, number, data=[]),
        "inputs of unequal lengths": inputs(fields, number, shape=[2], data=[1, 2]),
    }
    cases = [Malformed(f"infer: {name}", INFER, dump(body), 400) for name, body in not_the_form.items()]
    cases += [Malformed(f"infer: {name}", INFER, dump({"inputs": body}), 422) for name, body in wrong.items()]
    vast = dump({"inputs": inputs(fields, number, shape=[2**62])})
    many = dump({"inputs": inputs(fields, number, shape=[fields.max_rows + 1])})
    return [*cases, Malformed("infer: a vast shape", INFER, vast, 413), Malformed("infer: too many rows", INFER, many, 413)]


def tensor_values(fields: Fields) -> list[Malformed]:
    """Data that the tensor's datatype or the field does not hold."""
    number, text, date = fields.number, fields.text, fields.date
    wrong = {
        "a number as BYTES": (number, {"datatype": "BYTES", "data": ["5"]}),
        "a number as BOOL": (number, {"datatype": "BOOL", "data": [True]}),
        "true as FP64": (number, {"datatype": "FP64", "data": [True]}),
        "text as FP64": (number, {"datatype": "FP64", "data": ["5"]}),
        "Infinity as FP32": (number, {"datatype": "FP32", "data": [float("inf")]}),
        "-Infinity as FP64": (number, {"datatype": "FP64", "data": [float("-inf")]}),
        "3.4 as INT64": (number, {"datatype": "INT64", "data": [3.4]}),
        "3.0 as INT32": (number, {"datatype": "INT32", "data": [3.0]}),
        "true as INT8": (number, {"datatype": "INT8", "data": [True]}),
        "300 as INT8": (number, {"datatype": "INT8", "data": [300]}),
        "-1 as UINT8": (number, {"datatype": "UINT8", "data": [-1]}),
        "2**63 as INT64": (number, {"datatype": "INT64", "data": [2**63]}),
        "a list of two": (number, {"datatype": "FP64", "data": [[1, 2]]}),
        "a value nested twice": (number, {"datatype": "FP64", "data": [[[1]]]}),
        "an object": (number, {"datatype": "FP64", "data": [{}]}),
        "text as INT64": (text, {"datatype": "INT64", "data": [5]}),
        "a number in BYTES": (text, {"datatype": "BYTES", "data": [5]}),
        "a list of bytes": (text, {"datatype": "BYTES", "data": [[65, 65]]}),
        "true in BYTES": (text, {"datatype": "BYTES", "data": [True]}),
        "a date as INT64": (date, {"datatype": "INT64", "data": [20131105]}),
        "no date": (date, {"datatype": "BYTES", "data": ["soon"]}),
    }
    return [
        Malformed(f"infer: {name}", INFER, dump({"inputs": inputs(fields, field, **changes)}), 422)
        for name, (field, changes) in wrong.items()
    ]


def raw(fields: Fields) -> list[Malformed]:
    """Binary tensors: what is after the JSON, and what the header says of the JSON's length."""

    def request(name: str, data: bytes, size: int | None = None, **changes: Any) -> tuple[bytes, bytes]:
        said = {"parameters": {"binary_data_size": len(data) if size is None else size}, "data": None}
        return dump({"inputs": inputs(fields, name, **{**said, **changes})}), data

    number, text = fields.number, fields.text
    infinite = struct.pack("<d", float("inf"))
    sent = {
        "3 bytes of FP64": (*request(number, b"\x00" * 3), 422),
        "16 bytes of one FP64": (*request(number, b"\x00" * 16), 422),
        "no byte of FP64": (*request(number, b""), 422),
        "Infinity": (*request(number, infinite), 422),
        "-Infinity as FP32": (*request(number, struct.pack("<f", float("-inf")), datatype="FP32"), 422),
        "fewer bytes than said": (*request(number, b"\x00" * 8, 800), 400),
        "more bytes than said": (*request(number, b"\x00" * 16, 8), 400),
        "bytes that no input has": (dump({"inputs": inputs(fields)}), b"\x00" * 8, 400),
        "BYTES without a length": (*request(text, b"AA"), 422),
        "BYTES that end early": (*request(text, struct.pack("<I", 9) + b"AA"), 422),
        "BYTES of 4 GB": (*request(text, struct.pack("<I", 2**32 - 1) + b"AA"), 422),
        "two elements of BYTES for one": (*request(text, (struct.pack("<I", 2) + b"AA") * 2), 422),
        "BYTES in Latin-1": (*request(text, struct.pack("<I", 1) + b"\xe9"), 422),
        "no element of BYTES": (*request(text, b""), 422),
        "JSON that is cut": (dump({"inputs": inputs(fields)})[:-1], b"", 400),
    }
    cases = [
        Malformed(f"binary: {name}", INFER, head + tail, status, BINARY, {"inference-header-content-length": str(len(head))})
        for name, (head, tail, status) in sent.items()
    ]
    body = dump({"inputs": inputs(fields)})
    lengths = {"too long": str(len(body) + 1), "negative": "-1", "no number": "all", "empty": "", "vast": "9" * 40, "0": "0"}
    return cases + [
        Malformed(f"binary: a length {name}", INFER, body, 400, BINARY, {"inference-header-content-length": text})
        for name, text in lengths.items()
    ]


def stream(table: pa.Table, batches: int | None = None, **options: Any) -> bytes:
    """A table as an Arrow IPC stream, of batches with at most so many rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batches)
    return sink.getvalue().to_pybytes()


def offsets_beyond(table: pa.Table, name: str) -> bytes:
    """A stream whose text has offsets that point far beyond its data."""
    body = stream(replaced(table, name, pa.array(["A" * 77])))
    return body.replace(struct.pack("<2i", 0, 77), struct.pack("<2i", 0, 2**30))


def replaced(table: pa.Table, name: str, array: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, array)


def streams(fields: Fields) -> list[Malformed]:
    """Arrow."""
    number, text, date = fields.number, fields.text, fields.date
    table = pa.Table.from_pylist([fields.good])
    whole = stream(table)
    long = pa.concat_tables([table] * (fields.max_rows + 1))
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 80, pa.int8()), pa.array(["A" * 2**20]))
    astray = pa.DictionaryArray.from_arrays(pa.array([100], pa.int8()), pa.array(["AA"]), safe=False)
    bad_text = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(b"\xff\xfe"))
    bodies: dict[str, tuple[bytes, int]] = {
        "empty": (b"", 400),
        "text": (b"hello, this is no stream at all", 400),
        "JSON": (dump([fields.good]), 400),
        "zeros": (b"\x00" * 64, 400),
        "ones": (b"\xff" * 64, 400),
        "a marker only": (b"\xff\xff\xff\xff", 400),
        "metadata of 2 GB": (b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1), 400),
        "metadata of negative length": (b"\xff\xff\xff\xff" + struct.pack("<i", -16) + b"\x00" * 64, 400),
        "cut in the schema": (whole[:40], 400),
        "cut in the batch": (whole[: len(whole) - 64], 400),
        "a file, not a stream": (b"ARROW1\x00\x00" + whole, 400),
        "no schema where it should be": (whole[:8] + b"\xff\xff\xff\x7f" + whole[12:], 400),
        "no batch": (stream(table.slice(0, 0)), 400),
        "too many rows": (stream(long), 413),
        "too many batches": (stream(pa.concat_tables([table] * 101), 1), 413),
        "zstd": (stream(table, compression="zstd"), 422),
        "lz4": (stream(table, compression="lz4"), 422),
        "a column is missing": (stream(table.drop_columns([number])), 422),
        "a column is unknown": (stream(table.append_column("extra", pa.array([1]))), 422),
        "a column is there twice": (stream(table.append_column(number, pa.array([1.0]))), 422),
        "a number as text": (stream(replaced(table, number, pa.array(["5"]))), 422),
        "a number as a boolean": (stream(replaced(table, number, pa.array([True]))), 422),
        "a number as a date": (stream(replaced(table, number, pa.array([15000], pa.date32()))), 422),
        "a number that is NaN": (stream(replaced(table, number, pa.array([float("nan")]))), 422),
        "a number that is Infinity": (stream(replaced(table, number, pa.array([float("inf")], pa.float32()))), 422),
        "a number as a decimal": (stream(replaced(table, number, pa.array([5]).cast(pa.decimal128(38, 2)))), 422),
        "a number as a list": (stream(replaced(table, number, pa.array([[5.0]]))), 422),
        "a number as a struct": (stream(replaced(table, number, pa.array([{"a": 5.0}]))), 422),
        "a number as runs": (stream(replaced(table, number, pa.RunEndEncodedArray.from_arrays([1], [5.0]))), 422),
        "a number as a duration": (stream(replaced(table, number, pa.array([5], pa.duration("s")))), 422),
        "a text as a number": (stream(replaced(table, text, pa.array([5]))), 422),
        "a text as binary": (stream(replaced(table, text, pa.array([b"AA"]))), 422),
        "a text as a view": (stream(replaced(table, text, pa.array(["AA"], pa.string_view()))), 422),
        "a text as a dictionary of numbers": (stream(replaced(table, text, pa.array([5]).dictionary_encode())), 422),
        "a text that is no UTF-8": (stream(replaced(table, text, bad_text)), 400),
        "a text beyond its buffer": (offsets_beyond(table, text), 400),
        "an index beyond its dictionary": (stream(replaced(table, text, astray)), 400),
        "a dictionary repeated to 80 MB": (stream(replaced(pa.concat_tables([table] * 80), text, repeated)), 413),
        "a date as a number": (stream(replaced(table, date, pa.array([15000]))), 422),
        "a date in the year 5,881,580": (stream(replaced(table, date, pa.array([2**31 - 1], pa.date32()))), 422),
        "a date as a time": (stream(replaced(table, date, pa.array([5], pa.time32("s")))), 422),
    }
    return [Malformed(f"arrow: {name}", PREDICT, body, status, STREAM) for name, (body, status) in bodies.items()]
