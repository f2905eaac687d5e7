"""Jobs on a running cluster with token authentication: a real `ray job submit`, and what goes wrong there."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import ray

from tests.conftest import ROOT, run_job

QUICK = 15.0
"""Seconds within which a mistake must be answered, the import of Ray included."""


def test_ray_job_submit_trains_on_the_cluster(cluster, arguments, finished):
    tool = shutil.which("ray", path=str(Path(sys.executable).parent))
    command = [tool, "job", "submit", "--address", cluster.dashboard, "--working-dir", ".", "--"]
    command += ["python", "-m", "jobs.train", *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert "succeeded" in done.stdout
    assert "alias challenger" in done.stdout
    assert f"id {finished.first.summary['dataset']['id']}" in done.stdout


def test_dashboard_refuses_a_request_without_the_token(cluster):
    assert httpx.get(f"{cluster.dashboard}/api/jobs/").status_code == 401


def on_cluster(cluster, **more: str) -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": cluster.address, **more}


def test_wrong_token_is_refused_with_a_remedy(cluster, arguments, workspace, tmp_path):
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    began = time.monotonic()
    done = run_job("jobs.etl", arguments, on_cluster(cluster, RAY_AUTH_TOKEN_PATH=str(wrong)), workspace, timeout=90)
    assert done.code == 2
    assert "refuses the token" in last_line(done.output)
    assert "0" * 64 not in done.output
    assert time.monotonic() - began < QUICK


def test_no_free_cpu_is_answered_with_what_is_missing(cluster, joined, arguments, workspace):
    @ray.remote(num_cpus=2)
    class Hog:
        def ready(self) -> bool:
            return True

    hog = Hog.remote()
    assert ray.get(hog.ready.remote())
    began = time.monotonic()
    done = run_job("jobs.train", [*arguments, "--set", "train.launcher=ray"], on_cluster(cluster), workspace, timeout=90)
    ray.kill(hog)
    assert done.code == 2
    assert "CPU" in last_line(done.output) and "free" in last_line(done.output)
    assert time.monotonic() - began < QUICK


def test_more_cpus_than_the_cluster_has_are_refused(cluster, arguments, workspace):
    done = run_job("jobs.train", [*arguments, "--set", "train.workers=64"], on_cluster(cluster), workspace, timeout=90)
    assert done.code == 2
    assert "train needs 64 CPU, the cluster has 2; lower train.workers" in done.output


def test_gate_that_is_not_reached_exits_with_3_and_keeps_the_champion(cluster, arguments, workspace, finished):
    from mlflow import MlflowClient

    before = MlflowClient(f"sqlite:///{workspace}/mlflow.db").get_model_version_by_alias("flights", "champion").version
    done = run_job("jobs.evaluate", [*arguments, "--set", "evaluate.gate.at_least=0.99"], on_cluster(cluster), workspace)
    after = MlflowClient(f"sqlite:///{workspace}/mlflow.db").get_model_version_by_alias("flights", "champion").version
    assert (done.code, after) == (3, before)
    assert "below evaluate.gate.at_least = 0.99" in last_line(done.output)


def test_an_exception_in_a_worker_reaches_the_user_with_its_rank(cluster, arguments, workspace):
    changes = ["--set", "model.family=tests.broken_family:build", "--set", "train.max_failures=0"]
    done = run_job("jobs.train", [*arguments, *changes], on_cluster(cluster), workspace)
    assert done.code == 2
    # Both ranks fail; Ray reports those that it has heard of when it ends the group.
    assert re.search(r"Training failed: rank [01]: the network cannot be built[.;]", last_line(done.output)), done.output


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.fixture
def address_that_nobody_has() -> str:
    return "127.0.0.1:1"


def test_cluster_that_does_not_answer_is_named(address_that_nobody_has, arguments, workspace):
    done = run_job("jobs.etl", arguments, {**os.environ, "RAY_ADDRESS": address_that_nobody_has}, workspace, timeout=90)
    assert done.code == 2
    assert f"No Ray cluster answers at {address_that_nobody_has}" in last_line(done.output)
