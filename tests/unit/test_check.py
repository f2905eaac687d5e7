"""Mistakes in sources and SQL that are found without Spark: each with its key, and the nearest known name."""

import zipfile

import pytest

from rayloom.errors import ConfigError, SourceError
from rayloom.etl import sources
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


@pytest.fixture
def zipped(tmp_path):
    """Writes a zip file of these members."""

    def write(members: dict[str, str]) -> str:
        path = tmp_path / "raw.csv.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        return str(path)

    return write


def test_the_toy_pipeline_is_accepted(toy_pipeline, toy_csv):
    found = check(toy_pipeline())["raw"]
    assert (found.path, found.header) == (toy_csv, ["id", "shade", "size", "extra"])


def test_columns_that_are_not_declared_are_text(toy_pipeline, toy_csv):
    assert check(toy_pipeline())["raw"].ddl() == "`id` INT, `shade` STRING, `size` DOUBLE, `extra` STRING"


def test_the_ddl_follows_the_header_not_the_declaration(toy_pipeline, toy_csv):
    found = check(toy_pipeline({COLUMNS: "size DOUBLE, shade STRING, id INT"}))["raw"]
    assert found.ddl() == "`id` INT, `shade` STRING, `size` DOUBLE, `extra` STRING"


def test_a_missing_file_is_refused_with_its_key(refusal, tmp_path):
    said = refusal(SourceError, {PATH: str(tmp_path / "nowhere.csv")})
    assert said == f"etl.sources.raw: there is no file {tmp_path / 'nowhere.csv'}; correct etl.sources.raw.path."


def test_a_missing_package_is_refused_with_the_command_that_installs_it(refusal):
    said = refusal(SourceError, {PATH: "package:no_such_package/raw.csv"})
    assert "etl.sources.raw: the package 'no_such_package' is not installed; run `pip install no_such_package`" in said


def test_a_missing_package_with_a_dotted_name_is_refused(refusal):
    assert "is not installed" in refusal(SourceError, {PATH: "package:no_such_package.inner/raw.csv"})


def test_a_missing_file_of_a_package_is_refused(refusal):
    assert "there is no file" in refusal(SourceError, {PATH: "package:yaml/nowhere.csv"})


