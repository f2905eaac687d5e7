"""Mistakes in sources and SQL that are found without Spark: each with its key, and the nearest known name."""

import pytest

from rayloom.errors import ConfigError, SourceError
from rayloom.etl.check import check

PATH, COLUMNS, SQL = "etl.sources.raw.path", "etl.sources.raw.columns", "etl.steps.0.sql"


@pytest.fixture
def refusal(toy_pipeline, toy_csv):
    """The sentence that refuses the toy pipeline with these changes."""

    def refuse(error: type[Exception], changes: dict | None = None) -> str:
        with pytest.raises(error) as caught:
            check(toy_pipeline(changes))
        return str(caught.value)

    return refuse


def test_the_toy_pipeline_is_accepted(toy_pipeline, toy_csv):
    assert check(toy_pipeline())["raw"].types == {"id": "INT", "shade": "STRING", "size": "DOUBLE"}


def test_steps_may_be_left_out(toy_pipeline, toy_csv):
    check(toy_pipeline({"etl.steps": [], "features.label": "id"}))


def test_without_steps_columns_are_the_source_s(refusal, toy_csv):
    said = refusal(ConfigError, {"etl.steps": [], "features.label": "idd"})
    assert said.startswith("features.label: 'raw' gives no column 'idd'; did you mean 'id'?")


def test_a_missing_file_is_refused_with_its_key(refusal, tmp_path):
    said = refusal(SourceError, {PATH: str(tmp_path / "nowhere.csv")})
    assert said == f"etl.sources.raw: there is no file {tmp_path / 'nowhere.csv'}; correct etl.sources.raw.path."


def test_an_unknown_table_gets_the_nearest(refusal):
    said = refusal(ConfigError, {SQL: "SELECT id, shade, size FROM rwa"})
    assert said == "etl.steps.0 (rows): no source or earlier step 'rwa'; did you mean 'raw'? Known: raw."


def test_a_step_cannot_read_a_later_step(refusal):
    steps = [{"name": "first", "sql": "SELECT * FROM second"}, {"name": "second", "sql": "SELECT * FROM raw"}]
    assert refusal(ConfigError, {"etl.steps": steps}).startswith("etl.steps.0 (first): no source or earlier step 'second'")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, shad, size FROM raw",
        "SELECT r.shad FROM raw r",
        "SELECT id FROM raw WHERE shad = 'red'",
        "SELECT id FROM raw a JOIN raw b ON a.shad = b.id",
        "WITH w AS (SELECT shad FROM raw) SELECT * FROM w",
    ],
)
def test_an_unknown_column_in_a_step_gets_the_nearest(refusal, sql):
    assert refusal(ConfigError, {SQL: sql}).startswith("etl.steps.0 (rows): unknown column 'shad'; did you mean 'shade'?")


def test_a_common_table_expression_is_a_table(toy_pipeline, toy_csv):
    sql = "WITH w AS (SELECT * FROM raw) SELECT id, shade, size, 1 AS big FROM w"
    check(toy_pipeline({SQL: sql}))


def test_a_step_reads_what_an_earlier_step_gives(toy_pipeline, toy_csv):
    steps = [{"name": "first", "sql": "SELECT *, size > 1 AS big FROM raw"}, {"name": "second", "sql": "SELECT * FROM first"}]
    check(toy_pipeline({"etl.steps": steps}))


def test_names_in_capitals_stay_as_they_are(toy_pipeline, toy_csv):
    toy_csv.write_text("ID,Shade,size\n1,red,0.5\n")
    capitals = {
        COLUMNS: "ID INT, Shade STRING, size DOUBLE",
        SQL: "SELECT ID, Shade, size, size > 1 AS Big FROM raw",
        "etl.splits": {"train": "ID = 1", "validation": "ID = 2", "test": "ID = 3"},
        "etl.order_by": ["ID"],
        "features": {"label": "Big", "columns": {"Shade": {"kind": "category"}}},
    }
    check(toy_pipeline(capitals))


