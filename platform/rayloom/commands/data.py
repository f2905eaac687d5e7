"""`rayloom data list|show|diff`: the dataset versions that there are, what each holds, and what changed between two."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rayloom import comparison, config, versions
from rayloom.cli import pipeline_of
from rayloom.commands.layout import WIDTH, counts, number, section, share, shorten, size, table, titled
from rayloom.commands.verbs import noun, verb
from rayloom.errors import DataError, hint
from rayloom.statistics import Blobs, ColumnStatistics, Numbers, Texts, Times
from rayloom.versions import Manifest, Version

SHA = 8
"""Digits of a sha256 that are shown."""

MEASURES = (
    "kind", "new", "lost", "mean", "distinct", "mean_bytes", "mean_length", "min", "max", "shortest", "longest", "deviation",
)  # fmt: skip
"""The measures of a column's change in the order in which a line has room for them."""


def add(commands: Any) -> None:
    verbs = noun(commands, "data", "the dataset versions below storage.root", "rayloom data show")
    parser = verb(verbs, "list", list_versions, "list a pipeline's versions, newest first", "rayloom data list --all")
    parser.add_argument("--all", action="store_true", help="versions of all pipelines below storage.root")
    _add_json(parser)
    parser = verb(verbs, "show", show, "show what a version holds", "rayloom data show news --split test")
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="its id, how it begins, or a pipeline's name (default: the newest of --config)"
    )
    _add_split(parser)
    _add_json(parser)
    parser = verb(verbs, "diff", diff, "show what changed from version A to version B", "rayloom data diff 3f2a 91c0")
    parser.add_argument("before", metavar="A", help="the earlier version's id, how it begins, or a pipeline's name")
    parser.add_argument("after", metavar="B", help="the later one's")
    _add_split(parser)
    _add_json(parser)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--split", default="train", help="the split whose statistics are shown (default: train)")


def list_versions(parsed: argparse.Namespace) -> None:
    """Prints a line for each version."""
    pipeline = pipeline_of(parsed)
    found, unreadable = versions.versions(pipeline.storage.path(), None if parsed.all else pipeline.name)
    for sentence in unreadable:
        print(f"note: {sentence}", file=sys.stderr)
    if parsed.json:
        print(json.dumps([_listed(version) for version in found], indent=2))
        return
    if not found:
        whose = "any pipeline" if parsed.all else pipeline.name
        print(f"No dataset version of {whose} in {pipeline.storage.path()}; run jobs.etl.")
        return
    splits = _in_order({split for version in found for split in version.manifest.splits})
    rows = [["pipeline", "id", "made (UTC)", *splits, "rejected", "size"]]
    rows += [_line(version, splits) for version in found]
    print("\n".join(table(rows, right=range(3, len(rows[0])))))


def _listed(version: Version) -> dict[str, Any]:
    of = version.manifest
    return {
        "name": of.name,
        "id": of.id,
        "made": of.made,
        "rows": {split: content.rows for split, content in of.splits.items()},
        "rejected": sum(of.rejected.values()),
        "bytes": version.size,
        "folder": str(version.folder),
    }


def _line(version: Version, splits: list[str]) -> list[str]:
    of = version.manifest
    rows = [f"{of.splits[split].rows:,}" if split in of.splits else "-" for split in splits]
    return [of.name, of.id, _made(of), *rows, f"{sum(of.rejected.values()):,}", size(version.size)]


def _made(of: Manifest) -> str:
    return of.made[:16].replace("T", " ")


def show(parsed: argparse.Namespace) -> None:
    """Prints a version's counts, what it was made of, and its columns' statistics."""
    pipeline = pipeline_of(parsed)
    version = versions.get(pipeline, parsed.id) if parsed.id else versions.newest(pipeline)
    of = version.manifest
    if parsed.json:
        print(of.model_dump_json(indent=2))
        return
    require_split(of, parsed.split)
    lines = [f"{of.name} {of.id}  made {_made(of)} UTC  {size(version.size)}  format {of.format}", str(version.folder), ""]
    lines += [*_counts(of), *_made_of(of), *_label(of, pipeline)]
    lines += section("notes", of.notes)
    print("\n".join([*lines, "", *_statistics(of, parsed.split)]))


def require_split(of: Manifest, split: str) -> None:
    """Raises DataError where a version has no such split."""
    if split not in of.splits:
        raise DataError(f"Version {of.id} has no split '{split}'{hint(split, of.splits)}")


