"""Sampled records: what a file holds, when it is written, what is dropped rather than waited for, and which files go."""

import base64
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pandas
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from rayloom import config
from rayloom.features import ImageState, TextState
from rayloom.serving import capture
from rayloom.serving.capture import Capture, Found, outdated
from rayloom.serving.predictor import Predictor
from rayloom.serving.schema import Schema
from tests.unit.conftest import Clock

NOW = 1_700_000_000.25
OURS = ["_time", "_request", "_row", "_label", "_probability", "_probabilities", "_unseen", "_cut"]


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def keep(tmp_path, clock):
    """Makes a replica's capture that keeps everything, with other settings where they are named."""

    def make(replica: str = "5f0c9a71e2b4d86001000000", folder: str = "records", **settings) -> Capture:
        return Capture(config.Records(**{"share": 1.0, **settings}), tmp_path / folder, replica, clock)

    return make


@pytest.fixture
def predictor(toy_bundle) -> Predictor:
    return Predictor(toy_bundle)


@pytest.fixture
def take(predictor, toy_records):
    """Has a capture take a request of these records."""

    def give(kept: Capture, records: list[dict] | None = None, version: int = 3, request: str = "r1", size: int = 100) -> None:
        records = toy_records if records is None else records
        answers = predictor.answer(records)
        kept.take(version, predictor.schema, request, size, predictor.schema.read(records), answers)

    return give


def files(kept: Capture) -> list[Path]:
    return sorted(path for path in kept.folder.rglob("*") if path.is_file())


def rows(kept: Capture) -> pa.Table:
    return pyarrow.dataset.dataset(kept.folder, partitioning="hive").to_table()


def test_a_row_is_the_record_its_answer_and_where_it_came_from(keep, take, predictor, toy_records):
    kept = keep()
    take(kept)
    kept.gather(last=True)
    found, answers = rows(kept), predictor.answer(toy_records)
    assert found.column_names == [*predictor.schema.arrow.names, *OURS, "model_version"]
    assert found.select(predictor.schema.arrow.names) == predictor.schema.table(predictor.schema.read(toy_records))
    assert found["_time"].to_pylist() == [datetime.fromtimestamp(NOW, UTC)] * 8
    assert found["_probability"].to_pylist() == [answer["probability"] for answer in answers]
    assert found["_label"].to_pylist() == [answer["label"] for answer in answers]
    assert found["_unseen"].to_pylist() == [answer.get("unseen", []) for answer in answers]
    assert (found["_row"].to_pylist(), set(found["_request"].to_pylist())) == ([*range(8)], {"r1"})
    assert found["model_version"].to_pylist() == [3] * 8


def test_pandas_reads_all_versions_in_one_line(keep, take):
    kept = keep()
    take(kept, version=3)
    take(kept, version=4)
    kept.gather(last=True)
    assert pandas.read_parquet(kept.folder).groupby("model_version", observed=True).size().to_dict() == {3: 8, 4: 8}


def test_all_files_have_one_schema(keep, take, toy_records):
    """Whatever is missing, unseen or cut in one of them."""
    kept = keep()
    for records in (toy_records, [dict.fromkeys(toy_records[0])], [{**toy_records[0], "carrier": "never seen" * 9}]):
        take(kept, records)
        kept.gather(last=True)
    schemas = [pq.read_schema(path) for path in files(kept)]
    assert len(schemas) == 3 and schemas[0].equals(schemas[1]) and schemas[0].equals(schemas[2])


def test_of_more_than_two_classes_each_has_its_probability(predictor, toy_records):
    answer = {"label": "tea", "probability": 0.75, "probabilities": {"milk": 0.25, "tea": 0.75}}
    one = capture.Taken(NOW, 3, predictor.schema, "r1", 9, predictor.schema.read(toy_records[:1]), [answer])
    (row,) = capture.table([one], 16).to_pylist()
    assert (row["_label"], row["_probability"]) == ("tea", 0.75)
    assert row["_probabilities"] == [("milk", 0.25), ("tea", 0.75)]


TEXT = TextState(tokenizer="{}", max_tokens=4, vocabulary=4)
IMAGE = ImageState(height=2, width=3, channels=1, resize=False, mean=[0.5], deviation=[0.25])


