"""s3:// against a local server that speaks S3: files, globs, folders, and what cannot be had; hdfs:// without Hadoop."""

import gzip
import zipfile
from collections.abc import Callable, Iterator

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from moto.core import set_initial_no_auth_action_count
from moto.server import ThreadedMotoServer

from rayloom.etl.sources.schema import infer
from tests.unit.fetching import fetched, refusal, rows, settings

BUCKET = "records"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def put(server, monkeypatch) -> Callable[[str, bytes], str]:
    """Puts an object into the bucket, for a client that knows the server from its environment."""
    environment = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_REGION": "us-east-1"}
    for name, value in {**environment, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=server, region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)

    def put(key: str, body: bytes) -> str:
        client.put_object(Bucket=BUCKET, Key=key, Body=body)
        return f"s3://{BUCKET}/{key}"

    return put


def test_a_csv_file(tmp_path, put):
    assert rows(tmp_path, path=put("one/raw.csv", b"a,b\n1,2\n"), columns="b INT") == [("2",)]


def test_the_content_has_the_fingerprint_that_it_has_here(tmp_path, put):
    there = fetched(tmp_path, path=put("one/raw.csv", b"a,b\n1,2\n"), columns="b INT")
    (tmp_path / "raw.csv").write_bytes(b"a,b\n1,2\n")
    assert fetched(tmp_path, path=tmp_path / "raw.csv", columns="b INT").sha256 == there.sha256


def test_a_long_file_comes_whole(tmp_path, put):
    path = put("long/raw.csv", b"a,b\n" + b"12345,6789\n" * 2_000_000)
    assert fetched(tmp_path, path=path, columns="a INT").paths[0].stat().st_size > 0
    assert len(rows(tmp_path, path=path, columns="a INT")) == 2_000_000


def test_a_gzip_and_a_zip(tmp_path, put):
    with zipfile.ZipFile(tmp_path / "raw.zip", "w") as archive:
        archive.writestr("raw.csv", "a\n2\n")
    paths = [put("packed/1.csv.gz", gzip.compress(b"a\n1\n")), put("packed/2.csv.zip", (tmp_path / "raw.zip").read_bytes())]
    assert rows(tmp_path, path=paths, columns="a INT") == [("1",), ("2",)]


@pytest.mark.parametrize("place", ["parts", "parts/", "parts/*.csv", "par*/?.csv", "**/[12].csv"])
def test_folders_and_globs(tmp_path, put, place):
    for name in ("1.csv", "2.csv"):
        put(f"parts/{name}", f"a\n{name}\n".encode())
    put("parts/notes.md", b"no data")
    assert rows(tmp_path, path=f"s3://{BUCKET}/{place}", columns="a STRING") == [("1.csv",), ("2.csv",)]


def test_parquet_is_brought_here(tmp_path, put):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "raw.parquet")
    found = fetched(tmp_path, path=put("raw.parquet", (tmp_path / "raw.parquet").read_bytes()))
    assert found.raw == {"a": "BIGINT"}
    assert found.paths[0].read_bytes() == (tmp_path / "raw.parquet").read_bytes()


def test_a_folder_of_texts(tmp_path, put):
    put("texts/sport/1.txt", b"x")
    put("texts/tech/2.txt", b"y")
    found = rows(tmp_path, path=f"s3://{BUCKET}/texts", kind="text")
    assert found == [("sport/1.txt", "sport", "x"), ("tech/2.txt", "tech", "y")]


def test_a_delta_table(tmp_path, put, server):
    for version in range(2):
        options = {"allow_http": "true", "aws_s3_allow_unsafe_rename": "true"}
        write_deltalake(f"s3://{BUCKET}/delta", pa.table({"a": [version]}), mode="append", storage_options=options)
    assert rows(tmp_path, kind="delta", path=f"s3://{BUCKET}/delta", version=0) == [(0,)]


def test_types_are_proposed(put):
    assert infer("raw", settings(path=put("one/raw.csv", b"a,b\n1,x\n"))) == "a INT, b STRING"


@pytest.mark.parametrize("place", ["no/raw.csv", "no/*.csv"])
def test_a_missing_key_is_refused(tmp_path, put, place):
    said = refusal(tmp_path, path=f"s3://{BUCKET}/{place}", columns="a INT")
    assert f"s3://{BUCKET}/{place}; correct etl.sources.raw.path" in said


def test_a_missing_bucket_is_refused(tmp_path, put):
    assert "s3://no-such-bucket/raw.csv" in refusal(tmp_path, path="s3://no-such-bucket/raw.csv", columns="a INT")


@set_initial_no_auth_action_count(0)
def test_credentials_that_are_refused_are_said_to_be(tmp_path, put):
    said = refusal(tmp_path, path=f"s3://{BUCKET}/one/raw.csv", columns="a INT")
    assert "cannot be read (access denied); check AWS_ACCESS_KEY_ID" in said and "s3cret" not in said


def test_a_server_that_is_not_there_is_refused_without_secrets(tmp_path, put, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    said = refusal(tmp_path, path=f"s3://{BUCKET}/raw.csv", columns="a INT")
    assert "cannot be read (network connection); check AWS_ACCESS_KEY_ID" in said and "s3cret" not in said


def test_hdfs_without_hadoop_s_client_is_refused(tmp_path):
    said = refusal(tmp_path, path="hdfs://namenode:8020/raw.csv", columns="a INT")
    assert "hdfs:// needs Hadoop's client, and libhdfs or its Java was not found" in said
