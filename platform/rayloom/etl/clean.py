"""Cleaning of text before it is cast: white space, case, Unicode. Language-neutral: nothing here knows a word.

After `trim` and `text`, an empty text is missing (NULL). `trim` and `lower` are Spark SQL; the Unicode forms are not in it and
run in Python, a batch at a time.
"""

import unicodedata
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""The characters with Unicode's property White_Space."""

_SPACES = f"[{WHITE_SPACE}]+"


def clean(column: Column, operations: list[str]) -> Column:
    """A column of text, cleaned by these operations in their order.

    Args:
        column: STRING.
        operations: of config.sources.Cleaning.
            trim: Unicode white space at both ends goes; what is empty then is NULL.
            lower: lower case.
            unicode: Unicode's normal form C: one way to write an é.
            text: form KC (ligatures, full-width letters and the like as plain ones), control characters removed, runs of white
                space as one space, trimmed; what is empty then is NULL.
    """
    steps = {"trim": _trim, "lower": F.lower, "unicode": lambda text: _normalise("NFC")(text), "text": _text}
    for operation in operations:
        column = steps[operation](column)
    return column


def _trim(column: Column) -> Column:
    trimmed = F.call_function("trim", F.lit(WHITE_SPACE), column)
    return F.when(trimmed != "", trimmed)


def _text(column: Column) -> Column:
    return _trim(_normalise("NFKC", plain=True)(column))


def _normalise(form: Literal["NFC", "NFKC"], plain: bool = False):
    """A Spark function that brings text to a Unicode normal form; `plain` also drops controls and unites white space."""

    @F.pandas_udf("string")  # type: ignore[call-overload]
    def normalise(texts: pd.Series) -> pd.Series:
        # Not Arrow's utf8_normalize, which takes letters apart for NFC and NFKC too (seen with pyarrow 25.0.1).
        forms = [unicodedata.normalize(form, text) if isinstance(text, str) else None for text in texts]
        values = pa.array(forms, pa.string())
        if plain:
            values = pc.replace_substring_regex(values, _SPACES, " ")
            values = pc.replace_substring_regex(values, r"\p{Cc}+", "")
            values = pc.replace_substring_regex(values, " +", " ")  # a control between two spaces has gone
        return values.to_pandas()

    return normalise
