"""SQL queries, on SQLite and on a PostgreSQL server of this module's own: types, exactness, and what is refused."""

import datetime
import sqlite3
import sys
import time
from collections.abc import Iterator
from decimal import Decimal

import pgserver
import psycopg
import pytest

from rayloom.errors import RayloomError
from rayloom.etl.sources import packed
from tests.unit.fetching import fetched, refusal, rows, settings


@pytest.fixture
def database(tmp_path):
    """A SQLite file with a row of each type and one of NULLs; its url."""
    with sqlite3.connect(tmp_path / "raw.db") as connection:
        connection.execute(
            "CREATE TABLE t (i INTEGER, d DECIMAL(20,4), day DATE, s TEXT, r REAL, b BOOLEAN, at DATETIME, bytes BLOB, "
            "v VARCHAR(9))"
        )
        row = (1, 0.1001, "2024-07-01", "x", 1.5, 1, "2024-07-01 00:00:00", b"\0\xff", "v")
        connection.execute(f"INSERT INTO t VALUES ({','.join('?' * len(row))})", row)
        connection.execute("INSERT INTO t (i) VALUES (NULL)")
    return f"sqlite:///{tmp_path}/raw.db"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """A PostgreSQL server with the same in table t; its url."""
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    with psycopg.connect(server.get_uri()) as connection:
        connection.execute(
            "CREATE TABLE t (i int, l bigint, d numeric(20,4), n numeric, at timestamptz, wall timestamp, day date, b bool, "
            "r float8, f float4, s text, bytes bytea, id uuid, doc jsonb, list int[])"
        )
        connection.execute(
            "INSERT INTO t VALUES (1, 2, 0.1001, 1.5, '2024-07-01T00:00:00+02:00', '2024-07-01', '2024-07-01', true, 1.5, 2.5, "
            "'x', '\\x00ff', '550e8400-e29b-41d4-a716-446655440000', '{\"a\": 1}', '{1,2}')"
        )
        connection.execute("INSERT INTO t (i) VALUES (NULL)")
    yield server.get_uri()
    server.cleanup()


MIDNIGHT = datetime.datetime(2024, 7, 1)


def test_sqlite_has_the_types_of_its_tables(tmp_path, database):
    found = fetched(tmp_path, kind="sql", url=database, query="SELECT * FROM t")
    assert " ".join(found.raw.values()) == "BIGINT DECIMAL(20,4) DATE STRING DOUBLE BOOLEAN TIMESTAMP_NTZ BINARY STRING"


def test_sqlite_gives_exact_values(tmp_path, database):
    first, second = rows(tmp_path, kind="sql", url=database, query="SELECT * FROM t ORDER BY i DESC")
    assert first == (1, Decimal("0.1001"), MIDNIGHT.date(), "x", 1.5, True, MIDNIGHT, b"\0\xff", "v")
    assert set(second) == {None}


def test_sqlite_expressions_have_the_types_of_their_values(tmp_path, database):
    query = "SELECT i + 1 AS a, i * 1.5 AS b, upper(s) AS c, NULL AS d FROM t"
    assert list(fetched(tmp_path, kind="sql", url=database, query=query).raw.values()) == [
        "BIGINT",
        "DOUBLE",
        "STRING",
        "STRING",
    ]


def test_sqlite_columns_that_are_declared_come_as_text_to_be_cast(tmp_path, database):
    given = {"kind": "sql", "url": database, "query": "SELECT * FROM t", "columns": "d DECIMAL(20,4), i INT, bytes BINARY"}
    found = fetched(tmp_path, **given)
    assert (list(found.opened.types), found.raw) == (["d", "i", "bytes"], {"d": "STRING", "i": "STRING", "bytes": "BINARY"})
    assert rows(tmp_path, **given)[0] == ("0.1001", "1", b"\0\xff")


def test_sqlite_values_that_break_their_column_s_promise_are_refused(tmp_path, database):
    with sqlite3.connect(tmp_path / "raw.db") as connection:
        connection.execute("INSERT INTO t (i) VALUES ('12abc')")
    said = refusal(tmp_path, kind="sql", url=database, query="SELECT i FROM t")
    assert "the column 'i' has '12abc', which is no int64; declare the column in etl.sources.raw.columns" in said


