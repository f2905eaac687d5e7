"""An order-independent checksum of rows, the same whether Spark computes it before a hand-off or NumPy after it.

Each value gets the 64-bit XXH64 hash (Collet, 2012; Spark's `xxhash64` with its seed, 42) of one canonical form: integers,
booleans, days and microseconds as int64, floats as float64, text and bytes as they are, a decimal as its unscaled digits, NULL
as the seed itself. A row's hash is XXH64 of its values' hashes in the order of the columns' names, and the checksum is the sum
of the rows' hashes modulo 2^64: equal multisets of rows have equal checksums, however they are cut and ordered. Not
cryptographic.

Not here: arrays, maps and structs. A step turns them into text with to_json.
"""

import decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rayloom.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
LONGEST_DECIMAL = 18
"""Digits of a decimal that an int64 holds; Spark hashes longer ones as bytes."""


def row_hashes(table: pa.Table) -> np.ndarray:
    """uint64 (n,): a hash of each row's values.

    Raises:
        DataError: a column is of a type that is not flat.
    """
    hashes = np.full(len(table), SEED, np.uint64)
    for name in sorted(table.column_names):
        hashes = _hash_words(_column_hashes(name, table[name]), hashes)
    return hashes


def total(hashes: np.ndarray) -> int:
    """The sum of the hashes modulo 2^64."""
    return int(hashes.sum(dtype=np.uint64)) if len(hashes) else 0


def _hash_words(words: np.ndarray, seeds: np.ndarray | np.uint64) -> np.ndarray:
    """XXH64 of 8-byte inputs: uint64 (n,) of inputs, and a seed for each or one for all."""
    mixed = _rotate(words * _P2, 31) * _P1
    hashes = _rotate((seeds + _P5 + np.uint64(8)) ^ mixed, 27) * _P1 + _P4
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _rotate(bits: np.ndarray, by: int) -> np.ndarray:
    return (bits << np.uint64(by)) | (bits >> np.uint64(64 - by))


def _column_hashes(name: str, values: pa.ChunkedArray) -> np.ndarray:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _column_hashes(name, pc.cast(values, kind.value_type))
    if any(is_kind(kind) for is_kind in _BYTES):
        return _distinct_hashes(values, lambda value: value.encode() if isinstance(value, str) else value)
    if pa.types.is_decimal(kind):
        return _decimal_hashes(values)
    if pa.types.is_null(kind):
        return np.full(len(values), SEED, np.uint64)
    words = _hash_words(_words(name, values), np.uint64(SEED))
    return np.where(pc.is_null(values).to_numpy(), np.uint64(SEED), words) if values.null_count else words


_BYTES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def _words(name: str, values: pa.ChunkedArray) -> np.ndarray:
    """The 64 bits of each value's canonical form; anything where it is NULL."""
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(pc.cast(values, pa.float64()), 0.0).to_numpy() + 0.0  # -0.0 is 0.0
        return np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)  # NaN is one value whatever its bits
    if pa.types.is_date(kind):
        values = pc.cast(pc.cast(values, pa.date32()), pa.int32())
    elif pa.types.is_timestamp(kind):
        values = pc.cast(pc.cast(values, pa.timestamp("us", tz=kind.tz)), pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"Column {name} is of type {kind}, and a dataset version has flat columns; turn it to text with to_json."
        )
    return pc.fill_null(pc.cast(values, pa.int64()), 0).to_numpy().view(np.uint64)


def _distinct_hashes(values: pa.ChunkedArray, to_bytes) -> np.ndarray:
    """Hashes of bytes: each distinct value is hashed once."""
    encoded = pc.dictionary_encode(values).unify_dictionaries()
    if not encoded.num_chunks:
        return np.empty(0, np.uint64)
    distinct = encoded.chunk(0).dictionary.to_pylist()
    hashes = np.array([*(xxhash.xxh64_intdigest(to_bytes(value), SEED) for value in distinct), SEED], np.uint64)
    indices = np.concatenate([pc.fill_null(chunk.indices, len(distinct)).to_numpy() for chunk in encoded.chunks])
    return hashes[indices]


def _decimal_hashes(values: pa.ChunkedArray) -> np.ndarray:
    """Spark hashes the unscaled whole number: as int64, or where that is too short as its bytes, the highest first."""
    scale, short = values.type.scale, values.type.precision <= LONGEST_DECIMAL

    def to_bytes(value) -> bytes:
        unscaled = int(value.scaleb(scale))
        if short:
            return unscaled.to_bytes(8, "little", signed=True)
        return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)

    with decimal.localcontext(prec=80):
        return _distinct_hashes(values, to_bytes)


def spark_row_hash(schema: "StructType") -> "Column":
    """The same hash as a Spark column (LONG: the same 64 bits) of rows with this schema.

    Raises:
        DataError: a column is of a type that is not flat.
    """
    from pyspark.sql import functions as F

    fields = sorted(schema.fields, key=lambda field: field.name)
    return F.xxhash64(*[F.xxhash64(_canonical(field.name, field.dataType)) for field in fields])


def _canonical(name: str, kind: "DataType") -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    quoted = "`" + name.replace("`", "``") + "`"
    if isinstance(kind, T.StringType | T.BinaryType | T.DecimalType):
        return F.col(quoted)
    if isinstance(kind, T.FloatType | T.DoubleType):
        return F.expr(f"CAST({quoted} AS DOUBLE)")
    if isinstance(kind, T.DateType):
        return F.expr(f"CAST(unix_date({quoted}) AS BIGINT)")
    if isinstance(kind, T.TimestampType):
        return F.expr(f"unix_micros({quoted})")
    if isinstance(kind, T.TimestampNTZType):
        return F.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {quoted})")
    if isinstance(kind, T.IntegralType | T.BooleanType):
        return F.expr(f"CAST({quoted} AS BIGINT)")
    raise DataError(f"Column {name} is of type {kind.simpleString()}, not a flat one; turn it to text with to_json in a step.")