def _in_order(splits: Iterable[str]) -> list[str]:
    """Names of splits: train, validation, test, and any other after them."""
    return sorted(
        splits, key=lambda split: (config.SPLITS.index(split) if split in config.SPLITS else len(config.SPLITS), split)
    )


def _counts(of: Manifest) -> list[str]:
    patch = [f"{of.patch.matched:,} of {of.patch.lines:,} corrections met a row"] if of.patch else []
    return [
        *section("rows", [of.balance]),
        *section("splits", counts({split: of.splits[split].rows for split in _in_order(of.splits)})),
        *section("rejected", counts(of.rejected)),
        *section("dropped", counts(of.deduplicated)),
        *section("warned", counts(of.warned)),
        *section("clipped", counts(of.clipped)),
        *section("patch", patch),
    ]


def _made_of(of: Manifest) -> list[str]:
    rows = []
    for source, sha in of.inputs.items():
        read = of.sources.get(source)
        rows.append([source, f"sha256 {sha[:SHA]}", f"{read.rows:,} rows" if read else "", _set_aside(read) if read else ""])
    parent = [f"{of.parent}, whose quarantined rows were tried again"] if of.parent else []
    return [
        *titled("inputs", table(rows, right=[2])),
        *section("config", [f"sha256 {of.config_hash[:SHA]}"]),
        *section("parent", parent),
    ]


def _set_aside(read: versions.SourceCounts) -> str:
    texts = [f"{read.set_aside:,} set aside"] if read.set_aside else []
    texts += [f"uncastable {name}: {' '.join(counts(kinds))}" for name, kinds in read.uncastable.items() if any(kinds.values())]
    return "; ".join(texts)


def _label(of: Manifest, pipeline: config.Pipeline) -> list[str]:
    """A line for each class with its rows and their share by split, where the pipeline file is this version's."""
    name = pipeline.features.label
    labels = {split: of.statistics[split][name] for split in _in_order(of.statistics) if name in of.statistics[split]}
    classes = {split: label.top for split, label in labels.items() if isinstance(label, Numbers | Texts) and label.top}
    if of.name != pipeline.name or not classes or len(classes) < len(of.statistics):
        return []
    others = {split: label.rows - label.missing - sum(classes[split].values()) for split, label in labels.items()}
    rows = [[shorten(name, 24), *(cell for split in classes for cell in (split, ""))]]
    for value in dict.fromkeys(value for top in classes.values() for value in top):
        counted = {split: top.get(value, None if others[split] else 0) for split, top in classes.items()}
        rows.append([shorten(value, 24), *_cells(counted, labels)])
    if any(others.values()):
        rows.append(["others", *_cells(others, labels)])
    return titled("classes", table(rows, right=range(1, len(rows[0]))))


def _cells(counted: Mapping[str, int | None], labels: dict[str, ColumnStatistics]) -> list[str]:
    """A class's rows and share in each split; empty where it is one of those that were not kept apart."""
    present = {split: label.rows - label.missing for split, label in labels.items()}
    return [
        cell
        for split, rows in counted.items()
        for cell in (("", "") if rows is None else (f"{rows:,}", share(rows / present[split])))
    ]


def _top(of: ColumnStatistics, width: int) -> str:
    """The most frequent values with their shares, as many as fit."""
    top = (of.top if isinstance(of, Numbers | Texts) else None) or {}
    present = max(1, of.rows - of.missing)
    text = ""
    for value, count in top.items():
        more = f"{', ' if text else ''}{shorten(value, 24)} {share(count / present)}"
        if len(text + more) > width:
            return text + " …" * (len(text) + 2 <= width)
        text += more
    return text


def _statistics(of: Manifest, split: str) -> list[str]:
    """A line for each column: figures under headings for numbers, what fits in their place for others."""
    statistics = of.statistics.get(split, {})
    figures = {name: _figures(column) for name, column in statistics.items() if isinstance(column, Numbers)}
    headings = ["mean", "deviation", "min", "median", "max"] if figures else []
    heads = [[f"{split} column", "type", "missing"]]
    heads += [
        [shorten(name, 20), shorten(of.columns.get(name, ""), 12), share(column.missing / column.rows if column.rows else 0.0)]
        for name, column in statistics.items()
    ]
    left = table(heads, right=[2])
    right = iter(table([headings, *figures.values()], right=range(5)))
    width = max(map(len, left)) + 2
    lines = [(left[0].ljust(width) + next(right)).rstrip()]
    for (name, column), line in zip(statistics.items(), left[1:], strict=True):
        lines.append((line.ljust(width) + (next(right) if name in figures else _described(column, WIDTH - width))).rstrip())
    return lines


