"""A dataset version's rejected rows: how many and which, a patch file that corrects them, and what a replay came to.

The quarantine is Parquet in <version>/quarantine, a row for each rejected one: `_source` (source, or last step), `_rule`,
`_row` (16 hexadecimal digits that identify the row's content) and `_raw` (the row as it was, a JSON object).

A patch is a CSV file with the columns `_source,_row,column,value`, a line for each corrected cell; an empty value is a
missing one. Applying it is the build's part (etl.patch).
"""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from rayloom import config
from rayloom.errors import DataError, hint
from rayloom.versions import Version

COLUMNS = ["_source", "_rule", "_row", "_raw"]
PATCH = ["_source", "_row", "column", "value"]
ROW = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Rejected:
    """A row in the quarantine; `raw` has its values by column."""

    source: str
    rule: str
    row: str
    raw: dict[str, Any]


@dataclass(frozen=True)
class Correction:
    """A line of a patch file: `line` is its number, `value` the text that stands in the row's `column` from now on."""

    line: int
    source: str
    row: str
    column: str
    value: str


@dataclass(frozen=True)
class Outcome:
    """What became of a version's quarantined rows in another version.

    Attributes:
        quarantined: rows in the first version's quarantine.
        readmitted: of them, those that are not in the other's quarantine.
        rejected: the others, by the rule that they break now.
    """

    quarantined: int
    readmitted: int
    rejected: dict[str, int]


def _blocks(version: Version, columns: list[str], wanted: pads.Expression | None = None) -> Iterator[pa.RecordBatch]:
    """The quarantine's rows a block at a time, in the files' order; none where nothing was rejected."""
    files = sorted((version.folder / "quarantine").glob("*.parquet"))
    if files:
        yield from pads.dataset(files, format="parquet").to_batches(columns=columns, filter=wanted)


def counts(version: Version) -> dict[tuple[str, str], int]:
    """Quarantined rows by source and rule."""
    found: dict[tuple[str, str], int] = {}
    for block in _blocks(version, ["_source", "_rule"]):
        grouped = pa.Table.from_batches([block]).group_by(["_source", "_rule"]).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
            key = (row["_source"], row["_rule"])
            found[key] = found.get(key, 0) + row["count_all"]
    return dict(sorted(found.items()))


def rows(version: Version, limit: int, rule: str | None = None) -> list[Rejected]:
    """The first `limit` quarantined rows, of one rule or of all.

    Raises:
        DataError: no row was rejected by `rule`.
    """
    found: list[Rejected] = []
    for block in _blocks(version, COLUMNS, None if rule is None else pc.field("_rule") == rule):
        found += [_rejected(row) for row in block.slice(0, limit - len(found)).to_pylist()]
        if len(found) >= limit:
            break
    if rule is not None and not found:
        rules = {name for _, name in counts(version)}
        raise DataError(f"No row of version {version.manifest.id} was rejected by the rule '{rule}'{hint(rule, rules)}")
    return found


def _rejected(row: dict[str, str]) -> Rejected:
    return Rejected(row["_source"], row["_rule"], row["_row"], json.loads(row["_raw"]))


def write_template(file: Path, rejected: list[Rejected], version: Version, rules: list[config.Rule]) -> int:
    """A patch file to fill in: the cells that made the rule reject a row, or all of a row where that is not known.

    Returns:
        Its lines.

    Raises:
        DataError: the file is there already, or cannot be written.
    """
    concerned = {rule.name: columns_of(rule) for rule in rules}
    lines = [
        (row.source, row.row, column, _text(row.raw[column]))
        for row in rejected
        for column in _cells(row, version, concerned.get(row.rule, []))
    ]
    try:
        with file.open("x", newline="") as opened:
            csv.writer(opened).writerows([PATCH, *lines])
    except FileExistsError:
        raise DataError(f"{file} exists, and may hold corrections; give --patch-template another name.") from None
    except OSError as error:
        raise DataError(f"{file} cannot be written ({error.strerror}); give --patch-template another name.") from None
    return len(lines)