@pytest.mark.parametrize(
    ("state", "value", "kept"),
    [
        (TEXT, "x" * 16, "x" * 16),
        (TEXT, "x" * 17, "x" * 16),
        (TEXT, "é" * 8 + "x", "é" * 8),
        (TEXT, "x" + "é" * 8, "x" + "é" * 7),
        (IMAGE, base64.b64encode(b"x" * 16).decode(), b"x" * 16),
        (IMAGE, base64.b64encode(b"x" * 17).decode(), None),
        (TEXT, None, None),
    ],
)
def test_a_cell_is_bounded_and_the_row_says_so(state, value, kept):
    schema = Schema({"it": state})
    cells, cut = capture.limited(schema.table(schema.read([{"it": value}, {"it": None}])), 16)
    whole = value is None or schema.read([{"it": value}])["it"] == [kept]
    assert (cells["it"].to_pylist(), cut) == ([kept, None], [[] if whole else ["it"], []])


def test_a_file_is_begun_after_so_many_rows(keep, take):
    kept = keep(rotate_rows=12)
    take(kept)
    kept.gather()
    assert files(kept) == []
    take(kept)
    kept.gather()
    assert [pq.read_metadata(path).num_rows for path in files(kept)] == [16]


def test_a_file_is_begun_after_so_many_seconds(keep, take, clock):
    kept = keep(rotate_s=60.0)
    take(kept)
    written = []
    for clock.now in (NOW, NOW + 59, NOW + 60, NOW + 120):
        kept.gather()
        written.append(len(files(kept)))
    assert written == [0, 0, 1, 1]


def test_what_is_left_is_written_at_the_end(keep, take):
    kept = keep()
    kept.start()
    take(kept)
    kept.close()
    assert (len(rows(kept)), kept.written, kept.thread.is_alive()) == (8, 8, False)


def test_replicas_of_the_same_moment_write_files_of_their_own(keep, take):
    for replica in ("aa", "bb", "aa"):
        kept = keep(replica)
        kept.files = 1 if replica == "aa" and files(kept) else 0
        take(kept)
        kept.gather(last=True)
    assert len(files(kept)) == 3 and all(capture.NAMED.fullmatch(path.name) for path in files(kept))


def test_a_file_that_is_being_written_is_hidden_from_readers(keep, take, monkeypatch):
    kept = keep()
    take(kept)
    kept.gather(last=True)
    seen = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(len(rows(kept))))
    take(kept)
    kept.gather(last=True)
    assert (seen, len(rows(kept))) == ([8], 16)


def test_what_finds_no_room_is_dropped_and_counted(keep, take):
    kept = keep(max_waiting_rows=20, rotate_rows=20)
    for _ in range(3):
        take(kept)
    assert (len(kept.waiting), kept.dropped) == (2, 8)
    kept.gather()
    take(kept)
    assert kept.dropped == 16  # the rows of a file to come are in memory, too
    kept.gather(last=True)
    take(kept)
    assert (kept.dropped, kept.written, len(kept.waiting)) == (16, 16, 1)


def test_large_bodies_find_no_room_long_before_their_rows_are_many(keep, take, toy_records):
    kept = keep()
    for _ in range(3):
        take(kept, toy_records[:1], size=capture.WAITING_BYTES // 2)
    assert (len(kept.waiting), kept.dropped) == (2, 1)
    kept.gather()
    take(kept, toy_records[:1], size=capture.WAITING_BYTES)
    assert len(kept.waiting) == 1


def test_a_disk_that_takes_nothing_costs_the_rows_and_is_told_of_once(keep, take, caplog, tmp_path):
    kept = keep(folder="file")
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.ERROR, "rayloom.serving"):
        for _ in range(3):
            take(kept)
            kept.gather(last=True)
    assert (kept.dropped, kept.written, len(caplog.records)) == (24, 0, 1)
    (tmp_path / "file").unlink()
    take(kept)
    kept.gather(last=True)
    assert (kept.dropped, kept.written) == (24, 8)


def test_rows_that_fit_no_table_are_dropped_and_the_next_are_kept(keep, take, predictor, toy_records):
    kept = keep()
    kept.take(3, predictor.schema, "r0", 9, predictor.schema.read(toy_records), [{}] * 8)
    kept.gather()
    take(kept)
    kept.gather(last=True)
    assert (kept.dropped, kept.written) == (8, 8)