@pytest.mark.parametrize("sql", ["DROP TABLE raw", "INSERT INTO raw VALUES (1)", "SELECT 1; SELECT 2", "SELEC id FRM raw", " "])
def test_sql_that_is_no_single_select_is_refused(refusal, sql):
    assert refusal(ConfigError, {SQL: sql}).startswith("etl.steps.0 (rows): ")


def test_a_mistake_in_sql_is_refused_with_its_line_and_column(refusal):
    assert "Line 2, Col: 16" in refusal(ConfigError, {SQL: "SELECT id\nFROM raw WHERE ("})


def test_a_quote_without_an_end_is_refused(refusal):
    assert refusal(ConfigError, {SQL: "SELECT id FROM raw WHERE shade = 'red"}).startswith("etl.steps.0 (rows): ")


@pytest.mark.parametrize("name", ["raw", "rows"])
def test_a_name_that_is_taken_is_refused(refusal, name):
    steps = [{"name": "rows", "sql": "SELECT * FROM raw"}, {"name": name, "sql": "SELECT * FROM rows"}]
    assert refusal(ConfigError, {"etl.steps": steps}).startswith(f"etl.steps.1 ({name}): the name '{name}' is taken")


def test_keeps_of_an_unknown_step_gets_the_nearest(refusal):
    said = refusal(ConfigError, {"etl.steps.0.keeps": "rwa"})
    assert said.startswith("etl.steps.0 (rows): keeps: no source or earlier step 'rwa'; did you mean 'raw'?")


def test_unique_of_an_unknown_column_gets_the_nearest(refusal):
    said = refusal(ConfigError, {"etl.steps.0.unique": ["shad"]})
    assert said.startswith("etl.steps.0 (rows): unique: 'rows' gives no column 'shad'; did you mean 'shade'?")


def test_an_unknown_column_in_a_rule_is_refused(refusal):
    said = refusal(ConfigError, {"etl.rules.0.where": "shad IS NOT NULL"})
    assert said.startswith("etl.rules (has_size): unknown column 'shad'; did you mean 'shade'?")


def test_a_rule_sees_only_the_last_step(refusal):
    assert refusal(ConfigError, {"etl.rules.0.where": "extra = 'x'"}).startswith("etl.rules (has_size): unknown column")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_unknown_column_in_a_split_is_refused(refusal, split):
    said = refusal(ConfigError, {f"etl.splits.{split}": "shad = 'red'"})
    assert said.startswith(f"etl.splits.{split}: unknown column 'shad'; did you mean 'shade'?")


def test_a_split_that_is_no_condition_is_refused(refusal):
    assert refusal(ConfigError, {"etl.splits.test": "id = "}).startswith("etl.splits.test: not Spark SQL")


def test_an_unknown_column_in_order_by_is_refused(refusal):
    said = refusal(ConfigError, {"etl.order_by": ["id", "shad"]})
    assert said.startswith("etl.order_by: 'rows' gives no column 'shad'; did you mean 'shade'?")


def test_an_unknown_label_is_refused(refusal):
    said = refusal(ConfigError, {"features.label": "bigg"})
    assert said.startswith("features.label: 'rows' gives no column 'bigg'; did you mean 'big'?")


def test_an_unknown_feature_is_refused(refusal):
    said = refusal(ConfigError, {"features.columns.shad": {"kind": "category"}})
    assert said.startswith("features.columns: 'rows' gives no column 'shad'; did you mean 'shade'?")


def rule(**check) -> dict:
    return {"etl.rules": [{"name": "r", **check}]}


