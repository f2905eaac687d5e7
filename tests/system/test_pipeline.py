"""The whole pipeline on a slice of the real flights, on a machine without Java: `jobs.pipeline`, and then `jobs.train`."""

import csv
import hashlib
import os
import re
from pathlib import Path

import psutil
from mlflow import MlflowClient

from rayloom import quarantine, versions

SPLIT_OF_MONTH = {**{str(month): "train" for month in range(1, 10)}, "10": "validation", "11": "test", "12": "test"}


def count_slice(path: Path) -> dict:
    """The figures that the summary must have, counted without Spark."""
    splits = {"train": 0, "validation": 0, "test": 0}
    rows_in = rejected = 0
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            rows_in += 1
            if row["arr_delay"] == "NA":
                rejected += 1
            else:
                splits[SPLIT_OF_MONTH[row["month"]]] += 1
    return {"rows_in": rows_in, "accepted": rows_in - rejected, "rejected": rejected, "splits": splits}


def test_summary_counts_every_flight(finished, flights_slice):
    dataset = finished.first.summary["dataset"]
    assert {key: dataset[key] for key in ("rows_in", "accepted", "rejected", "splits")} == count_slice(flights_slice)


def test_every_test_row_is_evaluated(finished, flights_slice):
    assert finished.first.summary["test"]["n"] == count_slice(flights_slice)["splits"]["test"]


def test_model_learns_and_is_printed_beside_its_baseline(finished):
    test = finished.first.summary["test"]
    assert test["auc"] > 0.55
    assert test["baseline_auc"] > 0.55
    assert "baseline_auc" in finished.first.output


def test_served_answers_equal_offline_answers(finished):
    serve = finished.first.summary["serve"]
    assert (serve["ok"], serve["rows"]) == (serve["requests"], 40)
    assert serve["requests"] == 41  # each row alone, and all rows in one request
    assert serve["max_abs_diff"] <= 1e-6


def test_the_next_job_finds_the_dataset_version(finished):
    cached = [
        [stage["cached"] for stage in run.summary["stages"] if stage["name"] == "etl"]
        for run in (finished.first, finished.again)
    ]
    assert cached == [[False], [True]]
    assert finished.first.summary["dataset"]["id"] == finished.again.summary["dataset"]["id"]


def test_same_config_gives_bit_identical_weights(finished):
    """The first run trains on rows handed over in memory, the second on the same rows from Parquet."""
    files = [run.folder / "bundle" / "model.safetensors" for run in (finished.first, finished.again)]
    digests = {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert len(digests) == 1


def test_an_interrupted_run_says_so_and_is_not_the_latest(finished):
    assert finished.interrupted.code == 130
    assert finished.interrupted.output.strip().splitlines()[-1] == "interrupted"
    assert finished.latest == finished.again.folder


def test_a_local_cluster_has_no_process_that_serves_nobody(finished):
    [running] = re.findall(r"^running: .*$", finished.leaky.output, re.M)
    assert "gcs_server" in running and "raylet" in running
    assert not re.search(r"log_monitor\.py|monitor\.py|dashboard\.py", running), running
    # Ray Data would have one for a dashboard, and one that shares out CPUs.
    assert re.findall(r"^actors:.*$", finished.leaky.output, re.M) == ["actors:"]


def test_a_job_that_leaves_a_process_ends_with_4_and_names_it(finished):
    """The audit can fail: this job starts a process of its own session and forgets it."""
    last = finished.leaky.output.strip().splitlines()[-1]
    assert re.search(r"^error: Left behind: process \d+ \(sleep\)\. End these by hand", last), finished.leaky.output
    assert finished.leaky.code == 4
    assert "audit        leftovers process" in finished.leaky.output


def test_nothing_of_any_run_is_left(finished):
    assert [run.summary["audit"]["leftovers"] for run in (finished.first, finished.again)] == [[], []]
    assert [process for process in psutil.process_iter() if tagged(process, finished.tag)] == []


def tagged(process: psutil.Process, tag: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get("RAYLOOM_TEST_TAG") == tag
    except psutil.Error:
        return False


def test_mlflow_has_parameters_curves_bundle_plots_and_dataset(finished, workspace):
    client = MlflowClient(f"sqlite:///{workspace}/mlflow.db")
    version = client.get_model_version("flights", str(finished.first.summary["registry"]["version"]))
    run = client.get_run(version.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.epochs"] == "2"
    assert run.data.tags["rayloom.dataset"] == finished.first.summary["dataset"]["id"]
    assert [point.step for point in client.get_metric_history(version.run_id, "validation_auc")] == [0, 1]
    assert run.data.metrics["test_auc"] == finished.first.summary["test"]["auc"]
    artifacts = {file.path for folder in ("bundle", "plots") for file in client.list_artifacts(version.run_id, folder)}
    assert {"bundle/MANIFEST.json", "bundle/golden.jsonl", "plots/roc.png", "plots/precision_recall.png"} <= artifacts
    assert {"plots/calibration.png", "plots/confusion_matrix.png"} <= artifacts


def test_mlflow_records_no_path_or_token(finished, workspace):
    client = MlflowClient(f"sqlite:///{workspace}/mlflow.db")
    run = client.get_run(client.get_model_version_by_alias("flights", "champion").run_id)
    assert not [key for key, value in run.data.params.items() if str(workspace) in value or "token" in key]


def test_token_is_in_no_output(finished):
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    assert token not in finished.first.output


def test_quarantine_holds_each_rejected_flight_with_its_rule(finished, workspace):
    dataset = finished.first.summary["dataset"]
    version = versions.find(workspace / "datasets" / "flights" / dataset["id"])
    rows = quarantine.rows(version, 10_000)
    assert len(rows) == dataset["rejected"]
    assert {(row.source, row.rule, row.raw["arr_delay"]) for row in rows} == {("joined", "has_arrival_delay", None)}