def _text(value: Any) -> str:
    """A raw value as a patch has it: text as it is, NULL as nothing, others as JSON."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _cells(row: Rejected, version: Version, concerned: list[str]) -> list[str]:
    counted = version.manifest.sources.get(row.source)
    named = list(counted.uncastable) if row.rule == "uncastable" and counted else concerned
    return [column for column in row.raw if column in named] or list(row.raw)


def columns_of(rule: config.Rule) -> list[str]:
    """The columns that a rule looks at."""
    if rule.where is not None:
        import sqlglot  # a third of a second that only this needs

        return sorted({column.name for column in sqlglot.parse_one(rule.where, dialect="spark").find_all(sqlglot.exp.Column)})
    check = getattr(rule, rule.check)
    return list(check.columns if isinstance(check, config.ForeignKey) else check)


def read_patch(file: Path) -> list[Correction]:
    """A patch file's lines.

    Raises:
        DataError: it cannot be read, lacks a column, or has a row id that is none, no column, or a cell twice.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, strict=True)
            header = list(reader.fieldnames or [])
            missing = [name for name in PATCH if name not in header]
            if missing:
                raise DataError(f"{file}: its header lacks {', '.join(missing)}; a patch has the columns {','.join(PATCH)}.")
            corrections = [_correction(file, reader.line_num, line) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file}: the patch cannot be read ({reason}); name a CSV file in UTF-8 with --patch.") from None
    cells: dict[tuple[str, str, str], int] = {}
    for item in corrections:
        first = cells.setdefault((item.source, item.row, item.column), item.line)
        if first != item.line:
            raise DataError(f"{file}:{item.line}: {item.column} of row {item.row} stands in line {first}, too; remove one.")
    if not corrections:
        raise DataError(f"{file} has no correction; fill it in, a line for each corrected cell.")
    return corrections


def _correction(file: Path, number: int, line: dict[str, str]) -> Correction:
    values = [line.get(name) for name in PATCH]
    if None in line or None in values:
        raise DataError(f"{file}:{number}: not as many values as the header has; quote a value that holds a comma.")
    source, row, column, value = map(str, values)
    if not ROW.fullmatch(row):
        raise DataError(
            f"{file}:{number}: _row is '{row:.40}', not 16 hexadecimal digits; copy it from `rayloom quarantine show`."
        )
    if not column:
        raise DataError(f"{file}:{number}: the column is missing; name the column that the value is for.")
    return Correction(number, source, row, column, value)


def check_patch(file: Path, corrections: list[Correction], lineage: list[Version]) -> None:
    """Holds a patch against the quarantine of a version and of those that it is itself a replay of.

    Raises:
        DataError: a line names a row that was never rejected, or a column that its row does not have.
    """
    ids = pa.array(sorted({item.row for item in corrections}))
    known: dict[tuple[str, str], set[str]] = {}
    for version in lineage:
        for block in _blocks(version, COLUMNS, pc.field("_row").isin(ids)):
            for row in map(_rejected, block.to_pylist()):
                known.setdefault((row.source, row.row), set()).update(row.raw)
    unknown = [item for item in corrections if (item.source, item.row) not in known]
    if unknown:
        more = f"; {len(unknown) - 1} more lines name such rows" if len(unknown) > 1 else ""
        raise DataError(
            f"{file}:{unknown[0].line}: version {lineage[0].manifest.id} has no quarantined row {unknown[0].row} of "
            f"'{unknown[0].source}'{more}; copy _source and _row from `rayloom quarantine show`."
        )
    for item in corrections:
        columns = known[item.source, item.row]
        if item.column not in columns:
            raise DataError(f"{file}:{item.line}: '{item.source}' has no column '{item.column}'{hint(item.column, columns)}")


def outcome(parent: Version, replayed: Version) -> Outcome:
    """What became of the parent's quarantined rows. Rows are told apart by content: of equal ones, all count alike."""
    before = _keys(parent)
    still = _keys(replayed)
    mended = pc.invert(pc.is_in(before["key"], value_set=still["key"].combine_chunks()))
    again = still.filter(pc.is_in(still["key"], value_set=before["key"].combine_chunks()))
    rules = {item["values"]: item["counts"] for item in pc.value_counts(again["_rule"]).to_pylist()}
    return Outcome(len(before), pc.sum(mended).as_py() or 0, dict(sorted(rules.items())))


def _keys(version: Version) -> pa.Table:
    """`_rule` and a key (source and row id) of each quarantined row."""
    schema = pa.schema([(name, pa.string()) for name in ("_source", "_rule", "_row")])
    found = pa.Table.from_batches([block.cast(schema) for block in _blocks(version, schema.names)], schema)
    key = pc.binary_join_element_wise(found["_source"], found["_row"], "/")
    return pa.table({"_rule": found["_rule"], "key": key})