def _figures(of: Numbers) -> list[str]:
    return [number(value) for value in (of.mean, of.deviation, of.min, of.quantiles.get("50%"), of.max)]


def _described(of: ColumnStatistics, width: int) -> str:
    if of.missing == of.rows:
        return "no value"
    match of:
        case Texts():
            start = f"{'about ' if of.estimated else ''}{of.distinct:,} values: "
            text = start + _top(of, width - len(start)) if of.top and len(of.top) else start.rstrip(": ")
            between = f"{of.shortest:,} to {of.longest:,}" if of.shortest != of.longest else f"{of.longest:,}"
            lengths = f", {between} characters, mean {of.mean_length:,.0f}"
            every_one_differs = of.distinct > (of.rows - of.missing) / 2 or not of.top
            return (start.rstrip(": ") + lengths)[:width] if every_one_differs else text
        case Times():
            return f"{of.min} to {of.max}"[:width]
        case Blobs():
            return f"mean {size(of.mean_bytes or 0)}"
        case _:
            return ""


def diff(parsed: argparse.Namespace) -> None:
    """Prints what changed from one version to another."""
    pipeline = pipeline_of(parsed)
    before, after = (versions.get(pipeline, wanted).manifest for wanted in (parsed.before, parsed.after))
    for of in (before, after):
        require_split(of, parsed.split)
    changed = comparison.compare(before, after, parsed.split)
    if parsed.json:
        print(json.dumps({"before": before.id, "after": after.id, **dataclasses.asdict(changed)}, indent=2))
        return
    lines = [f"{end:<12}{of.name} {of.id}  made {_made(of)} UTC" for end, of in (("from", before), ("to", after))]
    lines += ["", *_changed_makings(changed), *_changed_schema(changed), *_changed_counts(changed), ""]
    same = len([name for name in before.statistics.get(parsed.split, {}) if name not in changed.statistics])
    lines += [f"{parsed.split} statistics: {len(changed.statistics)} columns changed (the most changed first), {same} did not"]
    print("\n".join([*lines, *_changed_statistics(changed)]))


def _changed_makings(changed: comparison.Comparison) -> list[str]:
    inputs = [f"{source}  {' -> '.join((sha or 'none')[:SHA] for sha in pair)}" for source, pair in changed.inputs.items()]
    keys = [f"{key}: {' -> '.join(_value(value) for value in pair)}" for key, pair in changed.config.items()]
    return [*section("inputs", inputs or ["the same"]), *section("config", keys or ["the same"])]


def _value(value: Any) -> str:
    return "none" if value is None else shorten(value if isinstance(value, str) else json.dumps(value), 60)


def _changed_schema(changed: comparison.Comparison) -> list[str]:
    texts = [f"+ {name} {kind}" for name, kind in changed.added.items()]
    texts += [f"- {name} {kind}" for name, kind in changed.removed.items()]
    texts += [f"~ {name} {before} -> {after}" for name, (before, after) in changed.retyped.items()]
    return section("schema", texts or ["the same"])


def _changed_counts(changed: comparison.Comparison) -> list[str]:
    rows = [["rows", "from", "to", "change"]]
    for name, (before, after) in changed.counts.items():
        growth = f" ({100 * (after - before) / before:+.1f} %)" if before and after != before else ""
        rows.append([f"  {name}", f"{before:,}", f"{after:,}", f"{after - before:+,}{growth}" if after != before else "same"])
    return table(rows, right=[1, 2])


def _changed_statistics(changed: comparison.Comparison) -> list[str]:
    """A line for each column: how far it shifted, and what does not fit is in --json."""
    rows = [["  column", "shift", "PSI", "missing", "from -> to (shift: of the mean, in deviations)"]]
    for name, change in changed.statistics.items():
        shift = f"{change['shift']:+.2f}" if "shift" in change else ""
        psi = f"{change['psi']:.3f}" if "psi" in change else ""
        missing = " -> ".join(map(share, change["missing"])) if "missing" in change else ""
        rows.append([f"  {shorten(name, 22)}", shift, psi, missing, _change(change)])
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in table(rows, right=[1, 2])]


def _change(change: comparison.Change) -> str:
    texts = []
    for measure in MEASURES:
        value = change.get(measure)
        if value is not None and measure in ("new", "lost"):
            texts.append(f"{measure} {', '.join(shorten(text, 20) for text in value)}")
        elif value is not None:
            texts.append(f"{measure.replace('_', ' ')} {' -> '.join(map(number, value))}")
    return "; ".join(texts)