def test_sqlite_is_not_changed(tmp_path, database):
    before = (tmp_path / "raw.db").read_bytes()
    fetched(tmp_path, kind="sql", url=database, query="SELECT * FROM t")
    assert (tmp_path / "raw.db").read_bytes() == before


def test_a_file_that_is_not_there_is_refused_and_not_made(tmp_path):
    said = refusal(tmp_path, kind="sql", url=f"sqlite:///{tmp_path}/no.db", query="SELECT 1 AS a")
    assert said == f"etl.sources.raw: there is no file {tmp_path}/no.db; correct etl.sources.raw.url."
    assert not (tmp_path / "no.db").exists()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "raw.db").write_text("no database, but long enough to be looked at as one" * 100)
    assert "file is not a database" in refusal(tmp_path, kind="sql", url=f"sqlite:///{tmp_path}/raw.db", query="SELECT 1 AS a")


def test_postgresql_has_the_server_s_types_and_others_as_text(tmp_path, server):
    found = fetched(tmp_path, kind="sql", url=server, query="SELECT * FROM t")
    expected = "INT BIGINT DECIMAL(20,4) DECIMAL(38,18) TIMESTAMP TIMESTAMP_NTZ DATE BOOLEAN DOUBLE FLOAT STRING BINARY"
    assert " ".join(found.raw.values()) == f"{expected} STRING STRING STRING"
    assert found.opened.types == found.raw


def test_postgresql_gives_exact_values(tmp_path, server):
    first, second = rows(tmp_path, kind="sql", url=server, query="SELECT * FROM t ORDER BY i")
    at = datetime.datetime(2024, 6, 30, 22, tzinfo=datetime.UTC)
    assert first[:6] == (1, 2, Decimal("0.1001"), Decimal("1.5"), at, MIDNIGHT)
    assert first[6:12] == (MIDNIGHT.date(), True, 1.5, 2.5, "x", b"\0\xff")
    assert first[12:] == ("550e8400-e29b-41d4-a716-446655440000", '{"a": 1}', "{1,2}")
    assert set(second) == {None}


def test_postgresql_columns_that_are_declared_come_with_the_server_s_types(tmp_path, server):
    found = fetched(tmp_path, kind="sql", url=server, query="SELECT * FROM t", columns="d DOUBLE, i BIGINT")
    assert (found.opened.types, found.raw) == ({"d": "DOUBLE", "i": "BIGINT"}, {"d": "DECIMAL(20,4)", "i": "INT"})


def test_rows_come_in_bounded_parts(tmp_path, server, monkeypatch):
    monkeypatch.setattr(packed, "MAX_ROWS", 1500)
    query = "SELECT n, repeat('x', 10) AS s FROM generate_series(1, 20000) AS n"
    assert rows(tmp_path, kind="sql", url=server, query=query) == [(n, "x" * 10) for n in range(1, 20_001)]


@pytest.mark.parametrize("value", ["'NaN'::numeric", "1.2345678901234567891", "1e30::numeric"])
def test_a_number_that_would_not_be_exact_is_refused(tmp_path, server, value):
    said = refusal(tmp_path, kind="sql", url=server, query=f"SELECT {value} AS a")
    assert "the column 'a' has a value that is no decimal128(38, 18)" in said


def test_a_time_without_end_is_refused(tmp_path, server):
    assert "PostgreSQL refused" in refusal(tmp_path, kind="sql", url=server, query="SELECT 'infinity'::timestamp AS a")