def test_a_file_of_a_package_is_found(tmp_path, monkeypatch):
    (tmp_path / "toybox").mkdir()
    (tmp_path / "toybox" / "raw.csv").write_text("id\n1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sources.locate("raw", "package:toybox/raw.csv") == tmp_path / "toybox" / "raw.csv"


def test_a_declared_column_that_the_header_lacks_gets_the_nearest(refusal, toy_csv):
    said = refusal(SourceError, {COLUMNS: "id INT, shades STRING, size DOUBLE"})
    assert said.startswith(f"{toy_csv}: no column 'shades', which etl.sources.raw.columns declares; did you mean 'shade'?")


def test_a_byte_order_mark_is_no_part_of_the_header(toy_pipeline, toy_csv):
    toy_csv.write_bytes(b"\xef\xbb\xbf" + toy_csv.read_bytes())
    assert check(toy_pipeline())["raw"].header[0] == "id"


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n1,2\n", b"\xef\xbb\xbf", b",,\n"])
def test_a_file_without_a_header_is_refused(refusal, toy_csv, content):
    toy_csv.write_bytes(content)
    assert refusal(SourceError).startswith(f"{toy_csv} is empty")


def test_a_header_that_is_not_utf8_is_refused(refusal, toy_csv):
    toy_csv.write_bytes("größe,id\n".encode("latin-1"))
    assert f"{toy_csv}: the header is not UTF-8" in refusal(SourceError)


def test_a_header_without_an_end_is_refused(refusal, toy_csv):
    toy_csv.write_text('"' + "x" * 200_000)
    assert str(toy_csv) in refusal(SourceError)


def test_a_quoted_header_is_read(toy_pipeline, toy_csv):
    toy_csv.write_text('"id","shade","size","a, b"\n')
    assert check(toy_pipeline())["raw"].header == ["id", "shade", "size", "a, b"]


def test_a_zip_with_one_csv_is_read(toy_pipeline, zipped):
    path = zipped({"inner/raw.csv": "id,shade,size\n"})
    assert check(toy_pipeline({PATH: path}))["raw"].header == ["id", "shade", "size"]


def test_a_zip_is_unpacked_whole(toy_pipeline, zipped, tmp_path):
    text = "id,shade,size\n" + "1,red,0.5\n" * 1000
    found = check(toy_pipeline({PATH: zipped({"inner/raw.csv": text})}))["raw"]
    assert sources.unpack(found, tmp_path).read_text() == text


@pytest.mark.parametrize("members", [{}, {"a.csv": "id\n", "b.csv": "id\n"}])
def test_a_zip_with_another_number_of_files_than_one_is_refused(refusal, zipped, members):
    assert f"holds {len(members)} files" in refusal(SourceError, {PATH: zipped(members)})


def test_a_truncated_zip_is_refused(refusal, zipped, tmp_path):
    path = zipped({"raw.csv": "id,shade,size\n" * 1000})
    whole = (tmp_path / "raw.csv.zip").read_bytes()
    (tmp_path / "raw.csv.zip").write_bytes(whole[: len(whole) // 2])
    assert "is not a whole zip file" in refusal(SourceError, {PATH: path})


def test_a_zip_with_damaged_content_is_refused(refusal, zipped, tmp_path):
    path = zipped({"raw.csv": "id,shade,size\n" + "".join(f"{n},red,{n * n}\n" for n in range(5000))})
    damaged = bytearray((tmp_path / "raw.csv.zip").read_bytes())
    damaged[40:60] = b"\xff" * 20
    (tmp_path / "raw.csv.zip").write_bytes(damaged)
    assert "raw.csv.zip: the header cannot be read" in refusal(SourceError, {PATH: path})


def test_text_named_zip_is_refused(refusal, tmp_path):
    (tmp_path / "raw.zip").write_text("id,shade,size\n")
    assert "is not a whole zip file" in refusal(SourceError, {PATH: str(tmp_path / "raw.zip")})


@pytest.mark.parametrize("ddl", ["", "id", "id INT, shade", "id INT)", "42", "'id INT"])
def test_columns_that_are_no_ddl_are_refused(refusal, ddl):
    assert refusal(ConfigError, {COLUMNS: ddl}).startswith("etl.sources.raw.columns ")


def test_types_with_arguments_are_ddl():
    assert sources.declared_types("raw", "a DECIMAL(10, 2), b STRING") == {"a": "DECIMAL(10, 2)", "b": "STRING"}


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
    assert said.startswith("etl.steps.0 (rows): unique: the step 'rows' gives no column 'shad'; did you mean 'shade'?")


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
    assert said.startswith("etl.order_by: the step 'rows' gives no column 'shad'; did you mean 'shade'?")


def test_an_unknown_label_is_refused(refusal):
    said = refusal(ConfigError, {"features.label": "bigg"})
    assert said.startswith("features.label: the step 'rows' gives no column 'bigg'; did you mean 'big'?")


def test_an_unknown_feature_is_refused(refusal):
    said = refusal(ConfigError, {"features.columns.shad": {"kind": "category"}})
    assert said.startswith("features.columns: the step 'rows' gives no column 'shad'; did you mean 'shade'?")


def test_the_fingerprint_stays_while_the_bytes_stay(toy_csv):
    assert sources.fingerprint(toy_csv) == sources.fingerprint(toy_csv)


def test_the_fingerprint_changes_with_one_byte(toy_csv):
    before = sources.fingerprint(toy_csv)
    toy_csv.write_bytes(toy_csv.read_bytes().replace(b"0.5", b"0.6"))
    assert sources.fingerprint(toy_csv) != before
