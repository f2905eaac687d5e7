"""Jobs on a running cluster with token authentication: a real `ray job submit`, and what goes wrong there."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
import ray
import yaml

from tests.conftest import ROOT, Finished, at_once, run_job


@dataclass(frozen=True)
class Trainings:
    """Three jobs at once, each of which wants all CPUs: one submitted, one with Spark in it, one whose workers fail."""

    submitted: subprocess.CompletedProcess
    tiny: Finished
    broken: Finished


@pytest.fixture(scope="module")
def trainings(cluster, arguments, tiny, workspace, finished) -> Trainings:
    tool = shutil.which("ray", path=str(Path(sys.executable).parent))
    submit = [tool, "job", "submit", "--address", cluster.dashboard, "--working-dir", ".", "--"]
    submit += ["python", "-m", "jobs.train", *arguments]
    broken = [*arguments, "--set", "model.family=tests.broken_family:build", "--set", "train.max_failures=0"]
    env = on_cluster(cluster)
    done = at_once(
        lambda: subprocess.run(submit, cwd=ROOT, text=True, timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT),
        lambda: run_job("jobs.train", ["--config", str(tiny)], env, tiny.parent),
        lambda: run_job("jobs.train", broken, env, workspace),
    )
    return Trainings(*done)


def test_ray_job_submit_trains_on_the_cluster(trainings, finished):
    done = trainings.submitted
    assert done.returncode == 0, done.stdout
    assert "succeeded" in done.stdout
    assert "alias challenger" in done.stdout
    assert f"id {finished.first.summary['dataset']['id']}" in done.stdout


def test_dashboard_refuses_a_request_without_the_token(cluster):
    assert httpx.get(f"{cluster.dashboard}/api/jobs/").status_code == 401


def on_cluster(cluster, **more: str) -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": cluster.address, **more}


def test_wrong_token_is_refused_with_a_remedy(cluster, arguments, workspace, tmp_path, finished):
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    done = run_job("jobs.etl", arguments, on_cluster(cluster, RAY_AUTH_TOKEN_PATH=str(wrong)), workspace, timeout=90)
    assert done.code == 2
    assert "refuses the token" in last_line(done.output)
    assert "0" * 64 not in done.output
    assert done.seconds < finished.first.seconds / 2  # at once: it waits for nothing


def test_no_free_cpu_is_answered_with_what_is_missing(cluster, joined, arguments, workspace, finished):
    @ray.remote(num_cpus=2)
    class Hog:
        def ready(self) -> bool:
            return True

    hog = Hog.remote()
    assert ray.get(hog.ready.remote())
    settings = ["--set", "train.launcher=ray", "--set", "cluster.wait_s=1"]
    done = run_job("jobs.train", [*arguments, *settings], on_cluster(cluster), workspace, timeout=90)
    ray.kill(hog)
    assert done.code == 2
    assert "CPU" in last_line(done.output) and "free" in last_line(done.output)
    assert done.seconds < finished.first.seconds / 2  # at once: it waits for nothing


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A pipeline over 38 rows, 25 of them to train on, and one that a rule rejects."""
    folder = tmp_path_factory.mktemp("tiny")
    rows = [f"{number},{number * 7 % 13},{'yes' if number * 5 % 11 > 5 else 'no'}" for number in range(37)]
    (folder / "raw.csv").write_text("\n".join(["id,size,good", *rows, "37,,yes", ""]))
    pipeline = {
        "name": "tiny",
        "storage": {"root": str(folder)},
        "cluster": {"wait_s": 300},
        "etl": {
            "sources": {"raw": {"path": str(folder / "raw.csv"), "columns": "id INT, size INT, good STRING"}},
            "rules": [{"name": "has_size", "not_null": ["size"]}],
            "splits": {"train": "id < 25", "validation": "id BETWEEN 25 AND 30", "test": "id > 30"},
            "order_by": ["id"],
        },
        "features": {"label": "good", "columns": {"size": {"kind": "number"}}},
        "train": {"workers": 2, "batch_size": 32, "epochs": 1},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(pipeline))
    return folder / "tiny.yaml"


@pytest.fixture
def trained(trainings) -> Finished:
    assert trainings.tiny.code == 0, trainings.tiny.output
    return trainings.tiny


def test_inputs_7_and_9_spark_takes_all_cpus_then_two_workers_train_on_25_rows(trained):
    assert "Spark on Ray: 1 executors of 2 CPU" in trained.output
    assert trained.summary["dataset"]["splits"] == {"train": 25, "validation": 6, "test": 6}
    assert "epoch 0: loss" in trained.output