@pytest.mark.parametrize("url", ["database", "server"])
@pytest.mark.parametrize(
    "query, said",
    [
        ("SELECT nosuch FROM t", "etl.sources.raw: (SQLite|PostgreSQL) refused .*nosuch"),
        ("SELECT i, i FROM t", "etl.sources.raw.query: the column 'i' stands twice; name one by AS"),
        ('SELECT i, s AS "I" FROM t', "'i' and 'I' differ in case alone"),
        ("DELETE FROM t", "expected one SELECT that changes nothing"),
        ("SELECT 1; SELECT 2", "expected one SELECT that changes nothing"),
        ("WITH x AS (DELETE FROM t RETURNING i) SELECT * FROM x", "expected one SELECT that changes nothing"),
        ("SELECT i FROM t FOR UPDATE", "expected one SELECT that changes nothing|not SQL as sqlite has it"),
        ("SELEC i FRM t", "not SQL as (sqlite|postgres) has it"),
        ("", "expected one SELECT"),
    ],
)
def test_queries_that_are_refused(tmp_path, request, url, query, said):
    with pytest.raises(RayloomError, match=said):
        fetched(tmp_path, kind="sql", url=request.getfixturevalue(url), query=query)


@pytest.mark.parametrize("query", ["SELECT i FROM t;", "WITH x AS (SELECT i FROM t) SELECT * FROM x -- all of them"])
@pytest.mark.parametrize("url", ["database", "server"])
def test_queries_that_are_accepted(tmp_path, request, url, query):
    assert len(rows(tmp_path, kind="sql", url=request.getfixturevalue(url), query=query)) == 2


def test_a_function_that_writes_is_refused_by_the_server(tmp_path, server):
    with psycopg.connect(server) as connection:
        connection.execute("CREATE SEQUENCE counter")
    said = refusal(tmp_path, kind="sql", url=server, query="SELECT nextval('counter') AS a")
    assert "read-only transaction" in said


@pytest.mark.parametrize("url", ["database", "server"])
def test_a_declared_column_that_the_query_does_not_give_gets_the_nearest(tmp_path, request, url):
    given = {"kind": "sql", "url": request.getfixturevalue(url), "query": "SELECT i AS shade FROM t", "columns": "shad INT"}
    assert "etl.sources.raw.query gives no column 'shad', which `columns` declares; did you mean 'shade'?" in refusal(
        tmp_path, **given
    )


@pytest.mark.parametrize("address", ["me@127.0.0.1:9", "me@no-such-host.invalid"])
def test_a_server_that_is_not_there_is_refused_within_seconds_without_the_password(tmp_path, monkeypatch, address):
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    start = time.monotonic()
    said = refusal(tmp_path, kind="sql", url=f"postgresql://{address}/db", query="SELECT 1 AS a")
    assert "PostgreSQL cannot be reached" in said and "s3cret" not in said and time.monotonic() - start < 6


def test_a_wrong_database_is_refused(tmp_path, server):
    said = refusal(tmp_path, kind="sql", url=server.replace("/postgres?", "/nowhere?"), query="SELECT 1 AS a")
    assert 'database "nowhere" does not exist' in said


@pytest.mark.parametrize("url", ["postgresql://me:s3cret@host/db", "postgresql://host/db?user=me&password=s3cret"])
def test_a_password_in_the_url_is_refused_and_not_shown(url):
    with pytest.raises(ValueError, match="a password does not belong into a pipeline file") as caught:
        settings(kind="sql", url=url, query="SELECT 1")
    assert "s3cret" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("url", ["mysql://host/db", "raw.db", "sqlite://", "sqlite:///", ""])
def test_a_url_of_no_known_database_is_refused(url):
    with pytest.raises(ValueError, match="the url names no"):
        settings(kind="sql", url=url, query="SELECT 1")


def test_the_fingerprint_is_that_of_the_rows_in_any_order(tmp_path, server):
    def of(query: str) -> str:
        return fetched(tmp_path, kind="sql", url=server, query=query).sha256

    up, down = (of(f"SELECT n FROM generate_series(1, 100) AS n ORDER BY n {way}") for way in ("ASC", "DESC"))
    assert up == down != of("SELECT n FROM generate_series(1, 101) AS n")


def test_a_missing_driver_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = refusal(tmp_path, kind="sql", url="postgresql://host/db", query="SELECT 1 AS a")
    assert "PostgreSQL needs the package psycopg; run `pip install 'psycopg[binary]'`" in said
