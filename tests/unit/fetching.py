"""What the tests of sources share: a source's settings as plain data, to its rows, or to the sentence that refuses it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from rayloom import config
from rayloom.errors import RayloomError
from rayloom.etl import sources


def settings(**given: Any) -> config.Source:
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
    return TypeAdapter(config.Source).validate_python(plain)


def fetched(scratch: Path, **given: Any) -> sources.Fetched:
    """The source 'raw' with these settings, brought into a new folder within `scratch`."""
    folder = scratch / f"scratch-{len(list(scratch.glob('scratch-*')))}"
    folder.mkdir()
    return sources.fetch(sources.open_source("raw", settings(**given)), folder)


def table(scratch: Path, **given: Any) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in fetched(scratch, **given).paths])


def rows(scratch: Path, **given: Any) -> list[tuple]:
    return [tuple(row.values()) for row in table(scratch, **given).to_pylist()]


def refusal(scratch: Path, **given: Any) -> str:
    """The sentence that refuses the source, when it is opened or fetched."""
    with pytest.raises(RayloomError) as caught:
        fetched(scratch, **given)
    said = str(caught.value)
    assert "\n" not in said and said.endswith(".")
    return said
