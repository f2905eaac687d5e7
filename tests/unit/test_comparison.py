"""What changed from one dataset version to another."""

import math

import numpy as np
import pyarrow as pa
import pytest

from rayloom import versions
from rayloom.comparison import column_change, compare, stability
from rayloom.statistics import ColumnStatistics, finish, summarize


def of(values) -> ColumnStatistics:
    return finish(summarize(pa.table({"x": pa.array(values)})))["x"]


def manifest(table: pa.Table, **fields) -> versions.Manifest:
    below = {
        "id": "a", "name": "toy", "format": versions.FORMAT, "inputs": {}, "config_hash": "", "rows_in": len(table),
        "columns": {field.name: str(field.type) for field in table.schema}, "rejected": {},
        "splits": {"train": versions.Content(rows=len(table), checksum="")},
        "statistics": {"train": finish(summarize(table))},
    }  # fmt: skip
    return versions.Manifest.model_validate(below | fields)


TABLE = pa.table({"size": [1.0, 2.0, 3.0], "shade": ["red", "red", "blue"]})


def test_a_version_is_like_itself():
    found = compare(manifest(TABLE), manifest(TABLE))
    assert (found.inputs, found.config, found.added, found.removed, found.retyped, found.statistics) == ({}, {}, {}, {}, {}, {})
    assert found.counts == {"in": [3, 3], "accepted": [3, 3], "train": [3, 3]}


def test_inputs_and_config_that_changed_are_named_by_their_keys():
    rules = [{"name": "a", "where": "x > 1"}, {"name": "b", "where": "y > 1"}]
    before = manifest(TABLE, inputs={"raw": "1", "old": "2"}, config={"rules": rules, "order_by": ["id"]})
    changed = [{"name": "new", "where": "z"}, rules[0], {"name": "b", "where": "y > 2"}]
    found = compare(before, manifest(TABLE, inputs={"raw": "3"}, config={"rules": changed, "order_by": ["id"]}))
    assert found.inputs == {"raw": ["1", "3"], "old": ["2", None]}
    assert found.config == {
        "rules.b.where": ["y > 1", "y > 2"], "rules.new.name": [None, "new"], "rules.new.where": [None, "z"],
    }  # fmt: skip


def test_columns_that_came_went_or_have_another_type_are_named():
    after = pa.table({"size": ["1", "2", "3"], "weight": [1, 2, 3]})
    found = compare(manifest(TABLE), manifest(after))
    assert (found.added, found.removed) == ({"weight": "int64"}, {"shade": "string"})
    assert found.retyped == {"size": ["double", "string"]}
    assert found.statistics == {"size": {"kind": ["number", "text"]}}


def test_a_count_that_only_one_has_is_0_in_the_other():
    found = compare(manifest(TABLE), manifest(TABLE, rows_in=5, rejected={"rule": 2}))
    assert (found.counts["in"], found.counts["rejected: rule"]) == ([3, 5], [0, 2])


def test_the_most_changed_column_comes_first():
    draw = np.random.default_rng(1).normal(0, 1, 500)
    tables = [pa.table({"calm": draw + small, "wild": draw + large}) for small, large in ((0, 0), (0.1, 3))]
    assert list(compare(*map(manifest, tables)).statistics) == ["wild", "calm"]


def test_a_shift_is_in_deviations_of_the_earlier_version():
    change = column_change(of([1.0, 3.0]), of([4.0, 6.0]))
    assert (change["shift"], change["mean"]) == (3.0, [2.0, 5.0])


def test_a_constant_has_no_shift():
    assert "shift" not in column_change(of([1.0, 1.0]), of([2.0, 2.0]))


def test_missing_values_are_compared_by_share():
    assert column_change(of([1, None]), of([1, 1, None, None])) == {}
    assert column_change(of([1, 1]), of([1, None]))["missing"] == [0.0, 0.5]


def test_values_that_came_and_went_are_named():
    change = column_change(of(["red", "blue"]), of(["red", "green"]))
    assert (change["new"], change["lost"]) == (["green"], ["blue"])


def test_the_stability_index_of_categories_is_that_of_its_formula():
    before, after = of(["a"] * 6 + ["b"] * 4), of(["a"] * 3 + ["b"] * 7)
    assert stability(before, after) == pytest.approx(-0.3 * math.log(0.3 / 0.6) + 0.3 * math.log(0.7 / 0.4))


def test_the_stability_index_of_many_numbers_is_that_of_their_quantiles_bins():
    draw = np.random.default_rng(2)
    before, after = draw.normal(0, 1, 4000), draw.normal(0.5, 1, 4000)
    edges = np.quantile(before, [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
    p, q = (np.histogram(x, [-np.inf, *edges, np.inf])[0] / 4000 for x in (before, after))
    assert stability(of(before), of(after)) == pytest.approx(float(((q - p) * np.log(q / p)).sum()), rel=0.15)
    assert stability(of(before), of(before)) == 0


@pytest.mark.parametrize("values", [[None, None], [], ["x"]], ids=str)
def test_nothing_to_compare_is_no_change(values):
    column = of(pa.array(values, pa.string()))
    assert column_change(column, column) == {}
