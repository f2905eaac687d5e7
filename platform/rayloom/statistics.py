"""Statistics of a table's columns, in bounded memory and whatever way the rows are cut into blocks.

    summarize(block) -> Summary      merge(Summary, Summary) -> Summary      finish(Summary) -> ColumnStatistics by column

A Summary is a plain JSON-able dict by column. Numbers are summarised by `rayloom.sketch`. Of texts, each different one is
counted up to DISTINCT; beyond that their number is estimated by HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, 2007; small
numbers by linear counting) with REGISTERS registers, whose standard error is 1.04 / sqrt(REGISTERS), 1.6 %.

Not here: statistics of lists, structs and maps (only missing ones are counted), and of pairs of columns.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from rayloom import sketch

DISTINCT = 10_000
"""Different texts up to which each is counted."""

TOP = 10
"""The most frequent values that are kept."""

LONGEST = 64
"""Characters up to which a text is kept as it is; of a longer one, its beginning and a hash."""

REGISTERS = 4096

SHARES = {"1%": 0.01, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "99%": 0.99}

Summary = dict[str, dict[str, Any]]


class _Statistics(BaseModel):
    """rows: all rows; missing: those whose value is NULL (of numbers, also NaN)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int
    missing: int


class Numbers(_Statistics):
    """Integers, floats, decimals and booleans (0 and 1), as float64; infinities are counted and left out of the rest.

    Attributes:
        infinite: values that are plus or minus infinity.
        mean, deviation: to 12 significant digits (the last ones depend on the blocks); population deviation.
        min, max, quantiles: None and empty where there is no finite value. Quantiles as `rayloom.sketch` has them.
        distinct: how many different values there are; None where there are too many to count.
        top: the most frequent values with their counts, most frequent first, of equals the smaller; None like `distinct`.
    """

    kind: Literal["number"] = "number"
    infinite: int
    mean: float | None
    deviation: float | None
    min: float | None
    max: float | None
    quantiles: dict[str, float]
    distinct: int | None
    top: dict[str, int] | None


class Texts(_Statistics):
    """Texts; lengths in characters, None where there is no text.

    Attributes:
        distinct: how many different ones there are: exact up to DISTINCT, else an estimate.
        estimated: whether `distinct` is an estimate.
        top: the most frequent texts (a long one as its beginning and a hash) with their counts; None where `distinct` is an
            estimate.
    """

    kind: Literal["text"] = "text"
    distinct: int
    estimated: bool
    top: dict[str, int] | None
    shortest: int | None
    mean_length: float | None
    longest: int | None


class Times(_Statistics):
    """Dates and timestamps, as ISO 8601; one with a time zone in UTC, ending with Z."""

    kind: Literal["time"] = "time"
    min: str | None
    max: str | None


class Blobs(_Statistics):
    """Bytes, such as images."""

    kind: Literal["binary"] = "binary"
    mean_bytes: float | None


class Others(_Statistics):
    """Lists, structs, maps: only counted."""

    kind: Literal["other"] = "other"


ColumnStatistics = Annotated[Numbers | Texts | Times | Blobs | Others, Field(discriminator="kind")]


def summarize(rows: pa.Table) -> Summary:
    """The summary of a block."""
    return {name: _summarize(rows[name]) for name in rows.column_names}


def merge(left: Summary, right: Summary) -> Summary:
    """Two summaries of disjoint rows with the same columns as one."""
    return {name: _merge_column(left[name], right[name]) for name in left}


def finish(summary: Summary) -> dict[str, ColumnStatistics]:
    """What a summary says of each column."""
    finishers: dict[str, Callable[[dict], ColumnStatistics]] = {
        "number": _numbers, "text": _texts, "time": _times, "binary": _blobs, "other": _others,
    }  # fmt: skip
    return {name: finishers[column["kind"]](column) for name, column in summary.items()}


