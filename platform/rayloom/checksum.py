"""An order-independent checksum of rows: equal multisets of rows give equal sums, however they are cut and ordered.

Each row gets a 64-bit hash of its values; the hashes are added modulo 2^64. Types are brought to one form first (integers to
int64, floats to float64, text to UTF-8), so that the same rows through different carriers are the same. Not cryptographic.
"""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

NULL = np.uint64(0x9E3779B97F4A7C15)
NAN = -(2.0**1000) - 2.0**960
"""Stands for all NaNs; a number that no data holds."""


def row_hashes(table: pa.Table) -> np.ndarray:
    """uint64 (n,): a hash of each row's values. Columns count by name, not by position."""
    hashes = np.zeros(len(table), np.uint64)
    for name in sorted(table.column_names):
        seed = pd.util.hash_array(np.array([name], object))[0]
        # Mixing after each column makes the sum depend on which column holds which value.
        hashes = _mix(hashes ^ _column_hashes(table[name]) ^ seed)
    return hashes


def total(hashes: np.ndarray) -> int:
    """The sum of the hashes modulo 2^64."""
    return int(hashes.sum(dtype=np.uint64)) if len(hashes) else 0


def _column_hashes(values: pa.ChunkedArray) -> np.ndarray:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text_hashes(values)
    if pa.types.is_floating(kind):
        # NaN is one value whatever its bits, and -0.0 equals 0.0.
        numbers = pc.fill_null(pc.cast(values, pa.float64()), 0.0).to_numpy() + 0.0
        numbers = np.where(np.isnan(numbers), NAN, numbers)
        bits = numbers.view(np.uint64)
    else:
        bits = pc.fill_null(pc.cast(_to_integers(values), pa.int64()), 0).to_numpy().view(np.uint64)
    return np.where(pc.is_null(values).to_numpy(), NULL, _mix(bits))


def _to_integers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Booleans, integers and times as integers: days of a date, microseconds of a timestamp."""
    if pa.types.is_date(values.type):
        return pc.cast(pc.cast(values, pa.date32()), pa.int32())
    if pa.types.is_timestamp(values.type):
        return pc.cast(pc.cast(values, pa.timestamp("us", tz=values.type.tz)), pa.int64())
    return values


def _text_hashes(values: pa.ChunkedArray) -> np.ndarray:
    encoded = pc.dictionary_encode(pc.cast(values, pa.string())).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    texts = encoded.dictionary.to_numpy(zero_copy_only=False).astype(object)
    distinct = np.append(pd.util.hash_array(texts), NULL)
    return distinct[pc.fill_null(encoded.indices, len(distinct) - 1).to_numpy()]


def _mix(bits: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes half of the output bits."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
