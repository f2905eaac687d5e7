"""`rayloom quarantine show|replay`: rejected rows, and another try with corrections or a changed rule."""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

from rayloom import config, versions
from rayloom.cli import at_least, command, pipeline_of
from rayloom.commands.layout import section, shorten, table
from rayloom.commands.verbs import noun, verb
from rayloom.errors import DataError
from rayloom.versions import Version

LONGEST = 200
"""Characters of a raw value that a screen shows; --json and --csv have it whole."""


def add(commands: Any) -> None:
    verbs = noun(commands, "quarantine", "the rejected rows of a dataset version", "rayloom quarantine show")
    example = "rayloom quarantine show --rule has_size --patch-template corrections.csv"
    parser = verb(verbs, "show", show, "count rejected rows by source and rule, and show some", example)
    parser.add_argument("id", nargs="?", metavar="ID", help="its id, how it begins, or a pipeline's name (default: the newest)")
    parser.add_argument("--rule", help="only rows that this rule rejected")
    parser.add_argument("--limit", type=at_least(0), default=10, metavar="N", help="how many rows (default: 10)")
    parser.add_argument(
        "--patch-template", type=Path, metavar="FILE", help="also write a patch file to fill in, for these rows"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print the rows as CSV")
    example = "rayloom quarantine replay --patch corrections.csv"
    parser = verb(verbs, "replay", replay, "build the version anew, with corrections or a changed rule", example)
    parser.add_argument("--patch", type=Path, metavar="FILE", help="CSV of corrections: _source,_row,column,value")
    parser.add_argument("--parent", metavar="ID", help="the version whose quarantine is tried again (default: the newest)")


def show(parsed: argparse.Namespace) -> None:
    """Prints a version's rejected rows, and writes the patch file asked for."""
    from rayloom import quarantine

    pipeline = pipeline_of(parsed)
    version = versions.get(pipeline, parsed.id) if parsed.id else versions.newest(pipeline)
    counted = quarantine.counts(version)
    rows = quarantine.rows(version, parsed.limit, parsed.rule)
    if parsed.json:
        print(json.dumps(_data(version, counted, rows), indent=2))
    elif parsed.csv:
        csv.writer(sys.stdout).writerows(
            [quarantine.COLUMNS, *([row.source, row.rule, row.row, json.dumps(row.raw)] for row in rows)]
        )
    else:
        print("\n".join(_screen(version, counted, rows)))
    if parsed.patch_template:
        lines = quarantine.write_template(parsed.patch_template, rows, version, pipeline.etl.rules)
        print(
            f"{parsed.patch_template}: {lines:,} cells of {len(rows):,} rows. Correct the values, remove the other lines, then "
            f"rayloom quarantine replay --patch {parsed.patch_template}",
            file=sys.stderr,
        )


def _data(version: Version, counted: dict, rows: list) -> dict[str, Any]:
    return {
        "version": version.manifest.id,
        "counts": [{"_source": source, "_rule": rule, "rows": count} for (source, rule), count in counted.items()],
        "rows": [{"_source": row.source, "_rule": row.rule, "_row": row.row, "_raw": row.raw} for row in rows],
    }


def _screen(version: Version, counted: dict, rows: list) -> list[str]:
    lines = [f"{version.manifest.name} {version.manifest.id}: {sum(counted.values()):,} rows in quarantine", ""]
    cells = [[source, rule, f"{count:,}"] for (source, rule), count in counted.items()]
    lines += table([["source", "rule", "rows"], *cells], right=[2]) if cells else []
    for row in rows:
        text = "  ".join(f"{name}={shorten(json.dumps(value, ensure_ascii=False), LONGEST)}" for name, value in row.raw.items())
        lines += ["", f"{row.row}  {row.source}  {row.rule}", *section("", [text], 2)]
    return lines


def replay(parsed: argparse.Namespace) -> None:
    """Builds the pipeline's version with a patch, and says what became of the parent's quarantined rows."""
    from rayloom import quarantine

    parent = _parent(pipeline_of(parsed), parsed.parent)
    if parsed.patch:
        check_patch(parsed.patch, parent)
        parsed.set = [*parsed.set, f"etl.patch={json.dumps(str(parsed.patch.resolve()))}"]
    with command(parsed) as run:
        from rayloom import stages

        dataset = stages.etl(run, parent.manifest.id)
        if dataset.manifest.id == parent.manifest.id:
            raise DataError(
                f"This pipeline file gives version {parent.manifest.id} again: change a rule, or give corrections with --patch."
            )
        run.summary["replay"] = summarize(quarantine.outcome(parent, dataset), parent, dataset)


def _parent(pipeline: config.Pipeline, wanted: str | None) -> Version:
    parent = versions.get(pipeline, wanted) if wanted else versions.newest(pipeline)
    if parent.manifest.name != pipeline.name:
        raise DataError(f"Version {parent.manifest.id} is of {parent.manifest.name}, not of {pipeline.name}; correct --parent.")
    if not sum(parent.manifest.rejected.values()):
        raise DataError(f"Version {parent.manifest.id} has no quarantined row: there is nothing to replay.")
    return parent


def check_patch(file: Path, parent: Version) -> None:
    """Reads a patch file and holds it against the parent's quarantine. Raises DataError as `rayloom.quarantine` does."""
    from rayloom import quarantine

    quarantine.check_patch(file, quarantine.read_patch(file), versions.lineage(parent))


def summarize(outcome: Any, parent: Version, dataset: Version) -> dict[str, Any]:
    """The figures of a replay, for the run's summary."""
    patch = dataset.manifest.patch
    return {
        "parent": parent.manifest.id,
        "quarantined": outcome.quarantined,
        "readmitted": outcome.readmitted,
        "still_rejected": outcome.rejected,
        **({"corrections": patch.lines, "corrections_unmatched": patch.lines - patch.matched} if patch else {}),
    }