def _summarize(values: pa.ChunkedArray) -> dict[str, Any]:
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    counted = {"rows": len(values), "missing": values.null_count}
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        return {"kind": "number", **counted, **_number_summary(values)}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {"kind": "text", **counted, **_text_summary(values)}
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return {"kind": "time", **counted, **_time_summary(values)}
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return {"kind": "binary", **counted, "bytes": pc.sum(pc.binary_length(values)).as_py() or 0}
    return {"kind": "other", **counted}


def _merge_column(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    merged = {"kind": left["kind"], "rows": left["rows"] + right["rows"], "missing": left["missing"] + right["missing"]}
    match left["kind"]:
        case "number":
            return merged | {
                "infinite": left["infinite"] + right["infinite"],
                "sketch": sketch.merge(left["sketch"], right["sketch"]),
            }
        case "text":
            return merged | _merge_texts(left, right)
        case "time":
            return merged | {
                "unit": left["unit"],
                "utc": left["utc"],
                "min": _of_present(min, left["min"], right["min"]),
                "max": _of_present(max, left["max"], right["max"]),
            }
        case "binary":
            return merged | {"bytes": left["bytes"] + right["bytes"]}
        case _:
            return merged


def _of_present(choose: Callable, left: int | None, right: int | None) -> int | None:
    return choose((value for value in (left, right) if value is not None), default=None)


def _number_summary(values: pa.ChunkedArray) -> dict[str, Any]:
    # Booleans have no cast to float64, and a safe cast would refuse integers above 2^53: statistics may round.
    numeric = pc.cast(values, pa.int8()) if pa.types.is_boolean(values.type) else values
    numbers = pc.cast(numeric, pa.float64(), safe=False).to_numpy()
    infinite = np.isinf(numbers)
    if infinite.any():
        numbers = np.where(infinite, np.nan, numbers)
    return {"infinite": int(infinite.sum()), "sketch": sketch.sketch(numbers)}


def _numbers(of: dict[str, Any]) -> Numbers:
    numbers = of["sketch"]
    found = bool(numbers["count"])
    return Numbers(
        rows=of["rows"],
        missing=numbers["missing"] - of["infinite"],
        infinite=of["infinite"],
        mean=_rounded(numbers["mean"]) if found else None,
        deviation=_rounded(sketch.deviation(numbers)) if found else None,
        min=numbers["min"],
        max=numbers["max"],
        quantiles=dict(zip(SHARES, sketch.quantiles(numbers, list(SHARES.values())), strict=True)) if found else {},
        distinct=None if numbers["exact"] is None else len(numbers["exact"]),
        top=_top(numbers["exact"], float),
    )


def _rounded(number: float) -> float:
    return float(f"{number:.12g}")


def _top(counts: dict[str, int] | None, order: Callable[[str], Any]) -> dict[str, int] | None:
    """The most frequent of counted values; of equals, the first in `order`. Whole numbers lose their '.0'."""
    if counts is None:
        return None
    ranked = sorted(counts, key=lambda value: (-counts[value], order(value)))[:TOP]
    return {value.removesuffix(".0") if order is float else value: counts[value] for value in ranked}


def _text_summary(values: pa.ChunkedArray) -> dict[str, Any]:
    distinct = pc.value_counts(values.drop_null())
    texts, counts = distinct.field("values"), distinct.field("counts").to_numpy()
    lengths = pc.utf8_length(texts).to_numpy(zero_copy_only=False)
    keys = [text if size <= LONGEST else _abridged(text) for text, size in zip(texts.to_pylist(), lengths, strict=True)]
    few = len(keys) <= DISTINCT
    return {
        "characters": int(lengths @ counts),
        "shortest": int(lengths.min()) if len(lengths) else None,
        "longest": int(lengths.max()) if len(lengths) else None,
        "exact": dict(zip(keys, counts.tolist(), strict=True)) if few else None,
        "registers": None if few else _registers(keys).tobytes().hex(),
    }


def _abridged(text: str) -> str:
    """What stands for a long text: as long for all, different for different ones."""
    return f"{text[: LONGEST // 2]}… {int(_hashes([text])[0]):016x}"


def _hashes(texts: list[str]) -> np.ndarray:
    """uint64 (n,): SipHash of each text."""
    from pandas.util import hash_array  # commands that only read statistics start without pandas

    return hash_array(np.array(texts, object), categorize=False)


def _registers(keys: list[str]) -> np.ndarray:
    """HyperLogLog's registers, uint8 (REGISTERS,): by the hash's first bits, the most leading zeros of the rest, plus one."""
    hashes = _hashes(keys)
    bits = int(math.log2(REGISTERS))
    rest = hashes & np.uint64((1 << (64 - bits)) - 1)
    # frexp's exponent is the number of bits that a whole number takes; below 2^53, float64 holds it as it is.
    zeros = 64 - bits - np.frexp(rest.astype(np.float64))[1] + 1
    registers = np.zeros(REGISTERS, np.uint8)
    np.maximum.at(registers, (hashes >> np.uint64(64 - bits)).astype(np.int64), zeros.astype(np.uint8))
    return registers


def _registers_of(texts: dict[str, Any]) -> np.ndarray:
    if texts["exact"] is not None:
        return _registers(list(texts["exact"]))
    return np.frombuffer(bytes.fromhex(texts["registers"]), np.uint8)


def _merge_texts(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    exact = None
    if left["exact"] is not None and right["exact"] is not None:
        exact = sketch.add(left["exact"], right["exact"])
        exact = exact if len(exact) <= DISTINCT else None
    registers = None if exact is not None else np.maximum(_registers_of(left), _registers_of(right)).tobytes().hex()
    return {
        "characters": left["characters"] + right["characters"],
        "shortest": _of_present(min, left["shortest"], right["shortest"]),
        "longest": _of_present(max, left["longest"], right["longest"]),
        "exact": exact,
        "registers": registers,
    }


def _texts(of: dict[str, Any]) -> Texts:
    count = of["rows"] - of["missing"]
    return Texts(
        rows=of["rows"],
        missing=of["missing"],
        distinct=len(of["exact"]) if of["exact"] is not None else _estimate(_registers_of(of)),
        estimated=of["exact"] is None,
        top=_top(of["exact"], str),
        shortest=of["shortest"],
        mean_length=of["characters"] / count if count else None,
        longest=of["longest"],
    )


def _estimate(registers: np.ndarray) -> int:
    """How many different hashes the registers saw."""
    empty = int((registers == 0).sum())
    estimate = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / float((2.0 ** -registers.astype(np.float64)).sum())
    if estimate <= 2.5 * REGISTERS and empty:
        estimate = REGISTERS * math.log(REGISTERS / empty)
    return round(estimate)


def _time_summary(values: pa.ChunkedArray) -> dict[str, Any]:
    """Least and largest as whole days or microseconds: a Spark date may be one that Python's dates do not reach."""
    unit = "D" if pa.types.is_date(values.type) else "us"
    if unit == "D":
        whole = pc.cast(pc.cast(values, pa.date32()), pa.int32())
    else:
        whole = pc.cast(pc.cast(values, pa.timestamp("us", tz=values.type.tz), safe=False), pa.int64())
    least = pc.min_max(whole)
    return {
        "unit": unit,
        "utc": unit == "us" and values.type.tz is not None,
        "min": least["min"].as_py(),
        "max": least["max"].as_py(),
    }


def _times(of: dict[str, Any]) -> Times:
    least, largest = (_iso(of[end], of["unit"], of["utc"]) for end in ("min", "max"))
    return Times(rows=of["rows"], missing=of["missing"], min=least, max=largest)


def _iso(time: int | None, unit: Literal["D", "us"], utc: bool) -> str | None:
    return None if time is None else str(np.datetime64(time, unit)) + "Z" * utc


def _blobs(of: dict[str, Any]) -> Blobs:
    count = of["rows"] - of["missing"]
    return Blobs(rows=of["rows"], missing=of["missing"], mean_bytes=of["bytes"] / count if count else None)


def _others(of: dict[str, Any]) -> Others:
    return Others(rows=of["rows"], missing=of["missing"])