def test_two_jobs_at_once_with_the_same_config_do_not_collide(cluster, trained, tiny):
    """Each has its own ports, run, MLflow run and model version."""
    words = ["--config", str(tiny), "--set", "train.workers=1"]
    train = partial(run_job, "jobs.train_ddp", words, on_cluster(cluster), tiny.parent)
    both = at_once(train, train)
    assert [job.code for job in both] == [0, 0], [job.output for job in both]
    assert len({re.search(r"model tiny +version (\d+)", job.output)[1] for job in both}) == 2
    weights = {job.folder: (job.folder / "bundle" / "model.safetensors").read_bytes() for job in both}
    assert len(weights) == 2 and len({*weights.values()}) == 1


@pytest.fixture(scope="module")
def patch(cluster, trainings, tiny) -> Path:
    """What `rayloom quarantine show` writes for the rejected row, with the size that it lacks filled in."""
    patch = tiny.with_name("patch.csv")
    show = ["quarantine", "show", "--config", str(tiny), "--rule", "has_size", "--patch-template", str(patch)]
    assert run_job("rayloom.commands", show, on_cluster(cluster), tiny.parent).code == 0
    header, line = patch.read_text().split()
    assert line.startswith("raw,") and line.endswith(",size,")
    patch.write_text(f"{header}\n{line}12\n")
    return patch


@dataclass(frozen=True)
class Evaluations:
    """A dry run and one whose gate is not reached, and the champion and its run's metrics before and after them; and, at the
    same time, another model's rejected row tried again."""

    dry: Finished
    refused: Finished
    replayed: Finished
    before: tuple[str, dict]
    after: tuple[str, dict]


@pytest.fixture(scope="module")
def evaluations(cluster, arguments, workspace, tiny, patch, finished) -> Evaluations:
    from mlflow import MlflowClient

    def champion() -> tuple[str, dict]:
        client = MlflowClient(f"sqlite:///{workspace}/mlflow.db")
        version = client.get_model_version_by_alias("flights", "champion")
        return version.version, client.get_run(version.run_id).data.metrics

    before = champion()
    dry = ["--dry-run", "--model", str(before[0]), "--set", "evaluate.slices=[carrier]"]
    refused = ["--set", "evaluate.gate.at_least=0.99"]
    replay = ["quarantine", "replay", "--config", str(tiny), "--patch", str(patch)]
    env = on_cluster(cluster)
    done = at_once(
        lambda: run_job("jobs.evaluate", [*arguments, *dry], env, workspace),
        lambda: run_job("jobs.evaluate", [*arguments, *refused], env, workspace),
        lambda: run_job("rayloom.commands", replay, env, tiny.parent),
    )
    return Evaluations(*done, before, champion())


def test_a_corrected_row_comes_back_with_rayloom_quarantine(evaluations, trained):
    done = evaluations.replayed
    assert done.code == 0, done.output
    replay = done.summary["replay"]
    assert (replay["parent"], replay["readmitted"], replay["still_rejected"]) == (trained.summary["dataset"]["id"], 1, {})
    assert done.summary["dataset"]["splits"] == {"train": 25, "validation": 6, "test": 7}


def test_a_dry_run_measures_and_moves_nothing(evaluations):
    assert evaluations.dry.code == 0 and "carrier" in evaluations.dry.output, evaluations.dry.output
    assert evaluations.after == evaluations.before


def test_gate_that_is_not_reached_exits_with_3_and_keeps_the_champion(evaluations):
    assert (evaluations.refused.code, evaluations.after[0]) == (3, evaluations.before[0])
    assert "below evaluate.gate.at_least = 0.99" in last_line(evaluations.refused.output)


def test_an_exception_in_a_worker_reaches_the_user_with_its_rank(trainings):
    done = trainings.broken
    assert done.code == 2
    # Both ranks fail; Ray reports those that it has heard of when it ends the group.
    told = r"Training failed: rank [01]: ValueError: the network cannot be built\."
    assert re.search(told, last_line(done.output)), done.output


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.fixture
def address_that_nobody_has() -> str:
    return "127.0.0.1:1"


def test_cluster_that_does_not_answer_is_named(address_that_nobody_has, arguments, workspace):
    done = run_job("jobs.etl", arguments, {**os.environ, "RAY_ADDRESS": address_that_nobody_has}, workspace, timeout=90)
    assert done.code == 2
    assert f"No Ray cluster answers at {address_that_nobody_has}" in last_line(done.output)