BY_TIME = {"by": "time", "column": "shad", "validation_from": "2013-01-01", "test_from": "2013-02-01"}
UNKNOWN = {
    "etl.sources.raw.clean": {"etl.sources.raw.clean": {"shad": ["trim"]}},
    "etl.deduplicate.by": {"etl.deduplicate": {"by": ["shad"]}},
    "etl.deduplicate.newest": {"etl.deduplicate": {"by": ["shade"], "newest": "shad"}},
    "etl.deduplicate.near.column": {"etl.deduplicate": {"near": {"column": "shad"}}},
    "etl.rules (r): not_null": rule(not_null=["shad"]),
    "etl.rules (r): range": rule(range={"shad": [0, 1]}),
    "etl.rules (r): allowed": rule(allowed={"shad": ["red"]}),
    "etl.rules (r): regex": rule(regex={"shad": "r.*"}),
    "etl.rules (r): unique": rule(unique=["shad"]),
    "etl.rules (r): foreign_key.columns": rule(foreign_key={"columns": ["shad"], "table": "raw", "to": ["shade"]}),
    "etl.rules (r): foreign_key.to": rule(foreign_key={"columns": ["shade"], "table": "raw", "to": ["shad"]}),
    "etl.outliers": {"etl.outliers": [{"column": "shad", "upper": 0.9}]},
    "etl.splits.key": {"etl.splits": {"by": "group", "key": ["shad"]}},
    "etl.splits.stratum": {"etl.splits": {"by": "stratified", "stratum": "shad"}},
    "etl.splits.column": {
        "etl.splits": {"by": "time", "column": "shad", "validation_from": "2013-01-01", "test_from": "2013-02-01"}
    },
    "features.known_after": {"features.known_after": ["shad"]},
}


@pytest.mark.parametrize("place", UNKNOWN)
def test_an_unknown_column_is_refused_with_its_key_and_the_nearest(refusal, toy_csv, place):
    table = "raw" if "sources" in place or "foreign_key.to" in place else "rows"
    said = refusal(ConfigError, UNKNOWN[place])
    assert said.startswith(f"{place}: '{table}' gives no column 'shad'; did you mean 'shade'?")


def test_a_foreign_key_to_an_unknown_table_gets_the_nearest(refusal, toy_csv):
    said = refusal(ConfigError, rule(foreign_key={"columns": ["shade"], "table": "rwa", "to": ["shade"]}))
    assert said.startswith("etl.rules (r): foreign_key: no source or step 'rwa'; did you mean 'raw'?")


@pytest.mark.parametrize(
    "changes",
    [
        rule(foreign_key={"columns": ["shade"], "table": "raw", "to": ["shade"]}),
        rule(unique=["id", "shade"]),
        {"etl.splits": {"by": "stratified", "stratum": "big"}},
        {"etl.deduplicate": {"by": ["id"], "newest": "size", "near": {"column": "shade"}}},
        {"etl.sources.raw.clean": {"shade": ["trim"]}},
    ],
)
def test_known_columns_are_accepted(toy_pipeline, toy_csv, changes):
    check(toy_pipeline(changes))


@pytest.mark.parametrize(
    "sql", ["SELECT *, id FROM raw", "SELECT *, id AS Id FROM raw", "SELECT * FROM raw a JOIN raw b ON a.id = b.id"]
)
def test_a_step_with_a_column_twice_is_refused(refusal, toy_csv, sql):
    assert refusal(ConfigError, {SQL: sql}).startswith("etl.steps.0 (rows): the column")


def test_a_column_that_the_build_adds_itself_is_refused(refusal, toy_csv):
    said = refusal(ConfigError, {SQL: "SELECT *, size > 1 AS big, 1 AS _split FROM raw"})
    assert said.startswith("'rows' gives a column '_split', a name that the build uses for itself")


def test_a_column_with_a_space_in_its_name_is_known(toy_pipeline, toy_csv):
    toy_csv.write_text("id,the shade,size\n1,red,0.5\n")
    changes = {
        COLUMNS: "id INT, `the shade` STRING, size DOUBLE",
        SQL: "SELECT id, `the shade` AS shade, size, 1 AS big FROM raw",
    }
    check(toy_pipeline(changes))