@pytest.mark.parametrize(("share", "chosen"), [(0.0, 0), (1.0, 1000)])
def test_all_or_nothing_is_chosen(keep, share, chosen):
    kept = keep(share=share)
    assert sum(kept.is_chosen() for _ in range(1000)) == chosen


def test_a_share_is_chosen_by_chance(keep):
    kept = keep(share=0.25)
    assert 2100 < sum(kept.is_chosen() for _ in range(10_000)) < 2900  # nine deviations


def test_the_counts_are_told(keep, take):
    kept = keep()
    take(kept)
    kept.gather(last=True)
    kept.lost = 2
    lines = kept.exposition("toy").splitlines()
    assert 'rayloom_records_written_total{model="toy"} 8' in lines and 'rayloom_records_dropped_total{model="toy"} 2' in lines


DAY = 86400.0


def named(number: int, hidden: bool = False) -> Path:
    return Path(f"{'.' * hidden}2026010{number}T000000000000-aa-000000.parquet")


@pytest.mark.parametrize(
    ("ages", "sizes", "gone"),
    [
        ([0, 1, 2], [1, 1, 1], []),
        ([0, 1, 3.1], [1, 1, 1], [2]),
        ([2, 0, 1], [4 << 20, 4 << 20, 4 << 20], [0]),
        ([0, 1, 2], [30 << 20, 1, 1], [1, 2]),
    ],
    ids=["none", "too old", "too many bytes", "the newest stays"],
)
def test_files_that_are_over_are_removed(ages, sizes, gone):
    settings = config.Records(keep_days=3.0, keep_bytes="10m")
    files = [Found(named(place), NOW - age * DAY, size) for place, (age, size) in enumerate(zip(ages, sizes, strict=True))]
    assert sorted(outdated(files, NOW, settings)) == [named(place) for place in gone]


@pytest.mark.parametrize(("age", "gone"), [(10.0, 0), (capture.LEFT_S + 1, 1)])
def test_what_a_killed_process_left_is_removed_in_the_end(age, gone):
    assert len(outdated([Found(named(1, hidden=True), NOW - age, 1)], NOW, config.Records())) == gone


def test_removing_touches_no_other_file(keep, take, clock):
    kept = keep(keep_days=1.0)
    take(kept)
    kept.gather(last=True)
    mine, other = files(kept)[0], kept.folder / "model_version=3" / "mine.parquet"
    other.write_bytes(b"")
    for path in (mine, other):
        os.utime(path, (NOW - 2 * DAY, NOW - 2 * DAY))
    take(kept)
    kept.gather(last=True)
    assert not mine.exists() and other.exists() and len(files(kept)) == 2


def test_more_rows_in_a_file_than_may_wait_are_refused():
    with pytest.raises(ValueError, match=r"rotate_rows is 20,000 and max_waiting_rows is 100"):
        config.Records(max_waiting_rows=100)


@pytest.mark.parametrize(("given", "expected"), [(None, "/root/serving/toy-records"), ("/elsewhere", "/elsewhere")])
def test_the_folder_is_below_the_storage_root_unless_another_is_named(given, expected):
    assert capture.folder_of(Path("/root"), "toy", config.Records(folder=given)) == Path(expected)


def test_a_taken_request_is_json_that_was_sent(keep, take, toy_records):
    """Dates, nulls and numbers come back as they were in the body."""
    kept = keep()
    take(kept, orjson.loads(orjson.dumps(toy_records)))
    kept.gather(last=True)
    back = rows(kept).select(list(toy_records[0])).to_pylist()
    assert [{**row, "day": row["day"] and row["day"].isoformat()} for row in back] == toy_records


def test_what_is_added_to_a_record_is_what_the_pipeline_file_forbids_as_a_feature(toy_pipeline):
    assert [*config.RECORDED] == [*OURS, "model_version"]
    feature = {"etl.steps.0.sql": "SELECT id, 1 AS _row, 1 AS big FROM raw", "features.columns": {"_row": {"kind": "number"}}}
    assert toy_pipeline(feature).features.columns
    with pytest.raises(ValueError, match=r"features\.columns has _row, as serve\.records names"):
        toy_pipeline({**feature, "serve": {"records": {"share": 0.5}}})
